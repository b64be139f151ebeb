"""The explorer as a learner meets it: sliders in JupyterLab, and the page of its own."""

import re
import threading
from http.server import ThreadingHTTPServer

import nbformat
import pytest

from pp_lab.show.page import _Handler


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


def test_in_jupyterlab_a_slider_changes_the_makespan(jupyterlab, page):
    cell = nbformat.v4.new_code_cell("import pp_lab as pp\n\npp.explore(p=4, m=8)")
    jupyterlab.open(page, "explorer.ipynb", [cell])
    jupyterlab.run_all(page)
    picture = page.locator(".jp-OutputArea svg[role=img]").first
    picture.wait_for(timeout=60_000)
    assert "makespan 33" in picture.get_attribute("aria-label")
    slider = page.locator(".widget-slider", has_text="micro-batches m").first
    slider.locator(".widget-readout").fill("10")
    slider.locator(".widget-readout").press("Enter")
    changed = page.locator("svg[role=img][aria-label*='makespan 39']")
    changed.wait_for(timeout=20_000)
    page.get_by_role("tab", name=re.compile("by hand")).click()
    page.get_by_role("button", name="0F0").click()
    page.get_by_role("button", name="1F0").wait_for(timeout=20_000)
