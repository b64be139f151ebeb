"""The first lab as a learner meets it: run unsolved, its timeline, its first exercise solved."""

import re
from pathlib import Path

import nbformat
import pytest

LAB = Path(__file__).parents[2] / "labs/pp_lab.ipynb"
pytestmark = pytest.mark.timeout(300)  # a slow machine starts JupyterLab and ten exercises
ANSWER = "    return (p - 1) / (m + p - 1)"


@pytest.fixture(scope="module")
def page(jupyterlab, watched):
    """Lab 1, opened and run from its first cell to its last, with no exercise solved."""
    with watched() as page:
        jupyterlab.open(page, "lab1.ipynb", nbformat.read(LAB, 4).cells)
        jupyterlab.run_all(page)
        yield page


def reveal(page, cell):
    """Scroll to a cell, as the table of contents does, and give it."""
    page.evaluate(
        """async id => {
            const notebook = jupyterapp.shell.currentWidget.content;
            const index = notebook.widgets.findIndex(cell => cell.model.id === id);
            notebook.activeCellIndex = index;
            await notebook.scrollToItem(index, "center");
        }""",
        cell,
    )
    return page.locator(".jp-Notebook .jp-Cell.jp-mod-active")


def test_unsolved_it_runs_to_its_end_and_every_check_says_not_attempted(jupyterlab, page):
    outputs = jupyterlab.outputs(page)
    kinds = {out["output_type"] for outs in outputs.values() for out in outs}
    assert "error" not in kinds
    checks = {cell: outs for cell, outs in outputs.items() if cell.endswith("-check")}
    assert len(checks) == 10 and list(outputs)[-1] in checks  # the last cell too has run
    for (out,) in checks.values():
        assert "not attempted" in out["data"]["text/html"]


def test_its_first_timeline_says_of_an_op_what_it_needed(page):
    cell = reveal(page, "first-picture")
    row = cell.locator(".pp-lab-timeline [role=row]").nth(1)
    row.locator("[role=gridcell]").filter(has_text=re.compile("^B1$")).hover()
    says = cell.locator(".pp-lab-timeline p").inner_text()
    # GPipe, p=3, m=4, F=1, B=2: B1 of the rank after ends at 6 + 2 + 2.
    assert says.startswith("B1 on rank 1, from 10 to 12. It needed 1F1 (rank 1, there at 3) and 2B")
    assert "Needed by 0B1 (rank 0, started at 12)" in says


def test_a_right_answer_typed_into_the_first_exercise_earns_its_mark(jupyterlab, page):
    editor = reveal(page, "bubble-answer").locator(".cm-content")
    editor.get_by_text("raise NotImplementedError()").click()
    page.keyboard.press("Home")
    page.keyboard.press("Home")  # before the indentation
    page.keyboard.press("Shift+End")
    page.keyboard.type(ANSWER)
    assert ANSWER in editor.inner_text()
    page.keyboard.press("Shift+Enter")  # runs the answer and goes to its check
    check = reveal(page, "bubble-check")
    assert "not attempted" in check.locator(".jp-OutputArea").inner_text()
    page.keyboard.press("Control+Enter")
    check.get_by_text("✓").wait_for(timeout=30_000)
    assert jupyterlab.outputs(page)["bubble-check"][0]["data"]["text/plain"] == "1"
