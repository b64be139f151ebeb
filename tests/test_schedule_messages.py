"""Messages spelled out: their order, and what it costs when a send waits for its receive."""

import pytest

from pp_lab.schedule import Cost, Move, Schedule, ScheduleError, lower, schedules, simulate, verify
from pp_lab.schedule.op import parse

F1B2 = Cost(F=1, B=2)
FAMILY = [
    schedules.gpipe(4, 8), schedules.one_f_one_b(4, 8), schedules.one_f_one_b(4, 2),
    schedules.eager_1f1b(4, 8), schedules.interleaved(4, 8, 2), schedules.interleaved(2, 5, 2),
    schedules.looped_bfs(4, 8, 2), schedules.zb_h1(4, 8), schedules.zb_h2(4, 8),
    schedules.zb_v(4, 8), schedules.v_half(4, 8), schedules.v_min(4, 8), schedules.dualpipe(4, 8),
    schedules.dualpipe_v(4, 8), schedules.combined_1f1b(4, 8, 2), schedules.one_f_one_b(1, 3),
]  # fmt: skip


def blocking(comm, **more):
    return Cost(F=1, B=2, comm=comm, blocking=True, **more)


def test_1f1b_p2_m2_with_its_messages():
    assert str(lower(schedules.one_f_one_b(2, 2))) == "\n".join(
        [
            "1F1B, p=2 m=2",
            "rank 0: F0 SEND_F0 F1 SEND_F1 RECV_B0 B0 RECV_B1 B1",
            "rank 1: RECV_F0 F0 RECV_F1 B0 SEND_B0 F1 B1 SEND_B1",
        ]
    )


def test_a_move_has_two_ends():
    send = Move("SEND", "F", 2, 5)
    assert str(send) == "2SEND_F5" and str(send.partner) == "3RECV_F5"
    assert Move("SEND", "B", 2, 5).partner == Move("RECV", "B", 1, 5)
    assert send.partner.partner == send


@pytest.mark.parametrize("schedule", FAMILY, ids=lambda s: f"{s.name} p={s.p} m={s.microbatches}")
def test_every_schedule_of_the_family_runs_on_blocking_messages_too(schedule):
    lowered = lower(schedule)
    verify(lowered)
    for comm in (0, 0.25):
        asynchronous = simulate(schedule, Cost(F=1, B=2, comm=comm))
        assert simulate(schedule, blocking(comm)).makespan >= asynchronous.makespan
    sent = sum(
        type(item) is Move and item.action == "SEND" for row in lowered.ranks for item in row
    )
    assert sent == schedule.messages


def test_messages_that_take_no_time_cost_1f1b_nothing_even_if_they_block():
    for p, m in ((2, 4), (4, 8), (8, 32)):
        s = schedules.one_f_one_b(p, m)
        assert simulate(s, blocking(0)).makespan == simulate(s, F1B2).makespan
        assert simulate(schedules.gpipe(p, m), blocking(0)).makespan == (m + p - 1) * 3


def test_a_blocking_message_takes_the_time_of_both_its_ranks():
    t = simulate(schedules.gpipe(2, 1), blocking(5))
    assert [(str(e.op), e.rank, e.lane, e.start, e.end) for e in t.events] == [
        ("0F0", 0, "compute", 0, 1),
        ("0SEND_F0", 0, "comm", 1, 6),
        ("0RECV_B0", 0, "comm", 9, 14),
        ("0B0", 0, "compute", 14, 16),
        ("1RECV_F0", 1, "comm", 1, 6),
        ("1F0", 1, "compute", 6, 7),
        ("1B0", 1, "compute", 7, 9),
        ("1SEND_B0", 1, "comm", 9, 14),
    ]
    assert t.busy == [3, 3] and t.bubble == 1 - 6 / 32


def test_a_blocking_message_costs_1f1b_more_than_one_on_its_own():
    s = schedules.one_f_one_b(4, 16)
    alone, both = simulate(s, Cost(F=1, B=2, comm=0.5)), simulate(s, blocking(0.5))
    assert both.makespan > alone.makespan


def test_send_first_works_where_messages_travel_alone_and_deadlocks_where_they_block():
    by_hand = lower(schedules.one_f_one_b(4, 8), matched=False)
    assert simulate(by_hand, F1B2).makespan == 33
    with pytest.raises(ScheduleError, match="deadlock: rank 2 waits .* So rank 2 waits for itself"):
        simulate(by_hand, blocking(0))
    with pytest.raises(ScheduleError, match="deadlock"):
        verify(by_hand)


def test_gpipe_needs_no_care_as_no_two_neighbours_send_to_each_other():
    verify(lower(schedules.gpipe(4, 8), matched=False))


def test_stages_on_the_same_rank_exchange_no_message():
    for s in (schedules.zb_v(4, 8), schedules.one_f_one_b(1, 4)):
        moves = [item for row in lower(s).ranks for item in row if type(item) is Move]
        assert all(s.owner(move) != s.owner(move.partner) for move in moves)
    assert schedules.zb_v(4, 8).messages == 2 * 8 * 6
    assert schedules.interleaved(4, 8, 2).messages == 2 * 8 * 7
    assert schedules.dualpipe(4, 8).messages == 2 * 8 * 3
    assert schedules.one_f_one_b(1, 4).messages == 0


def test_lowering_twice_changes_nothing():
    once = lower(schedules.zb_h1(3, 4))
    assert lower(once).ranks == once.ranks
    assert once.without_moves().ranks == schedules.zb_h1(3, 4).ranks


def test_idle_time_in_a_blocking_run_is_explained_by_its_messages():
    t = simulate(schedules.one_f_one_b(2, 3), blocking(1))
    assert t.why_idle(0, 1) == (
        "rank 0 is idle until 2: its next op, F1, comes after 0SEND_F0, which ends at 2"
    )
    path = t.critical_path()
    assert path[0].start == 0 and path[-1].end == t.makespan
    assert all(a.end == b.start for a, b in zip(path, path[1:], strict=False))


def test_the_text_timeline_of_a_blocking_run_shows_messages_as_waves():
    t = simulate(schedules.gpipe(2, 1), blocking(1))
    assert str(t) == "\n".join(
        [
            "GPipe p=2 m=1, cost F=1 B=2 comm=1 blocking: makespan 8, bubble 62.5%, "
            "peak activations 1 1",
            "rank 0 |F0 ~~~.........~~~B0--- |",
            "rank 1 |...~~~F0 B0--- ~~~......|",
        ]
    )


def test_a_schedule_by_hand_may_spell_out_its_messages():
    text = [["0F0", "0SEND_F0", "0RECV_B0", "0B0"], ["1RECV_F0", "1F0", "1B0", "1SEND_B0"]]
    s = Schedule("mine", [[parse(cell) for cell in row] for row in text])
    verify(s)
    assert s.has_moves and s.microbatches == 1
    assert simulate(s, blocking(1)).makespan == 8
