"""Every check is tested on wrong answers, each of which must hear what is meant for it."""

import importlib
import math
import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
LABS = sorted(p.stem for p in (FOLDER.parent / "pp_lab" / "course").glob("lab[0-9][0-9].py"))
ZOOS = {
    lab: (importlib.import_module(f"pp_lab.course.{lab}"), importlib.import_module(f"zoo_{lab}"))
    for lab in LABS
}


def exercises(lab):
    """{name: check} of a lab's module."""
    return {name: check for name, check in vars(lab).items() if hasattr(check, "points")}


def animals(kind):
    return [
        pytest.param(check, answers, id=f"{lab}-{name}-{number}")
        for lab, (module, zoo) in ZOOS.items()
        for name, check in exercises(module).items()
        for number, answers in enumerate(getattr(zoo, kind)[name])
    ]


@pytest.mark.parametrize("lab", ZOOS)
def test_every_exercise_has_six_wrong_answers_and_two_right_ones(lab):
    module, zoo = ZOOS[lab]
    assert set(exercises(module)) == set(zoo.WRONG) == set(zoo.RIGHT)
    for name in exercises(module):
        assert len(zoo.WRONG[name]) >= 6
        assert len(zoo.RIGHT[name]) >= 2


@pytest.mark.parametrize(("check", "answers"), animals("RIGHT"))
def test_right_answers_get_all_points(check, answers):
    score = check(*answers)
    assert score == score.of == check.points, str(score)


GARBAGE = [math.nan, math.inf, None, -1, "text", [], [[None]], {}, (math.nan, math.nan), object()]


@pytest.mark.parametrize("value", GARBAGE, ids=lambda value: repr(value).split(" at ")[0])
@pytest.mark.parametrize("lab", ZOOS)
def test_what_is_no_answer_earns_nothing_and_hears_a_sentence(lab, value):
    module, zoo = ZOOS[lab]
    for name, check in exercises(module).items():
        score = check(*[lambda *arguments: value] * len(zoo.RIGHT[name][0]))
        assert score < check.points, f"{name}: {score}"
        assert score.reasons[-1][0] == "no" and len(score.reasons[-1][1]) > 20, f"{name}: {score}"


@pytest.mark.parametrize(("check", "answers"), animals("WRONG"))
def test_wrong_answers_hear_what_is_meant_for_them(check, answers):
    *answers, message = answers
    score = check(*answers)
    assert score < check.points, str(score)
    said = "\n".join(text for _, text in score.reasons)
    assert re.search(message, said, re.DOTALL), said


@pytest.mark.parametrize(
    ("check", "programs", "answers"),
    [
        pytest.param(check, name in zoo.PROGRAMS, len(zoo.RIGHT[name][0]), id=f"{lab}-{name}")
        for lab, (module, zoo) in ZOOS.items()
        for name, check in exercises(module).items()
    ],
)
def test_stubs_are_not_attempted(check, programs, answers):
    def program(rank):
        raise NotImplementedError

    def function(*arguments):
        raise NotImplementedError

    score = check(*[program if programs else function] * answers)
    assert (score, score.reasons) == (0, [("note", "not attempted")])
