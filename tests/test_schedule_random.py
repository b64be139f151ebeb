"""What holds for any legal schedule, placement and cost (hypothesis)."""

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_schedules import costs, longest_paths, schedules

from pp_lab.schedule import (
    Cost,
    Move,
    Pair,
    Schedule,
    ScheduleError,
    lower,
    lower_bound,
    simulate,
    verify,
)
from pp_lab.schedule import schedules as library
from pp_lab.schedule.bound import bound_of

often = settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
seldom = settings(often, max_examples=40)


@often
@given(st.data())
def test_the_simulation_equals_the_longest_paths_of_the_dependency_graph(data):
    schedule = data.draw(schedules())
    cost = data.draw(costs(schedule.stages))
    verify(schedule)
    trace = simulate(schedule, cost)
    assert {e.op: e.end for e in trace.events} == longest_paths(schedule, cost)
    assert all(e.end - e.start == cost.of(e.op) for e in trace.events)


@seldom
@given(st.data())
def test_a_library_schedule_equals_its_longest_paths_too(data):
    p, m, v = data.draw(st.tuples(st.integers(1, 5), st.integers(1, 9), st.integers(1, 3)))
    names = ["gpipe", "one_f_one_b", "eager_1f1b", "zb_h1", "zb_h2", "zb_v", "v_half", "v_min"]
    chunked = ["interleaved", "looped_bfs", "combined_1f1b"]
    name = data.draw(st.sampled_from([*names, *chunked, "dualpipe", "dualpipe_v"]))
    if name.startswith("dualpipe"):
        p, m = (2 * p, 4 * p + 2 * m) if name == "dualpipe" else (p, 2 * p + m)
    schedule = getattr(library, name)(*((p, m, v) if name in chunked else (p, m)))
    cost = data.draw(costs(schedule.stages))
    verify(schedule)
    assert {e.op: e.end for e in simulate(schedule, cost).events} == longest_paths(schedule, cost)


@seldom
@given(schedules(), st.data())
def test_floats_give_what_fractions_give(schedule, data):
    cost = data.draw(costs(schedule.stages))
    floats = Cost(
        **{
            k: [float(x) for x in y] if isinstance(y, tuple) else float(y)
            for k, y in vars(cost).items()
            if k != "blocking"
        }
    )
    exact, rounded = simulate(schedule, cost), simulate(schedule, floats)
    assert rounded.makespan == pytest.approx(float(exact.makespan))
    assert all(isinstance(e.end, float) for e in rounded.events)


@often
@given(schedules(), st.data())
def test_the_lower_bound_is_never_above_a_legal_schedule(schedule, data):
    cost = data.draw(costs(schedule.stages))
    trace = simulate(schedule, cost)
    assert bound_of(schedule, cost) <= trace.makespan
    blocking = replace(cost, blocking=True)
    assert bound_of(schedule, blocking) <= simulate(schedule, blocking).makespan
    assert (
        lower_bound(
            schedule.p, schedule.microbatches, cost, schedule.placement, split=True, pairs=True
        )
        <= trace.makespan
    )


@seldom
@given(schedules(), st.data())
def test_the_critical_path_takes_the_makespan_and_idle_time_is_always_explained(schedule, data):
    trace = simulate(schedule, data.draw(costs(schedule.stages)))
    path = trace.critical_path()
    assert path[0].start == 0 and path[-1].end == trace.makespan
    for before, after in zip(path, path[1:], strict=False):
        hop = trace.cost.comm if before.rank != after.rank else 0
        assert after.start == before.end + hop
    for rank in range(schedule.p):
        for quarter in range(4):
            assert trace.why_idle(rank, Fraction(quarter, 4) * trace.makespan)


@often
@given(schedules(), st.data())
def test_lowered_no_schedule_ever_deadlocks_and_each_message_has_two_ends(schedule, data):
    cost = data.draw(costs(schedule.stages))
    lowered = lower(schedule, data.draw(costs(schedule.stages)))
    verify(lowered)
    assert lowered.without_moves().ranks == schedule.ranks
    moves = [item for row in lowered.ranks for item in row if type(item) is Move]
    assert len(moves) == len(set(moves)) == 2 * schedule.messages
    blocking = replace(cost, blocking=True)
    assert simulate(lowered, blocking).makespan >= simulate(schedule, cost).makespan
    assert simulate(lowered, cost) == simulate(schedule, cost), "on its own, a message costs a hop"


@often
@given(schedules(), st.data())
def test_lowered_a_rank_sends_at_once_and_waits_only_when_it_has_nothing_to_run(schedule, data):
    cost = replace(data.draw(costs(schedule.stages)), blocking=True)
    trace = simulate(schedule, cost)
    for rank in range(schedule.p):
        row = [event for event in trace.events if event.rank == rank]
        unsent, free = set(), 0
        for k, event in enumerate(row):
            if event.op.parts:
                assert not unsent and event.start == free
                unsent = {send for send in sends_of(trace.schedule, rank, event.op)}
            elif event.op.action == "SEND":
                unsent.remove(event.op)
            elif event.start > free and not unsent:  # it waits for a message
                following = next(e.op for e in row[k:] if e.op.parts)
                received = {e.op for e in row[:k]}
                wanted = {receive for _, receive, *_ in schedule.incoming(rank, following)}
                assert wanted - received, f"{following} could have run"
            free = event.end


def sends_of(schedule, rank, item):
    """What a rank sends after an item: its moves that carry what the item made."""
    made = {(op.kind if op.kind == "F" else "B", *op[1:]) for op in item.parts if op.kind != "W"}
    return [
        move
        for move in schedule.ranks[rank]
        if isinstance(move, Move) and move.action == "SEND" and move[1:] in made
    ]


@seldom
@given(schedules())
def test_lowered_the_messages_between_two_ranks_are_in_the_same_order_on_both(schedule):
    """Where messages have no names, first in is first out (NCCL)."""
    lowered = lower(schedule)
    for here in range(schedule.p):
        for there in range(schedule.p):
            sent = [
                m.partner
                for m in lowered.ranks[here]
                if isinstance(m, Move) and m.action == "SEND" and lowered.owner(m.partner) == there
            ]
            received = [
                m
                for m in lowered.ranks[there]
                if isinstance(m, Move) and m.action == "RECV" and lowered.owner(m.partner) == here
            ]
            assert sent == received


@seldom
@given(schedules())
def test_the_csv_brings_back_every_schedule_with_one_copy_of_the_model(tmp_path_factory, schedule):
    path = tmp_path_factory.mktemp("csv") / "schedule.csv"
    for each in (schedule, lower(schedule)):
        each.to_csv(path)
        if len(schedule.placement.copies) == 1:
            back = Schedule.from_csv(path)
            assert back.ranks == each.ranks
            assert back.placement.copies == schedule.placement.copies
            verify(back)


@often
@given(schedules(), st.data())
def test_a_schedule_with_one_op_lost_doubled_or_moved_is_refused(schedule, data):
    rank = data.draw(st.sampled_from([r for r, row in enumerate(schedule.ranks) if row]))
    position = data.draw(st.integers(0, len(schedule.ranks[rank]) - 1))
    what = data.draw(st.sampled_from(["lost", "doubled", "moved", "renamed"]))
    rows = [list(row) for row in schedule.ranks]
    item = rows[rank][position]
    if what == "lost" or what == "moved" and schedule.p == 1:
        del rows[rank][position]
    elif what == "doubled":
        rows[rank].insert(data.draw(st.integers(0, len(rows[rank]))), item)
    elif what == "moved":
        other = data.draw(st.sampled_from([r for r in range(schedule.p) if r != rank]))
        rows[other].append(rows[rank].pop(position))
    else:
        op = item.parts[0]._replace(microbatch=data.draw(st.sampled_from([-1, 99])))
        rows[rank][position] = Pair(op, item.b) if isinstance(item, Pair) else op
    with pytest.raises(ScheduleError) as error:
        verify(Schedule("wrong", rows, schedule.placement, schedule.microbatches))
    assert error.value.rank is not None and error.value.op is not None
    with pytest.raises(ScheduleError):
        simulate(Schedule("wrong", rows, schedule.placement, schedule.microbatches), Cost(F=0, B=0))


@often
@given(schedules(), st.data())
def test_any_order_is_either_timed_like_its_graph_or_a_deadlock_that_is_really_one(schedule, data):
    rows = [data.draw(st.permutations(row)) for row in schedule.ranks]
    shuffled = Schedule("shuffled", rows, schedule.placement, schedule.microbatches)
    cost = Cost(F=1, B=2)
    try:
        verify(shuffled)
    except ScheduleError as error:
        assert error.op == shuffled.ranks[error.rank][error.position]
        with pytest.raises(AssertionError, match="cycle"):
            longest_paths(shuffled, cost)
    else:
        ends = {e.op: e.end for e in simulate(shuffled, cost).events}
        assert ends == longest_paths(shuffled, cost)


@seldom
@given(schedules())
def test_activations_are_counted_as_by_hand(schedule):
    trace = simulate(schedule)
    for freed, kinds in (("W", "BW"), ("B", "BI")):
        for rank, row in enumerate(schedule.ranks):
            alive, most = set(), 0
            for item in row:
                for op in item.parts:
                    if op.kind == "F":
                        alive.add(op[1:])
                        most = max(most, len(alive))
                    elif op.kind in kinds:
                        alive.remove(op[1:])
            assert trace.peaks(freed)[rank] == most and not alive
    assert all(
        w >= half >= b
        for w, half, b in zip(trace.peaks("W"), trace.peaks("half"), trace.peaks("B"), strict=True)
    )
