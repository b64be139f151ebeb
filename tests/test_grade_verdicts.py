"""The marks of abused notebooks, of the zoo in its sandbox, and of checks with drawn sizes."""

import functools
import json
import random
import re
from pathlib import Path

import abuse
import pytest
from test_course_zoo import ZOOS, exercises

from pp_lab.course.exercise import Verdict, drawn
from pp_lab.grade.assemble import Course
from pp_lab.grade.grader import Grader
from pp_lab.grade.service import Service

ROOT = Path(__file__).parent.parent
LIMIT = 10  # seconds for one check; what is graded here takes one or two


@pytest.fixture(scope="module")
def short(tmp_path_factory):
    folder = tmp_path_factory.mktemp("abuse")
    abuse.write_all(folder)
    return folder


@pytest.fixture(scope="module")
def service():
    modules = [module.__name__ for pair in ZOOS.values() for module in pair]
    with Service(modules) as service:
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


@functools.cache
def courses():
    """{lab: Course}, by the module of its checks."""
    found = map(Course, sorted((ROOT / "solutions").glob("*.ipynb")))
    return {course.preload[0].rpartition(".")[2]: course for course in found}


def in_a_sandbox(service, lab, name, kind, number):
    """The grader's verdict on one answer of the zoo, with the sizes of the notebook."""
    course = courses()[lab]
    exercise = next(e for e in course.exercises if e.name == name)
    functions = ", ".join(re.findall(r"\w+", exercise.check.split("(")[1]))
    source = f"from zoo_{lab} import {kind}\n{functions}, *_ = {kind}[{name!r}][{number}]"
    task = dict(
        name=name, imports=course.imports, check=exercise.check, cells=[("answer", source)],
        extra=None, seed=None, closed=[], timeout=LIMIT,
    )  # fmt: skip
    return service._judge(task) | {"of": exercise.points}


def graded(kind, numbers):
    """(lab, exercise, number) of answers of every zoo."""
    return [
        (lab, name, number)
        for lab, (module, zoo) in ZOOS.items()
        for name in exercises(module)
        for number in numbers(len(getattr(zoo, kind)[name]))
    ]


@pytest.mark.parametrize(
    ("lab", "name", "number"), graded("WRONG", lambda count: (0, count // 2, count - 1))
)
def test_in_a_sandbox_a_wrong_answer_hears_the_same_and_gets_the_same(service, lab, name, number):
    module, zoo = ZOOS[lab]
    *answers, message = zoo.WRONG[name][number]
    verdict = in_a_sandbox(service, lab, name, "WRONG", number)
    told = "\n".join(text for _, text in verdict["reasons"])
    message = message.split("\n")[0]  # the line is named of code in an answer cell only
    assert re.search(message, told, re.DOTALL), told
    assert verdict["points"] == exercises(module)[name](*answers)


@pytest.mark.parametrize(("lab", "name", "number"), graded("RIGHT", lambda count: (count - 1,)))
def test_in_a_sandbox_a_right_answer_gets_all_points(service, lab, name, number):
    verdict = in_a_sandbox(service, lab, name, "RIGHT", number)
    assert verdict["points"] == verdict["of"], verdict


@pytest.mark.parametrize("lab", ZOOS)
def test_a_solved_lab_gets_all_points_for_drawn_sizes_and_an_unsolved_one_none(service, lab):
    course = courses()[lab]
    grader = Grader([course], service, "3", 3 * LIMIT, closed=[ROOT / "solutions"])
    grader._verdicts = lambda *about: {
        name: service.verdict(of, *tasks) for name, of, tasks in grader._tasks(*about)
    }
    solved, _, _ = grader.grade("solved", course.path.read_bytes())
    assert solved["points"] == solved["of"] == sum(e.points for e in course.exercises), solved
    unsolved, _, _ = grader.grade("unsolved", (ROOT / "labs" / course.path.name).read_bytes())
    assert unsolved["points"] == 0 and not unsolved["error"]


@pytest.mark.parametrize(("points", "figure"), [(2, "timeline"), (1, "")])
def test_a_timeline_of_drawn_sizes_is_shown_only_to_who_holds_them(monkeypatch, points, figure):
    judged = {"points": points, "reasons": [], "figure": "timeline"}
    monkeypatch.setattr(Service, "_judge", lambda self, task: dict(judged))
    verdict = Service.verdict(object.__new__(Service), 2, "drawn")
    assert (verdict["points"], verdict["figure"]) == (points, figure)


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


@pytest.mark.parametrize(("lab", "name", "number"), graded("RIGHT", range))
def test_a_right_answer_holds_for_drawn_sizes(lab, name, number):
    module, zoo = ZOOS[lab]
    for seed in random.sample(range(10**6), 2):
        with drawn(seed):
            score = exercises(module)[name](*zoo.RIGHT[name][number])
        assert score.passed, f"seed {seed}\n{score}"
