"""Every lab runs, unsolved, to its end. The solutions are run by nbval (see pyproject.toml)."""

import re
import time
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from pp_lab.schedule.text import headline
from pp_lab.show import assets

LABS = sorted((Path(__file__).parent.parent / "labs").glob("*.ipynb"))
LIMIT = 60  # seconds for one lab, unsolved, on two cores


def test_there_is_a_lab():
    assert LABS


@pytest.fixture(scope="module", params=LABS, ids=lambda path: path.stem)
def finished(request):
    """(lab after Restart and Run All, seconds that took)."""
    path = request.param
    lab = nbformat.read(path, as_version=4)
    client = NotebookClient(
        lab, timeout=LIMIT, kernel_name="python3", resources={"metadata": {"path": path.parent}}
    )
    began = time.monotonic()
    client.execute()  # raises at the first error, unless the cell is tagged raises-exception
    return lab, time.monotonic() - began


def code_cells(lab):
    return [cell for cell in lab.cells if cell.cell_type == "code"]


def outputs(cell):
    return "".join(
        output.get("text", "") + output.get("data", {}).get("text/plain", "")
        for output in cell.outputs
    )


def test_an_unsolved_lab_runs_to_its_end_in_a_minute(finished):
    lab, seconds = finished
    assert all(cell.execution_count for cell in code_cells(lab) if cell.source.strip())
    assert seconds < LIMIT


def test_the_check_of_an_unsolved_exercise_says_not_attempted_and_gives_no_points(finished):
    lab, _ = finished
    checks = [c for c in code_cells(lab) if c.metadata.get("nbgrader", {}).get("grade")]
    checks = [c for c in checks if not c.metadata.nbgrader.solution]
    assert checks
    for cell in checks:
        shown = [output.data for output in cell.outputs if "data" in output]
        assert any("not attempted" in str(data) for data in shown), cell.source
        assert outputs(cell).endswith("0"), cell.source


def test_the_first_picture_is_among_the_first_five_cells(finished):
    lab, _ = finished
    assert any(shows_a_picture(cell) for cell in lab.cells[:5])


def shows_a_picture(cell):
    if cell.cell_type == "markdown":
        return "![" in cell.source or "<img" in cell.source
    return any("<img" in output.get("data", {}).get("text/html", "") for output in cell.outputs)


def test_every_target_picture_of_a_lab_is_there_and_its_alt_text_says_what_is_seen():
    seen = set()
    for path in LABS:
        for cell in nbformat.read(path, as_version=4).cells:
            for alt, file in re.findall(r"!\[(.*?)\]\((.*?)\)", cell.source):
                assert (path.parent / file).is_file(), f"{path.name}: {file}"
                name = Path(file).stem.removeprefix("target_")
                assert alt == f"Target: {headline(assets.targets()[name])}", path.name
                seen.add(name)
    assert seen == set(assets.targets())
