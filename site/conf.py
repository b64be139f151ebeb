"""How Sphinx builds the course page. build.py puts together what it reads; see there."""

project = "pp_lab"
author = copyright = "The pp_lab authors"
html_title = "pp_lab: pipeline parallelism, by running it"
language = "en"

extensions = ["myst_nb"]
myst_enable_extensions = ["colon_fence"]
exclude_patterns = ["notebooks", "assets"]
nb_execution_mode = "off"  # the pages show the outputs that are saved in the solutions
nb_code_prompt_show = "Show the solution"
nb_code_prompt_hide = "Hide the solution"
nb_merge_streams = True
suppress_warnings = ["config.cache"]

highlight_language = "none"  # of blocks that name no language

html_theme = "furo"  # whose styles, scripts and fonts all come along
html_logo = "static/logo.svg"
html_favicon = "static/logo.svg"
html_static_path = ["static"]
html_css_files = ["palette.css", "course.css"]
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
html_use_index = False
html_show_search_summary = False  # it would fetch pages, which a browser refuses for files
html_math_renderer = None
# Blue and light blue of the Okabe-Ito palette: readable on white and on black.
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#0072B2", "color-brand-content": "#0072B2"},
    "dark_css_variables": {"color-brand-primary": "#56B4E9", "color-brand-content": "#56B4E9"},
}
