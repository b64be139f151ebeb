"""The timeline as a learner meets it: live, by keyboard, exported, and in an untrusted notebook."""

import re
from copy import deepcopy

import nbformat
import pytest

from pp_lab.schedule import schedules, simulate
from pp_lab.show import timeline

CODE = """\
from pp_lab.schedule import schedules, simulate
from pp_lab.show import timeline

timeline(simulate(schedules.one_f_one_b(p=4, m=8)))"""

# Needs of 1F1B, p=4, m=8, F=1, B=2: rank 1's B2 needs its own F2 and the B2 of stage 2.
B2 = "B2 on rank 1, from 14 to 16. It needed 1F2 (rank 1, there at 4) and 2B2"
OUTLINES = ".pp-lab-timeline svg > g:last-of-type > rect"


@pytest.fixture
def trace():
    return simulate(schedules.one_f_one_b(p=4, m=8))


@pytest.fixture
def saved(trace):
    """A cell with a saved output, as in the executed notebooks of solutions/."""
    output = nbformat.v4.new_output(
        "execute_result", data=timeline(trace)._repr_mimebundle_(), execution_count=1
    )
    return nbformat.v4.new_code_cell(CODE, execution_count=1, outputs=[output])


@pytest.fixture
def live(jupyterlab, page):
    """A notebook that was just run; above and below the timeline there are other cells."""
    sources = ("1 + 1", CODE, "2 + 2")
    jupyterlab.open(page, "live.ipynb", [nbformat.v4.new_code_cell(source) for source in sources])
    jupyterlab.run_all(page)
    page.locator(".pp-lab-timeline svg").wait_for(timeout=60_000)
    return page


def op(page, rank, label):
    """The box of an op in a rank's row."""
    row = page.locator(".pp-lab-timeline [role=row]").nth(rank)
    return row.locator("[role=gridcell]").filter(has_text=re.compile(f"^{label}$"))


def explanation(page):
    return page.locator(".pp-lab-timeline p").inner_text()


def test_a_run_notebook_explains_ops_and_idle_slots_to_mouse_and_keyboard(live, trace):
    page = live
    assert page.locator(".pp-lab-timeline img").count() == 0
    ops = page.locator(".pp-lab-timeline [role=gridcell]").filter(has_text=re.compile("^[FB]"))
    assert ops.count() == len(trace.events)
    hint = explanation(page)
    assert "arrow keys" in hint

    op(page, 1, "B2").hover()
    assert explanation(page).startswith(B2)
    assert page.locator(OUTLINES).count() == 4  # itself, the two it needed, the one that needs it
    page.mouse.move(5, 5)
    assert explanation(page) == hint
    assert page.locator(OUTLINES).count() == 0

    op(page, 0, "F3").click()
    page.keyboard.press("ArrowRight")
    assert explanation(page).startswith("Rank 0 is idle until 10: its next op, B0, needs 1B0")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    assert explanation(page).startswith("B1 on rank 1, from 11 to 13")  # the same time, one rank on
    # JupyterLab must not take the key too, and go to the next cell of the notebook.
    assert page.evaluate("jupyterapp.shell.currentWidget.content.activeCellIndex") == 1
    page.keyboard.press("End")
    assert explanation(page).startswith("Rank 1 has nothing left to do at 31")
    page.keyboard.press("Home")
    assert explanation(page).startswith("Rank 1 is idle until 1")
    focused = page.evaluate("document.activeElement.getAttribute('aria-label')")
    assert focused == explanation(page)

    for away, back in (("Tab", "Shift+Tab"), ("Shift+Tab", "Tab")):  # it is a single tab stop
        page.keyboard.press(away)
        assert not page.evaluate("document.activeElement.matches('.pp-lab-timeline *')")
        page.keyboard.press(back)
        assert explanation(page) == focused


def test_an_untrusted_notebook_shows_the_picture_with_its_alt_text(jupyterlab, page, saved, trace):
    jupyterlab.open(page, "untrusted.ipynb", [saved])
    image = page.locator(".jp-OutputArea-output img")
    image.wait_for()
    assert image.get_attribute("alt") == str(trace)
    assert image.evaluate("image => image.complete && image.naturalWidth") > 900
    assert page.locator(".jp-OutputArea-output svg").count() == 0
    assert page.locator(".jp-OutputArea-output script").count() == 0


def test_a_notebook_exported_as_html_is_alive_without_a_kernel(page, saved, tmp_path):
    nbconvert = pytest.importorskip("nbconvert")
    again = deepcopy(saved)
    again.id = "again"
    notebook = nbformat.v4.new_notebook(cells=[saved, again])
    text, _ = nbconvert.HTMLExporter().from_notebook_node(notebook)
    path = tmp_path / "exported.html"
    path.write_text(text, "utf-8")
    page.route(
        "**/*",
        lambda route: route.continue_() if route.request.url.startswith("file:") else route.abort(),
    )
    page.goto(path.as_uri())
    page.locator(".pp-lab-timeline svg").nth(1).wait_for()
    assert page.locator(".pp-lab-timeline svg").count() == 2
    op(page, 1, "B2").hover()
    assert page.locator(".pp-lab-timeline p").first.inner_text().startswith(B2)
