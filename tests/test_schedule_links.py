"""A link between two ranks is a lane: it carries one message at a time in each direction."""

from fractions import Fraction

import pytest

import pp_lab as pp
from pp_lab import Cost, schedules, simulate

FAMILY = [
    schedules.gpipe(4, 8), schedules.one_f_one_b(4, 8), schedules.interleaved(4, 8, 2),
    schedules.zb_h1(4, 8), schedules.zb_v(4, 8), schedules.dualpipe(4, 8),
    schedules.combined_1f1b(4, 8, 2),
]  # fmt: skip
NAMED = dict(ids=lambda s: s.name)


def on_links(trace):
    return [event for event in trace.events if event.lane.startswith("to rank")]


@pytest.mark.parametrize("schedule", FAMILY, **NAMED)
def test_every_message_goes_once_after_its_value_and_one_at_a_time(schedule):
    trace = simulate(schedule, Cost(F=1, B=2, link=Fraction(5, 2), comm=1))
    sent, lanes = on_links(trace), {}
    assert len(sent) == schedule.messages == len({event.op for event in sent})
    for event in sent:
        assert event.end - event.start == Fraction(5, 2)
        ((value, end),) = trace.needs(event)
        assert value.rank == event.rank and event.start >= end
        lanes.setdefault((event.rank, event.lane), []).append(event)
    for events in lanes.values():
        assert all(a.end <= b.start for a, b in zip(events, events[1:], strict=False))


@pytest.mark.parametrize("schedule", FAMILY, **NAMED)
def test_an_op_starts_when_its_message_is_over_the_link_and_the_latency_is_over(schedule):
    trace = simulate(schedule, Cost(F=1, B=2, link=3, comm=2))
    over = {event.op: event.end + 2 for event in on_links(trace)}
    remote = 0
    for event in trace.events:
        if event.lane == "compute":
            for op in event.op.parts:
                for cause, arrival in trace.needs(event):
                    if cause.op in over and cause.op.microbatch == op.microbatch:
                        remote += 1
                        assert arrival == over[cause.op] <= event.start
    assert remote == schedule.messages


@pytest.mark.parametrize("schedule", [schedules.one_f_one_b(4, 8), schedules.gpipe(4, 8)], **NAMED)
def test_a_link_that_is_faster_than_the_ops_is_a_latency(schedule):
    for link in (Fraction(1, 4), Fraction(1, 2), 1):
        as_link, as_latency = (
            simulate(schedule, Cost(F=1, B=2, **{name: link})).makespan for name in ("link", "comm")
        )
        assert as_link == as_latency


def test_a_link_that_is_slower_than_the_ops_sets_the_pace():
    """Latency costs GPipe 2(p-1)c once; a slow link costs m times what it is slower."""
    for p, m, link in ((2, 8, 3), (4, 8, 5), (4, 16, 4)):
        s = schedules.gpipe(p, m)
        assert (
            simulate(s, Cost(F=1, B=2, comm=link)).makespan == (m + p - 1) * 3 + 2 * (p - 1) * link
        )
        slow = (m - 1) * link + (p - 1) * (1 + link) + 1  # the last stage ends its forwards
        back = 2 + (p - 1) * (2 + link) + (m - 1) * link
        assert simulate(s, Cost(F=1, B=2, link=link)).makespan == slow + back


@pytest.mark.parametrize("schedule", FAMILY, **NAMED)
def test_the_reasons_know_the_links(schedule):
    trace = simulate(schedule, Cost(F=1, B=2, link=4))
    path = trace.critical_path()
    assert path[0].start == 0 and path[-1].end == trace.makespan
    assert all(a.end == b.start for a, b in zip(path, path[1:], strict=False))
    assert any(event.lane.startswith("to rank") for event in path)
    for rank in range(schedule.p):
        for time in range(trace.makespan):
            assert trace.why_idle(rank, time)


def test_the_text_and_the_picture_show_a_row_for_each_link():
    trace = simulate(schedules.one_f_one_b(2, 2), Cost(F=1, B=2, link=1))
    text = str(trace)
    assert "link=1" in text and text.count("to rank 1 |") == text.count("to rank 0 |") == 1
    assert "to rank 1" in pp.timeline(trace).html


@pytest.mark.parametrize("arguments, message", [
    (dict(link=-1), "link=-1 is not a duration"),
    (dict(link=[1, 2]), "link is that of any hop: give one number"),
    (dict(link=1, comm=1, blocking=True), "give no link"),
])  # fmt: skip
def test_a_link_that_cannot_be_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Cost(F=1, B=2, **arguments)


def test_a_paced_run_goes_over_links_too():
    schedule, cost = schedules.gpipe(2, 4), Cost(F=1, B=1, link=3)
    lab = pp.Lab(2, 4)
    run = lab.run(schedule, cost=cost, clock="pace", pace=0.02)
    assert lab.check(run).passed
    assert run.trace.makespan >= simulate(schedule, cost).makespan
    assert [e.op for e in on_links(run.trace)] == [e.op for e in on_links(simulate(schedule, cost))]
