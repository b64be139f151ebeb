"""How good a schedule can be: the bound, and for tiny sizes the optimum itself."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from random_schedules import schedules as random_schedules

from pp_lab.schedule import (
    Cost,
    LabError,
    Op,
    Pair,
    Placement,
    Schedule,
    lower_bound,
    optimum,
    schedules,
    simulate,
    verify,
    vshape,
)
from pp_lab.schedule.bound import bound_of

F1B2 = Cost(F=1, B=2)


@pytest.mark.parametrize(
    "schedule",
    [
        schedules.gpipe(4, 8),
        schedules.one_f_one_b(8, 32),
        schedules.interleaved(4, 8, 2),
        schedules.zb_h1(4, 8),
        schedules.zb_v(4, 8),
        schedules.dualpipe(2, 8),
    ],
    ids=lambda s: s.name,
)
def test_these_schedules_are_the_best_on_their_placement(schedule):
    cost = Cost(F=1, B=2, pair=3).split(schedule.stages // schedule.p)
    assert simulate(schedule, cost).makespan == bound_of(schedule, cost)


def test_memory_costs_v_half_1_and_v_min_4_above_the_bound_of_their_placement():
    cost = F1B2.split(2)
    bound = lower_bound(4, 8, cost, vshape(4), split=True)
    assert bound == Fraction(51, 2)
    assert [
        simulate(s(4, 8), cost).makespan - bound
        for s in (schedules.zb_v, schedules.v_half, schedules.v_min)
    ] == [0, 1, 4]


def test_a_split_backward_lowers_the_bound_and_a_cheap_pair_too():
    assert lower_bound(4, 8, F1B2) == 33
    assert lower_bound(4, 8, F1B2, split=True) == 27
    cheap = Cost(F=1, B=2, pair=2)
    assert lower_bound(4, 8, cheap, pairs=True) < lower_bound(4, 8, cheap)


def test_a_micro_batch_may_spend_less_in_a_pair_than_alone():
    """Then even its own way through the stages is no bound, if it waits for messages."""
    f, b, cost = "F", "B", Cost(F=3, B=3, pair=1, comm=100)
    rows = [
        [Op(f, 0, 0), Op(f, 1, 0), Op(b, 1, 0), Pair(Op(f, 1, 1), Op(b, 0, 0)), Op(b, 1, 1)],
        [Op(f, 0, 1), Op(b, 0, 1)],
    ]
    schedule = Schedule("one copy on one rank", rows, Placement("its own", ((0, 0), (1, 0))), 2)
    assert simulate(schedule, cost).makespan == 210 < 4 * 3 + 2 * 100
    assert bound_of(schedule, cost) <= 210


def test_p8_m32_with_f_b_1_takes_at_least_78_in_any_order_and_cannot_take_71():
    assert lower_bound(8, 32, Cost(F=1, B=1)) == 78


def test_the_slowest_stage_and_the_way_of_one_micro_batch_bound_too():
    assert lower_bound(2, 16, Cost(F=[1, 5], B=[1, 5])) == 1 + 16 * 10 + 1
    assert lower_bound(4, 1, Cost(F=1, B=2, comm=10)) == 12 + 6 * 10


@pytest.mark.parametrize("p, m", [(1, 3), (2, 2), (2, 3), (3, 3), (3, 4)])
def test_1f1b_is_optimal_and_zb_h1_is_where_backwards_may_be_split(p, m):
    assert (
        simulate(schedules.one_f_one_b(p, m), F1B2).makespan
        == simulate(optimum(p, m, F1B2), F1B2).makespan
    )
    best = optimum(p, m, F1B2, split=True)
    verify(best)
    if m >= p:
        assert simulate(best, F1B2).makespan == simulate(schedules.zb_h1(p, m), F1B2).makespan


def test_a_memory_cap_costs_time_one_activation_less_at_a_time():
    times = {}
    for cap in (1, 2, 3):
        best = optimum(3, 4, F1B2, memory_cap=cap)
        verify(best, memory_cap=cap)
        times[cap] = simulate(best, F1B2).makespan
    assert times == {1: 36, 2: 21, 3: 18}, "one activation: one micro-batch after the other"


def test_with_latency_1f1b_is_not_the_best_and_eager_1f1b_is():
    cost = Cost(F=1, B=2, comm=Fraction(1, 2))
    best = simulate(optimum(2, 4, cost), cost).makespan
    assert best == simulate(schedules.eager_1f1b(2, 4), cost).makespan
    assert best < simulate(schedules.one_f_one_b(2, 4), cost).makespan


def test_the_optimum_on_a_v_under_v_mins_memory_shows_what_the_repeated_block_leaves():
    cost = Cost(F=1, I=1, W=1)
    best = simulate(optimum(2, 3, cost, vshape(2), split=True, memory_cap=4), cost).makespan
    assert bound_of(schedules.v_min(2, 3), cost) <= best
    assert best <= simulate(schedules.v_min(2, 3), cost).makespan


def test_what_does_not_fit_has_no_optimum_and_what_is_too_large_says_so():
    with pytest.raises(LabError, match="no schedule of p=2 m=2 keeps within 0 activations"):
        optimum(2, 2, F1B2, memory_cap=0)
    with pytest.raises(LabError, match="take a smaller p or m, or more time"):
        optimum(6, 16, F1B2, split=True, memory_cap=3, seconds=0.05)
    with pytest.raises(ValueError, match="ints or Fractions"):
        optimum(2, 2, Cost(F=0.5))


def test_without_the_solver_one_line_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "ortools.sat.python", None)
    with pytest.raises(LabError, match=r'pip install "pp_lab\[optimum\]"'):
        optimum(2, 2)


@settings(max_examples=10, deadline=None)
@given(random_schedules(most_ranks=2, most_stages=3, most_microbatches=2))
def test_no_legal_schedule_beats_the_optimum_and_the_optimum_not_the_bound(schedule):
    if any(len(item.parts) == 2 for row in schedule.ranks for item in row):
        return
    cost, split = F1B2, any(op.kind == "W" for row in schedule.ranks for op in row)
    if split and any(op.kind == "B" for row in schedule.ranks for op in row):
        return  # the solver splits every backward or none
    best = optimum(schedule.p, schedule.microbatches, cost, schedule.placement, split)
    verify(best)
    least = simulate(best, cost).makespan
    assert bound_of(schedule, cost) <= least <= simulate(schedule, cost).makespan
