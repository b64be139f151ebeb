"""Building a schedule op by op: the ready set, the reasons, and the name of what was built."""

import random

import pytest

from pp_lab import Op, ScheduleError, schedules, verify
from pp_lab.schedule.by_hand import ByHand

FAMILY = {
    "GPipe": schedules.gpipe, "1F1B": schedules.one_f_one_b, "eager 1F1B": schedules.eager_1f1b,
    "ZB-H1": schedules.zb_h1, "ZB-H2": schedules.zb_h2,
}  # fmt: skip


def F(r, i):
    return Op("F", r, i)


def test_at_first_only_the_first_rank_can_begin():
    hand = ByHand(3, 2)
    assert [hand.ready(r) for r in range(3)] == [[F(0, 0), F(0, 1)], [], []]


def test_what_an_op_makes_is_ready_for_who_needs_it():
    hand = ByHand(2, 1)
    hand.add(0, F(0, 0))
    assert hand.ready(0) == [] and hand.ready(1) == [F(1, 0)]
    hand.add(1, F(1, 0))
    assert hand.ready(1) == [Op("B", 1, 0)]
    hand.add(1, Op("B", 1, 0))
    assert hand.ready(0) == [Op("B", 0, 0)]


@pytest.mark.parametrize(
    ("rank", "op", "sentence"),
    [
        (1, F(1, 0), "1F0 needs 0F0, which has not run yet"),
        (0, Op("B", 0, 0), "0B0 needs 0F0 and 1B0, which have not run yet"),
        (0, F(1, 0), "1F0 belongs to rank 1"),
        (0, F(0, 2), "there is no micro-batch 2: they are 0 to 1"),
        (0, Op("W", 0, 0), "backwards come as B here, so 0W0 has no place"),
        (5, F(0, 0), "there is no rank 5: ranks are 0 to 1"),
    ],
)
def test_an_op_that_cannot_come_now_is_refused_with_its_reason(rank, op, sentence):
    with pytest.raises(ScheduleError, match=sentence):
        ByHand(2, 2).add(rank, op)


def test_an_op_comes_once_and_undo_takes_back_the_last_one():
    hand = ByHand(2, 1, split=True)
    hand.add(0, F(0, 0))
    assert hand.why_not(0, F(0, 0)) == "0F0 is there already"
    hand.add(1, F(1, 0))
    assert hand.undo() == F(1, 0) and hand.ready(1) == [F(1, 0)]
    assert hand.undo() == F(0, 0) and hand.undo() is None and hand.rows == [[], []]


@pytest.mark.parametrize("split", [False, True])
def test_whatever_is_built_to_the_end_is_legal(split):
    for seed in range(20):
        choose, hand = random.Random(seed), ByHand(3, 3, split)
        while not hand.complete:
            rank = choose.choice([r for r in range(3) if hand.ready(r)])
            hand.add(rank, choose.choice(hand.ready(rank)))
        verify(hand.schedule())


@pytest.mark.parametrize("name", FAMILY)
def test_what_was_built_is_recognised(name):
    made = FAMILY[name](3, 5)
    hand = ByHand(3, 5, split="ZB" in name)
    left = [list(row) for row in made.ranks]
    while not hand.complete:
        for rank, row in enumerate(left):
            while row and hand.why_not(rank, row[0]) is None:
                hand.add(rank, row.pop(0))
    assert name in hand.recognised(FAMILY)
    hand.undo()
    assert hand.recognised(FAMILY) == []
