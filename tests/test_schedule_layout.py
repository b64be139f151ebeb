"""Where a rank stands on the axes of a grid, and schedules that are spread over one."""

from itertools import product

import pytest

from pp_lab import Cost, Grid, Schedule, ScheduleError, schedules, simulate, verify
from pp_lab.schedule.grid import AXES, GridError
from pp_lab.schedule.op import Op, needs


def test_64_gpus_are_tp_8_pp_4_dp_2_as_megatron_lays_them_out():
    grid = Grid(tp=8, dp=2, pp=4)
    assert grid.size == 64
    assert grid.group("tp", 0) == tuple(range(8))  # one machine
    assert grid.group("dp", 0) == (0, 8)
    assert grid.group("pp", 0) == (0, 16, 32, 48)  # outermost: the farthest apart
    assert len(grid.groups("tp")) == 8 and len(grid.groups("pp")) == 16
    assert grid.coordinates(63) == dict(tp=7, cp=0, ep=0, dp=1, pp=3)
    assert str(grid) == "TP 8 × DP 2 × PP 4"


@pytest.mark.parametrize("order", ["tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp", "pp-dp-ep-cp-tp"])
def test_coordinates_and_ranks_are_each_other_s_inverse(order):
    grid = Grid(tp=2, cp=3, ep=1, dp=2, pp=4, order=order)
    for rank in range(grid.size):
        assert grid.rank(**grid.coordinates(rank)) == rank
    assert grid.coordinates(1)[order.split("-")[0]] == 1  # the left varies fastest


def test_groups_on_an_axis_are_a_partition_of_the_ranks():
    grid = Grid(tp=2, cp=3, dp=2, pp=2)
    for axes in (*AXES, "dp-cp", "tp-pp", "tp-cp-ep-dp-pp"):
        groups = grid.groups(axes)
        assert sorted(rank for group in groups for rank in group) == list(range(grid.size))
        for group in groups:
            for a, b in product(group, group):
                here, there = grid.coordinates(a), grid.coordinates(b)
                assert all(here[x] == there[x] for x in AXES if x not in axes.split("-"))
    assert grid.group("embedding", 0) == (grid.rank(), grid.rank(pp=1))


@pytest.mark.parametrize("make, message", [
    (lambda: Grid(tp=0), "tp=0: give a whole number"),
    (lambda: Grid(tp=True), "tp=True: give a whole number"),
    (lambda: Grid(order="tp-pp"), "name each of tp, cp, ep, dp, pp once"),
    (lambda: Grid(tp=2).coordinates(2), "there is no rank 2: they are 0 to 1"),
    (lambda: Grid(tp=2).rank(tp=2), "tp=2: it is 0 to 1"),
    (lambda: Grid(tp=2).rank(xp=0), "xp is no axis"),
    (lambda: Grid(tp=2).group("xp", 0), "there is no group 'xp'"),
    (lambda: Grid(pp=2).spread(schedules.gpipe(3, 4)), "is for 3 ranks, and the grid has pp=2"),
    (lambda: Grid(pp=4).spread(schedules.dualpipe(4, 8)), "has 2 copies of the model already"),
])  # fmt: skip
def test_what_cannot_be_is_refused(make, message):
    with pytest.raises(GridError, match=message):
        make()


@pytest.mark.parametrize("make", [
    lambda: schedules.gpipe(2, 4), lambda: schedules.one_f_one_b(3, 5),
    lambda: schedules.zb_v(2, 4), lambda: schedules.interleaved(2, 4, 2),
    lambda: schedules.combined_1f1b(2, 4, 2),
])  # fmt: skip
@pytest.mark.parametrize("order", ["tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp"])
def test_copies_on_a_grid_are_legal_and_take_what_one_takes(make, order):
    schedule, cost = make(), Cost(F=1, B=2, sync=2)
    spread = Grid(dp=3, pp=schedule.p, order=order).spread(schedule)
    verify(spread)
    whole, alone = simulate(spread, cost), simulate(schedule, cost)
    assert whole.makespan == alone.makespan and whole.bubble == alone.bubble
    assert sorted(whole.peak_activations) == sorted(alone.peak_activations * 3)


def test_the_first_stage_alone_reduces_after_the_last_backward():
    for p, m, sync in product((2, 4), (4, 8), (1, 3)):
        trace = simulate(schedules.one_f_one_b(p, m), Cost(F=1, B=2, sync=sync))
        plain = simulate(schedules.one_f_one_b(p, m), Cost(F=1, B=2))
        assert trace.makespan == plain.makespan + sync
        ends = [e.end for e in trace.events if e.lane == "all-reduce"]
        hidden = [end <= plain.makespan for end in ends]
        assert hidden[0] is False and all(hidden[r] for r in range(1, p) if 2 * r >= sync)


def test_a_reduction_needs_the_weight_gradient_and_is_on_nobody_s_list():
    assert needs(Op("R", 1, 3), 4) == (Op("W", 1, 3),)
    trace = simulate(schedules.zb_h1(4, 8), Cost(F=1, B=2, sync=1))
    made = {event.op: event.end for event in trace.events}
    for event in trace.events:
        if event.op.kind == "R":
            assert event.start == made[Op("W", *event.op[1:])]
    with pytest.raises(ScheduleError):
        verify(Schedule("mine", [[Op("F", 0, 0), Op("B", 0, 0), Op("R", 0, 0)]]))


def test_two_copies_reduce_when_both_are_done_one_stage_at_a_time():
    schedule = schedules.dualpipe(4, 8)
    trace = simulate(schedule, Cost(F=1, B=2, sync=5))
    last = {}
    for event in trace.events:
        for op in event.op.parts:
            if op.kind in "BW":
                last[op.stage] = max(last.get(op.stage, 0), event.end)
    lanes = {rank: [e for e in trace.events if e.rank == rank and e.lane == "all-reduce"]
             for rank in range(4)}  # fmt: skip
    for events in lanes.values():
        assert len(events) == 2 and events[0].end <= events[1].start
        assert all(e.start >= last[e.op.stage] for e in events)
    for stage in range(4):
        times = {(e.start, e.end) for of in lanes.values() for e in of if e.op.stage == stage}
        assert len(times) == 1


@pytest.mark.parametrize("sync", [0, 2])
@pytest.mark.parametrize("blocking", [False, True])
def test_with_reductions_every_idle_moment_still_has_a_reason(sync, blocking):
    for schedule in (schedules.one_f_one_b(3, 6), schedules.gpipe(4, 4), schedules.zb_h1(3, 6)):
        trace = simulate(schedule, Cost(F=1, B=2, comm=1, sync=sync, blocking=blocking))
        path = trace.critical_path()
        assert path[0].start == 0 and path[-1].end == trace.makespan
        assert all(a.end <= b.start for a, b in zip(path, path[1:], strict=False))
        for rank in range(schedule.p):
            for time in range(int(trace.makespan)):
                trace.why_idle(rank, time)
        order = [e.rank for e in trace.events]
        assert order == sorted(order)


def test_a_blocking_cost_and_chunks_reduce_too():
    blocking = Cost(F=1, B=2, comm=1, sync=2, blocking=True)
    plain = Cost(F=1, B=2, comm=1, blocking=True)
    s = schedules.one_f_one_b(3, 6)
    assert simulate(s, blocking).makespan == simulate(s, plain).makespan + 2
    assert Cost(F=1, B=2, sync=3).split(2).sync == Cost(sync=3).sync / 2
    assert "sync=3" in str(Cost(sync=3)) and Cost(F=1, B=2, sync=[1, 2]).of(Op("R", 1, 0)) == 2


def test_a_rank_reduces_its_stages_in_the_order_in_which_they_are_complete():
    row = [Op(kind, int(stage), 0) for kind, stage in "F0 F1 I1 I0 W0 W1".split()]
    trace = simulate(Schedule("mine", [row]), Cost(F=1, B=2, sync=2))
    spans = [(e.op.stage, e.start, e.end) for e in trace.events if e.op.kind == "R"]
    assert spans == [(0, 5, 7), (1, 7, 9)]
