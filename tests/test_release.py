"""labs/ from solutions/: what a learner gets to see, and what the author is told."""

import json

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from pp_lab.course import release
from pp_lab.course.release import ReleaseError

SOLVED = '''\
def gpipe(p, m):
    """Four forwards, then four backwards."""
    ranks = []
    for rank in range(p):
        ### BEGIN SOLUTION
        ranks.append([f"F{i}" for i in range(m)])
        ### END SOLUTION
    return ranks'''

STUBBED = '''\
def gpipe(p, m):
    """Four forwards, then four backwards."""
    ranks = []
    for rank in range(p):
        # YOUR CODE HERE
        raise NotImplementedError()
    return ranks'''

HIDDEN = """\
check(gpipe)
### BEGIN HIDDEN TESTS
assert gpipe(1, 1)
### END HIDDEN TESTS
print("done")"""


def role(name, **keys):
    """nbgrader's metadata, schema 3."""
    keys = {"grade": False, "solution": False, "locked": False, "task": False} | keys
    return {"nbgrader": {"schema_version": 3, "grade_id": name} | keys}


def solution(*cells):
    notebook = new_notebook(cells=list(cells))
    notebook.metadata.kernelspec = {
        "display_name": "Python 3",
        "language": "python",
        "name": "python3",
    }
    return notebook


def solved_lab():
    """One cell of every sort that a solution has, run and viewed."""
    figure = new_output("execute_result", data={"text/plain": "33"}, execution_count=7)
    exercise = new_code_cell(SOLVED, id="write-gpipe", metadata=role("gpipe", solution=True))
    exercise.metadata["pp_lab"] = {"exercise": "gpipe", "minutes": 10}
    exercise.metadata["execution"] = {"iopub.status.busy": "2026-01-01T00:00:00Z"}
    exercise.metadata["collapsed"] = True
    check = new_code_cell(
        HIDDEN,
        id="check-gpipe",
        metadata=role("check", grade=True, locked=True, points=2),
        outputs=[figure],
        execution_count=7,
    )
    whole = new_code_cell("answer = 3 / 11", id="whole", metadata=role("whole", solution=True))
    words = new_markdown_cell(
        "The bubble.", id="words", metadata=role("words", solution=True, grade=True, points=1)
    )
    part = new_markdown_cell(
        "You see:\n\n  ### BEGIN SOLUTION\n  a bubble\n  ### END SOLUTION\nWhy?",
        id="part",
        metadata=role("part", solution=True, grade=True, points=1),
    )
    twice = new_code_cell(
        "### BEGIN SOLUTION\na = 1\n### END SOLUTION\nb = 2\n    # BEGIN SOLUTION\n    c\n"
        "    # END SOLUTION",
        id="twice",
        metadata=role("twice", solution=True),
    )
    plain = new_code_cell("import pp_lab as pp", id="plain", execution_count=1)
    text = new_markdown_cell("# GPipe", id="text")
    notebook = solution(text, plain, exercise, check, whole, words, part, twice)
    notebook.metadata["widgets"] = {"application/vnd.jupyter.widget-state+json": {"state": {}}}
    notebook.metadata["language_info"] = {"name": "python", "version": "3.11.7"}
    return notebook


@pytest.fixture
def course(tmp_path, monkeypatch):
    """An empty course; `course.add(notebook)` puts a solution into it."""
    (tmp_path / "solutions").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def add(course, notebook, name="one.ipynb"):
    nbformat.write(notebook, course / "solutions" / name)


def only_cell(cell):
    return release.release(solution(cell), "solutions/one.ipynb").cells[0]


def test_a_solution_region_becomes_the_stub_with_its_indentation():
    cell = new_code_cell(SOLVED, metadata=role("gpipe", solution=True))
    assert only_cell(cell).source == STUBBED


def test_a_solution_cell_without_a_region_becomes_the_stub_as_a_whole():
    cell = new_code_cell("answer = 3 / 11", metadata=role("a", solution=True))
    assert only_cell(cell).source == "# YOUR CODE HERE\nraise NotImplementedError()"


def test_a_hidden_test_region_vanishes_and_the_lines_around_it_stay():
    cell = new_code_cell(HIDDEN, metadata=role("a", grade=True, points=1))
    assert only_cell(cell).source == 'check(gpipe)\nprint("done")'


def test_every_cell_reads_as_after_nbgraders_own_preprocessors():
    preprocessors = pytest.importorskip("nbgrader.preprocessors")
    theirs, resources = solved_lab(), {}
    for name in ("LockCells", "ClearSolutions", "ClearOutput", "ClearHiddenTests"):
        theirs, resources = getattr(preprocessors, name)().preprocess(theirs, resources)
    ours = release.release(solved_lab(), "lab")
    assert [cell.source for cell in ours.cells] == [cell.source for cell in theirs.cells]
    outputs = [(cell.outputs, cell.execution_count) for cell in theirs.cells if "outputs" in cell]
    assert [(c.outputs, c.execution_count) for c in ours.cells if "outputs" in c] == outputs


def test_ids_and_both_kinds_of_metadata_stay_and_traces_of_a_run_go():
    solved = solved_lab()
    lab = release.release(solved, "lab")
    assert [cell.id for cell in lab.cells] == [cell.id for cell in solved.cells]
    for before, after in zip(solved.cells, lab.cells, strict=True):
        assert after.metadata.get("nbgrader") == before.metadata.get("nbgrader")
    exercise = lab.cells[2].metadata
    assert exercise.keys() == {"nbgrader", "pp_lab"}
    assert exercise.pp_lab == {"exercise": "gpipe", "minutes": 10}
    assert "widgets" not in lab.metadata
    assert lab.metadata.language_info == {"name": "python"}


def test_the_solution_itself_is_not_changed_by_releasing_it():
    solved = solved_lab()
    release.release(solved, "lab")
    assert solved == solved_lab()


def test_the_same_solution_gives_the_same_bytes_whoever_ran_it(course, capsys):
    add(course, solved_lab())
    assert release.main([]) == 0
    first = (course / "labs" / "one.ipynb").read_bytes()
    rerun = solved_lab()
    rerun.cells[1].execution_count = 99
    rerun.metadata["language_info"]["version"] = "3.12.0"
    add(course, rerun)
    assert release.main([]) == 0
    assert (course / "labs" / "one.ipynb").read_bytes() == first
    assert capsys.readouterr().out.splitlines()[-1] == "1 labs, all up to date"


def test_a_released_lab_is_a_valid_notebook_and_leaves_no_other_file(course):
    add(course, solved_lab())
    release.main([])
    assert [path.name for path in (course / "labs").iterdir()] == ["one.ipynb"]
    nbformat.validate(json.loads((course / "labs" / "one.ipynb").read_text()))


def test_check_tells_a_stale_lab_from_a_fresh_one_and_writes_nothing(course, capsys):
    add(course, solved_lab())
    assert release.main(["--check"]) == 1
    assert "labs/one.ipynb is out of date: run python -m pp_lab.release" in capsys.readouterr().out
    assert not (course / "labs").exists()
    release.main([])
    assert release.main(["--check"]) == 0
    lab = course / "labs" / "one.ipynb"
    lab.write_text(lab.read_text().replace("Four forwards", "Five forwards"))
    assert release.main(["--check"]) == 1
    assert "Five forwards" in lab.read_text()


def test_one_bad_solution_keeps_every_lab_as_it_was(course, capsys):
    add(course, solved_lab(), "a.ipynb")
    add(course, solution(new_code_cell("### BEGIN SOLUTION")), "b.ipynb")
    assert release.main([]) == 1
    assert not (course / "labs").exists()
    assert "solutions/b.ipynb, cell 0" in capsys.readouterr().out


def test_a_write_that_fails_leaves_the_old_lab_whole(course, monkeypatch):
    add(course, solved_lab())
    (course / "labs").mkdir()
    (course / "labs" / "one.ipynb").write_text("old")

    def full(*_):
        raise OSError("no space left on device")

    monkeypatch.setattr(release.os, "replace", full)
    with pytest.raises(OSError, match="no space"):
        release.main([])
    assert [path.read_text() for path in (course / "labs").iterdir()] == ["old"]


@pytest.mark.parametrize(
    "source, metadata, reason",
    [
        ("a\n### BEGIN SOLUTION\nb", role("x", solution=True),
         "lab, cell 0 (x), line 2: BEGIN SOLUTION without an end in this cell; "
         "add ### END SOLUTION"),
        ("a\n### END SOLUTION", role("x", solution=True),
         "lab, cell 0 (x), line 2: END SOLUTION without a BEGIN SOLUTION above it"),
        ("# BEGIN SOLUTION\n\n# BEGIN SOLUTION\n# END SOLUTION", role("x", solution=True),
         "lab, cell 0 (x), line 3: BEGIN SOLUTION inside the region that line 1 begins"),
        ("# BEGIN HIDDEN TESTS", role("x", grade=True, points=1),
         "lab, cell 0 (x), line 1: BEGIN HIDDEN TESTS without an end"),
        ("# END HIDDEN TESTS", role("x", grade=True, points=1),
         "lab, cell 0 (x), line 1: END HIDDEN TESTS without a BEGIN"),
        ("# BEGIN SOLUTION\n# END SOLUTION", {},
         "lab, cell 0 (plain-id): it has a solution region, but is no solution cell"),
        ("# BEGIN HIDDEN TESTS\n# END HIDDEN TESTS", role("x", solution=False),
         "lab, cell 0 (x): it has hidden tests, but is no graded cell"),
    ],
)  # fmt: skip
def test_a_wrong_region_is_refused_with_its_place_and_its_remedy(source, metadata, reason):
    notebook = solution(new_code_cell(source, id="plain-id", metadata=metadata))
    with pytest.raises(ReleaseError) as refused:
        release.release(notebook, "lab")
    assert str(refused.value).startswith(reason)


@pytest.mark.parametrize(
    "text, reason",
    [
        ("{", "is not a notebook of format 4.5"),
        ("[]", "is not a notebook of format 4.5"),
        (nbformat.writes(solution(new_code_cell("1"))).replace('"id"', '"no"'),
         "with an id in every cell"),
        (nbformat.writes(solution(new_code_cell("1", id="a"), new_code_cell("2", id="b")))
         .replace('"id": "b"', '"id": "a"'),
         "two cells have the same id"),
    ],
)  # fmt: skip
def test_what_is_not_a_notebook_with_ids_is_refused(course, capsys, text, reason):
    (course / "solutions" / "one.ipynb").write_text(text)
    assert release.main([]) == 1
    said = capsys.readouterr().out
    assert "solutions/one.ipynb" in said and reason in said


def test_without_solutions_it_says_where_to_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert release.main([]) == 1
    assert "run this in the folder that holds solutions/ and labs/" in capsys.readouterr().out
