"""The explorer as a learner meets it: sliders in JupyterLab, and the page of its own."""

import re
import threading
from http.server import ThreadingHTTPServer

import nbformat
import pytest

import pp_lab as pp
from pp_lab import schedules, simulate
from pp_lab.schedule.text import headline as line
from pp_lab.show.explore import NAMES
from pp_lab.show.page import _Handler

CODE = "import pp_lab as pp\n\npp.explore(p=4, m=8)"
FIELDS = ["schedule", "other", *NAMES, "time"]  # in the order of the Tab key


def headline(p, m, make=schedules.one_f_one_b):
    """What stands over the timeline of a schedule, up to its makespan."""
    return line(simulate(make(p, m))).partition(", bubble")[0]


def shown(page, text):
    """Wait until the picture says so."""
    page.locator(f"svg[role=img][aria-label*='{text}']").wait_for(timeout=60_000)


def slider(page, name):
    """The slider of the first tab with that name."""
    return page.locator(".widget-slider", has_text=name).first


@pytest.fixture
def served():
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


def test_on_its_page_a_slider_changes_the_makespan_and_the_cursor_speaks(page, served):
    page.goto(served)
    page.locator("#picture svg").wait_for()
    assert "makespan 33" in page.locator("#picture svg").inner_html()
    page.fill("input[name=m]", "10")
    page.wait_for_function("document.querySelector('#picture').innerHTML.includes('makespan 39')")
    page.fill("input[name=time]", "5")
    page.wait_for_function("document.querySelector('#says').textContent.startsWith('At 5')")
    assert page.locator("#picture .cursor").count() == 1
    page.select_option("select[name=schedule]", "DualPipe")
    page.fill("input[name=p]", "3")
    page.wait_for_function("document.querySelector('#says').textContent.includes('even p')")


def test_its_page_needs_no_mouse(page, served):
    page.goto(served)
    page.locator("#picture svg").wait_for()
    reached = []
    for _ in FIELDS:
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.name"))
    assert reached == FIELDS
    while page.evaluate("document.activeElement.name") != "m":
        page.keyboard.press("Shift+Tab")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    page.locator(f"#picture svg[aria-label*='{headline(4, 10)}']").wait_for()
    page.locator("select[name=schedule]").focus()
    page.keyboard.type("GP")
    page.locator("#picture svg[aria-label*='GPipe p=4 m=10']").wait_for()
    page.locator("input[name=time]").focus()
    page.keyboard.press("End")
    page.locator("#says", has_text="rank 3 is done").wait_for()


@pytest.fixture(scope="module")
def explorer(jupyterlab, watched):
    """An explorer in a notebook that was just run."""
    with watched() as page:
        jupyterlab.open(page, "explorer.ipynb", [nbformat.v4.new_code_cell(CODE)])
        jupyterlab.run_all(page)
        shown(page, headline(4, 8))
        yield page


def test_in_jupyterlab_names_and_figures_of_controls_are_whole(explorer):
    for width in (1280, 800):
        explorer.set_viewport_size({"width": width, "height": 900})
        tab = explorer.locator(".widget-tab").bounding_box()
        for name in NAMES.values():
            label = slider(explorer, name).locator(".widget-label")
            assert label.evaluate("e => e.scrollWidth <= e.clientWidth"), name
            figure = slider(explorer, name).locator(".widget-readout").bounding_box()
            assert figure["x"] + figure["width"] <= tab["x"] + tab["width"], name


def test_in_jupyterlab_sliders_change_the_makespan_and_the_cursor_speaks(explorer):
    page = explorer
    slider(page, "micro-batches m").locator(".widget-readout").fill("9")
    slider(page, "micro-batches m").locator(".widget-readout").press("Enter")
    shown(page, headline(4, 9))
    slider(page, "micro-batches m").locator(".noUi-handle").press("ArrowRight")
    shown(page, headline(4, 10))
    ranks = slider(page, "ranks p")
    handle, track = (ranks.locator(css).bounding_box() for css in (".noUi-handle", ".noUi-base"))
    x, y = handle["x"] + handle["width"] / 2, handle["y"] + handle["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + track["width"] * 4 / 15, y, steps=4)  # of 1 to 16 ranks: four more
    page.mouse.up()
    shown(page, headline(8, 10))

    beside = page.locator(".widget-dropdown", has_text="beside").locator("select")
    beside.select_option("ZB-H1")
    shown(page, headline(8, 10, schedules.zb_h1))
    slider(page, "step").locator(".noUi-handle").press("ArrowRight")
    page.get_by_text("At 0: rank 0 runs F0; rank 1 is idle until 1").wait_for()
    slider(page, "step").locator(".noUi-handle").press("ArrowRight")
    page.get_by_text("At 1: rank 0 runs F1; rank 1 runs F0").wait_for()
    assert page.locator("svg[role=img] .cursor").count() == 1

    page.get_by_role("tab", name=re.compile("by hand")).click()
    page.get_by_role("button", name="0F0").click()
    page.get_by_role("button", name="1F0").wait_for()


def test_a_saved_explorer_is_a_picture_where_nothing_runs(jupyterlab, page, tmp_path):
    cell = nbformat.v4.new_code_cell(CODE, execution_count=1)
    data = pp.explore(p=4, m=8)._repr_mimebundle_()
    cell.outputs = [nbformat.v4.new_output("execute_result", data, execution_count=1)]
    jupyterlab.open(page, "saved_explorer.ipynb", [cell])  # which nobody has trusted
    drawn = page.locator(".jp-OutputArea-output img")
    drawn.wait_for()
    assert drawn.get_attribute("alt").startswith(headline(4, 8))
    assert drawn.evaluate("image => image.complete && image.naturalWidth") > 900

    nbconvert = pytest.importorskip("nbconvert")
    text, _ = nbconvert.HTMLExporter().from_notebook_node(nbformat.v4.new_notebook(cells=[cell]))
    (tmp_path / "explorer.html").write_text(text, "utf-8")
    page.route(re.compile("^(?!file:|data:)"), lambda route: route.abort())
    page.goto((tmp_path / "explorer.html").as_uri())
    drawn = page.locator("img[alt^='1F1B p=4 m=8']")
    drawn.wait_for()
    assert drawn.evaluate("image => image.complete && image.naturalWidth") > 900
