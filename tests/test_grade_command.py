"""`python -m pp_lab.grade`, from files to files, with nbval in between."""

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from pathlib import Path

import abuse
import pytest

ROOT = Path(__file__).parent.parent
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}
NAMES = ("solved", "half solved", "hard-codes the visible numbers", "not a notebook")
EXTRA = '''
from pp_lab.course.exercise import exercise

@exercise(points=2)
def bubble(verdict, answer):
    """Only graders see this."""
    verdict.expect(answer(1000, 1) > 0.9, "SECRET", "SECRET: nearly all of it is idle", points=2)
'''


def command(*args):
    return [sys.executable, "-m", "pp_lab.grade", *map(str, args)]


def run(folder, *args):
    return subprocess.run(
        command(*args), cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=300
    )


@pytest.fixture(scope="module")
def graded(tmp_path_factory):
    """(folder, what was said): four submissions, graded with a further hidden check."""
    folder = tmp_path_factory.mktemp("course")
    abuse.write_all(folder)
    (folder / "some").mkdir()
    for name in NAMES:
        shutil.copy(folder / "submitted" / f"{abuse.slug(name)}.ipynb", folder / "some")
    (folder / "hidden.py").write_text(EXTRA)
    args = ["some", "--out", "out", "--jobs", 2, "--seed", "7", "--extra", "hidden.py"]
    return folder, run(folder, *args), args


def table(folder):
    """The rows of grades.csv."""
    text = (folder / "out" / "grades.csv").read_text("utf-8")
    return list(csv.DictReader(text.splitlines()))


def page(folder, name):
    return (folder / "out" / "feedback" / f"{abuse.slug(name)}.html").read_text("utf-8")


@pytest.mark.timeout(300)
def test_the_table_and_grades_csv_give_each_exercise_its_marks(graded):
    folder, done, _ = graded
    rows = table(folder)
    marks = {row["submission"]: [row[n] for n in (*abuse.EXERCISES, "bubble (extra)", "points")]
             for row in rows}  # fmt: skip
    assert marks == {
        "solved": ["1", "2", "3", "2", "8"],
        "half-solved": ["1", "2", "0", "2", "5"],
        "hard-codes-the-visible-numbers": ["0", "0", "0", "0", "0"],
        "not-a-notebook": ["0", "0", "0", "0", "0"],
    }, done.stderr
    assert "solved                              1    2    2    3      8" in done.stdout
    assert done.returncode == 1  # one of them could not be graded
    assert "not a notebook" in next(r["error"] for r in rows if r["submission"][:3] == "not")


def test_junit_xml_names_exercises_and_has_their_points(graded):
    folder, *_ = graded
    cases = ET.parse(folder / "out" / "junit" / "half-solved.xml").iter("testcase")
    found = {}
    for case in cases:
        properties = {p.get("name"): float(p.get("value")) for p in case.iter("property")}
        found[case.get("name")] = properties, case.find("failure") is not None
    assert found == {
        "bubble": ({"points": 1, "of": 1}, False),
        "bubble (extra)": ({"points": 2, "of": 2}, False),
        "steps": ({"points": 2, "of": 2}, False),
        "gpipe": ({"points": 0, "of": 3}, True),
    }


def test_a_page_for_each_learner_shows_their_cells_and_reasons(graded):
    folder, *_ = graded
    text = page(folder, "half solved")
    assert "5 of 8" in text and "return (p - 1) / (m + p - 1)" in text and "not attempted" in text


def test_no_page_shows_a_hidden_test_or_a_solution(graded):
    folder, *_ = graded
    result = json.loads(
        (folder / "out" / "results" / f"{abuse.slug(NAMES[2])}.json").read_text("utf-8")
    )
    hidden = [text for _, text in result["exercises"]["bubble"]["hidden"]]
    assert hidden and "KeyError" in hidden[-1]  # the instructor sees at which size it failed
    for name in NAMES:
        assert "SECRET" not in page(folder, name) and "KeyError" not in page(folder, name)
    assert "not for all of those that were drawn" in page(folder, NAMES[2])
    assert "rank.send_forward" not in page(folder, "half solved")


def test_what_is_graded_already_is_not_graded_again(graded):
    folder, _, args = graded
    before = page(folder, "solved")
    done = run(folder, *args)
    assert "3 of 4 were graded before" in done.stdout
    assert page(folder, "solved") == before


@pytest.mark.timeout(300)
def test_an_interrupted_grading_leaves_nothing_and_goes_on(graded, tmp_path):
    folder, *_ = graded
    shutil.copytree(folder / "solutions", tmp_path / "solutions")
    (tmp_path / "two").mkdir()
    good = (folder / "some" / "solved.ipynb").read_bytes()
    slow = json.dumps(abuse.answers(abuse.course(), bubble=abuse.WAITS)).encode()
    for name, data in (("a", good), ("b", slow)):
        (tmp_path / "two" / f"{name}.ipynb").write_bytes(data)
    process = subprocess.Popen(
        command("two", "--jobs", 1, "--timeout", 60), cwd=tmp_path, env=ENVIRONMENT, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    first = tmp_path / "grades" / "results" / "a.json"
    limit = time.monotonic() + 100
    while not first.exists() and time.monotonic() < limit:
        time.sleep(0.2)
    time.sleep(4)  # into the second one
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 130 and "interrupted" in said, said
    assert not (tmp_path / "grades" / "results" / "b.json").exists()
    (tmp_path / "two" / "b.ipynb").write_bytes(good)
    done = run(tmp_path, "two", "--jobs", 1, "--timeout", 60)
    assert "1 of 2 were graded before" in done.stdout and done.returncode == 0, done.stderr


@pytest.mark.timeout(200)
def test_self_gives_the_same_verdicts_and_says_what_is_next(graded):
    folder, *_ = graded
    done = run(folder, "--self", "some/half-solved.ipynb")
    lines = done.stdout.splitlines()
    assert "bubble: 1 of 1" in lines and "gpipe: 0 of 3" in lines and "3 of 6 points." in lines
    assert lines[-1].startswith("Next: Exercise 5 · GPipe") and "write it" in lines[-1]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "give submissions, or --self"),
        (["nowhere"], "nowhere: there is no such file or folder"),
        (["solutions", "--extra", "missing.py"], "missing.py cannot be used"),
    ],
)
def test_what_cannot_be_graded_is_one_sentence(graded, args, message):
    folder, *_ = graded
    done = run(folder, *args)
    assert done.returncode == 2 and message in done.stderr and "Traceback" not in done.stderr


NBGRADER = """
import json, sys
from pathlib import Path
from nbgrader.apps import NbGraderAPI
from traitlets.config import Config

root = Path(sys.argv[1])
config = Config()
config.CourseDirectory.root = str(root)
config.CourseDirectory.course_id = "course"
api = NbGraderAPI(config=config)
done = api.generate_assignment("ps")
assert done["success"], done["log"]
lab = json.loads((root / "release/ps/short.ipynb").read_text())
for path in sorted(root.glob("theirs/*.ipynb")):
    sources = {c["id"]: c["source"] for c in json.loads(path.read_text())["cells"]}
    for cell in lab["cells"]:
        if cell["metadata"].get("pp_lab", {}).get("role") == "answer":
            cell["source"] = sources[cell["id"]]
    folder = root / "submitted" / path.stem / "ps"
    folder.mkdir(parents=True)
    (folder / "short.ipynb").write_text(json.dumps(lab))
    done = api.autograde("ps", path.stem)
    assert done["success"], done["log"]
    with api.gradebook as book:
        found = book.find_submission("ps", path.stem)
        print("marks", path.stem, *(g.auto_score for n in found.notebooks for g in n.grades))
"""
PARTLY = """
def gpipe(rank):
    for i in range(rank.microbatches):
        rank.send_forward(i, rank.forward(i, rank.recv_forward(i)))
        rank.send_backward(i, rank.backward(i, rank.recv_backward(i)))
"""


@pytest.mark.timeout(400)
def test_nbgrader_gives_the_same_marks(tmp_path):
    pytest.importorskip("nbgrader")
    (tmp_path / "source" / "ps").mkdir(parents=True)
    (tmp_path / "solutions").mkdir()
    (tmp_path / "theirs").mkdir()
    for folder in ("source/ps", "solutions"):
        (tmp_path / folder / "short.ipynb").write_text(json.dumps(abuse.course()), "utf-8")
    half = abuse.KINDS["half solved"][0]
    makers = {"solved": abuse.course, "unsolved": abuse.unsolved, "half": half,
              "partly": abuse.other(gpipe=PARTLY)}  # fmt: skip
    for name, make in makers.items():
        (tmp_path / "theirs" / f"{name}.ipynb").write_text(json.dumps(make()), "utf-8")
    ours = run(tmp_path, "theirs", "--out", "out")
    rows = table(tmp_path)
    marks = {r["submission"]: sorted(float(r[n]) for n in abuse.EXERCISES) for r in rows}
    # nbgrader calls alembic by its name.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    theirs = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", NBGRADER, str(tmp_path)], cwd=tmp_path,
        env={**ENVIRONMENT, "PATH": path}, capture_output=True, text=True,
    )  # fmt: skip
    found = [line.split()[1:] for line in theirs.stdout.splitlines() if line[:6] == "marks "]
    assert {name: sorted(map(float, m)) for name, *m in found} == marks, ours.stderr + theirs.stderr
    assert marks["solved"] == [1, 2, 3] and marks["unsolved"] == [0, 0, 0]
    assert marks["half"] == [0, 1, 2] and 0 < marks["partly"][-1] < 3


def test_the_page_of_who_solved_it_shows_their_timeline(graded):
    folder, *_ = graded
    assert "data:image/png" in page(folder, "solved")
