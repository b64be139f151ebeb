"""Every check is tested on wrong answers, each of which must hear what is meant for it."""

import re

import pytest
import zoo_lab01

from pp_lab.course import lab01

ZOOS = {"lab01": (lab01, zoo_lab01)}


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


@pytest.mark.parametrize(("check", "answers"), animals("WRONG"))
def test_wrong_answers_hear_what_is_meant_for_them(check, answers):
    *answers, message = answers
    score = check(*answers)
    assert score < check.points, str(score)
    said = "\n".join(text for _, text in score.reasons)
    assert re.search(message, said, re.DOTALL), said


@pytest.mark.parametrize("name", exercises(lab01))
def test_stubs_are_not_attempted(name):
    def stub(rank):
        raise NotImplementedError

    def function(*arguments):
        raise NotImplementedError

    programs = ("gpipe", "one_f_one_b")
    stubs = [stub if name in programs else function] * len(zoo_lab01.RIGHT[name][0])
    score = exercises(lab01)[name](*stubs)
    assert (score, score.reasons) == (0, [("note", "not attempted")])
