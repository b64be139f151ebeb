"""The marks of abused notebooks, of the zoo in its sandbox, and of checks with drawn sizes."""

import functools
import json
import random
import re
from pathlib import Path

import abuse
import pytest
import zoo_lab01

from pp_lab.course import lab01
from pp_lab.course.exercise import Verdict, drawn
from pp_lab.course.grading.assemble import Course
from pp_lab.course.grading.main import Grader
from pp_lab.course.grading.service import Service

ROOT = Path(__file__).parent.parent
LIMIT = 10  # seconds for one check; what is graded here takes one or two


@pytest.fixture(scope="module")
def short(tmp_path_factory):
    folder = tmp_path_factory.mktemp("abuse")
    abuse.write_all(folder)
    return folder


@pytest.fixture(scope="module")
def service():
    with Service(["pp_lab.course.lab01", "zoo_lab01"]) as service:
        yield service


@pytest.fixture(scope="module")
def grade(short, service):
    """A function from the file of a submission to its result, without nbval in between."""
    course = Course(short / "solutions" / "short.ipynb")
    closed = [short / "solutions", ROOT / "solutions"]
    grader = Grader([course], service, "1", LIMIT, closed=closed)
    grader._verdicts = lambda *about: {
        name: service.verdict(points, *tasks) for name, points, tasks in grader._tasks(*about)
    }
    return functools.cache(lambda path: grader.grade(path.stem, path.read_bytes())[0])


def points(result):
    return {name: e["points"] for name, e in result["exercises"].items()}


@pytest.mark.parametrize("kind", abuse.KINDS)
def test_an_abused_notebook_gets_the_marks_that_it_earns(grade, short, kind):
    _, expected = abuse.KINDS[kind]
    result = grade(short / "submitted" / f"{abuse.slug(kind)}.ipynb")
    assert points(result) == expected, json.dumps(result, indent=1)
    broken = kind in ("not a notebook", "an empty file", "cut off in the middle")
    assert bool(result["error"]) == broken


@pytest.mark.parametrize(
    ("kind", "exercise", "message"),
    [
        ("reads the solution from disk", "bubble", "does not allow .*solutions.* to be read"),
        ("opens a connection", "bubble", "does not allow socket"),
        ("a fork bomb", "bubble", "does not allow os.fork"),
        ("starts a program", "bubble", "does not allow subprocess"),
        ("kills its parent", "bubble", "does not allow os.kill"),
        ("all memory", "bubble", "MemoryError"),
        ("fills the disk", "bubble", "File too large"),
        ("os._exit", "bubble", "ended its own process: exit code 0"),
        ("os._exit in a rank", "gpipe", "rank 0 .*ended its own process: exit code 0"),
        ("an endless loop in a rank", "gpipe", "is there an endless loop"),
        (
            "forges the report of a rank",
            "gpipe",
            "rank 0 never ran the forward of micro-batch 0",
        ),
        ("hard-codes the visible numbers", "bubble", "not for all of those that were drawn"),
        ("a pickle that runs code", "bubble", "Bomb object .*, not a number"),
    ],
)
def test_what_fails_is_told_why(grade, short, kind, exercise, message):
    result = grade(short / "submitted" / f"{abuse.slug(kind)}.ipynb")
    told = "\n".join(text for _, text in result["exercises"][exercise]["reasons"])
    assert re.search(message, told, re.DOTALL), told
    assert "pp_lab/course" not in told


@pytest.mark.parametrize(
    ("kind", "remark"),
    [
        ("solved", None),
        ("metadata stripped", "answer cell gpipe has lost its metadata: found by its cell id"),
        ("metadata stripped, cell ids renewed", "found by the functions that it defines"),
        ("answers made raw cells", "answer cell gpipe was made a raw cell: graded as code"),
        ("cells in reverse order", "answer cells were moved"),
        ("every cell twice", "answer cell gpipe is there 2 times"),
        ("checks deleted", "check cell gpipe-check is missing: the lab's own was used"),
        ("checks that pass", "check cell gpipe-check was changed: the lab's own was used"),
        ("an answer deleted", "answer cell steps is missing"),
        ("tags to skip and to fail, solved", "answer cell gpipe has tags without effect"),
        ("magics in an answer", "lines with % or ! were left out"),
        ("forges the report of a rank", "it calls the library's own schedules"),
    ],
)
def test_what_else_was_changed_is_reported(grade, short, kind, remark):
    remarks = grade(short / "submitted" / f"{abuse.slug(kind)}.ipynb")["remarks"]
    assert (remark in "\n".join(remarks)) if remark else remarks == []


def in_a_sandbox(service, name, kind, number):
    """The grader's verdict on one answer of the zoo, with the sizes of the notebook."""
    course = Course(ROOT / "solutions" / "pp_lab.ipynb")
    exercise = next(e for e in course.exercises if e.name == name)
    functions = ", ".join(re.findall(r"\w+", exercise.check.split("(")[1]))
    source = f"from zoo_lab01 import {kind}\n{functions}, *_ = {kind}[{name!r}][{number}]"
    task = dict(
        name=name, imports=course.imports, check=exercise.check, cells=[("answer", source)],
        extra=None, seed=None, closed=[], timeout=LIMIT,
    )  # fmt: skip
    return service._judge(task) | {"of": exercise.points}


WRONG = [
    ("steps", 0), ("steps", 3), ("steps", 7), ("steps", 9), ("steps", 10),
    ("exchange", 0), ("exchange", 3), ("exchange", 4), ("exchange", 5),
    ("gpipe", 0), ("gpipe", 1), ("gpipe", 3), ("gpipe", 7), ("gpipe", 8), ("gpipe", 9),
    ("one_f_one_b", 1), ("one_f_one_b", 5), ("one_f_one_b", 9), ("as_data", 5), ("cut", 9),
]  # fmt: skip


@pytest.mark.parametrize(("name", "number"), WRONG)
def test_in_a_sandbox_a_wrong_answer_hears_the_same_and_gets_the_same(service, name, number):
    *answers, message = zoo_lab01.WRONG[name][number]
    verdict = in_a_sandbox(service, name, "WRONG", number)
    told = "\n".join(text for _, text in verdict["reasons"])
    assert re.search(message, told, re.DOTALL), told
    assert verdict["points"] == getattr(lab01, name)(*answers)


@pytest.mark.parametrize("name", zoo_lab01.RIGHT)
def test_in_a_sandbox_a_right_answer_gets_all_points(service, name):
    verdict = in_a_sandbox(service, name, "RIGHT", -1)
    assert verdict["points"] == verdict["of"], verdict


# ---- drawn sizes


def test_without_a_seed_a_check_has_the_sizes_that_it_names():
    assert Verdict().sizes([(4, 8), (1, 3)]) == [(4, 8), (1, 3)]
    assert Verdict().seed(7) == 7


def test_drawn_sizes_are_of_the_same_kind_and_others():
    visible = [(1, 1), (2, 1), (2, 2), (3, 4), (4, 2), (4, 8), (5, 3), (1, 6), (8, 32)]
    changed = 0
    for seed in range(200):
        with drawn(seed):
            sizes = Verdict("x").sizes(visible)
        for (p, m), (q, n) in zip(visible, sizes, strict=True):
            assert q >= 1 and n >= 1 and abs(q - p) <= 2
            assert (q == 1) == (p == 1) and (q >= 3) == (p >= 3) or p == 2
            assert p == 1 or (n > q) - (n < q) == (m > p) - (m < p)
            changed += (q, n) != (p, m)
    assert changed > 0.8 * 200 * len(visible)


def test_the_same_seed_draws_the_same_and_another_seed_another():
    def sizes(seed):
        with drawn(seed):
            verdict = Verdict("gpipe")
        return verdict.sizes([(4, 8)] * 9), verdict.seed(1)

    assert sizes("a 1") == sizes("a 1") != sizes("a 2")


@pytest.mark.parametrize("name", [n for n in zoo_lab01.RIGHT if n not in ("gpipe", "one_f_one_b")])
def test_a_right_answer_holds_for_drawn_sizes(name):
    with drawn(random.randrange(10**6)):
        for answers in zoo_lab01.RIGHT[name]:
            score = getattr(lab01, name)(*answers)
            assert score.passed, str(score)
