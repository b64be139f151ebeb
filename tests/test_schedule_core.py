"""GPipe and 1F1B as data: the papers' numbers, wrong schedules refused, idle time explained."""

import json
from fractions import Fraction

import pytest

from pp_lab.schedule import (
    Cost,
    Op,
    Pair,
    Placement,
    Schedule,
    ScheduleError,
    needs,
    schedules,
    simulate,
    verify,
)
from pp_lab.schedule.cost import Exact
from pp_lab.schedule.op import parse

F1B2 = Cost(F=1, B=2)


def run(schedule, cost=F1B2):
    verify(schedule)
    return simulate(schedule, cost)


def labels(schedule, rank):
    return " ".join(map(schedule.label, schedule.ranks[rank]))


# The rows of the papers


def test_gpipe_p4_m8_makespan_33_bubble_3_11_peak_8_on_every_rank():
    t = run(schedules.gpipe(4, 8))
    assert t.makespan == 33
    assert t.bubble == Fraction(3, 11)
    assert t.peak_activations == [8, 8, 8, 8]


def test_gpipe_takes_as_long_with_its_backwards_in_reverse():
    rows = [row[:8] + row[:7:-1] for row in schedules.gpipe(4, 8).ranks]
    t = run(Schedule("last in, first out", rows))
    assert t.makespan == 33 and labels(t.schedule, 0).endswith("F7 B7 B6 B5 B4 B3 B2 B1 B0")


def test_1f1b_p4_m8_makespan_33_bubble_3_11_peak_4_3_2_1():
    t = run(schedules.one_f_one_b(4, 8))
    assert t.makespan == 33
    assert t.bubble == Fraction(3, 11)
    assert t.peak_activations == [4, 3, 2, 1]


def test_1f1b_p8_m32_makespan_117_bubble_7_39_peak_8_down_to_1():
    t = run(schedules.one_f_one_b(8, 32))
    assert t.makespan == 117
    assert t.bubble == Fraction(7, 39)
    assert t.peak_activations == [8, 7, 6, 5, 4, 3, 2, 1]


def test_1f1b_with_fewer_microbatches_than_ranks_is_legal_makespan_15_peak_2_2_2_1():
    t = run(schedules.one_f_one_b(4, 2))
    assert t.makespan == 15
    assert t.bubble == Fraction(3, 5)
    assert t.peak_activations == [2, 2, 2, 1]


def test_the_first_rank_of_1f1b_warms_up_with_three_and_the_last_with_none():
    s = schedules.one_f_one_b(4, 8)
    assert labels(s, 0) == "F0 F1 F2 F3 B0 F4 B1 F5 B2 F6 B3 F7 B4 B5 B6 B7"
    assert labels(s, 3).startswith("F0 B0 F1 B1 F2 B2")


@pytest.mark.parametrize("name", ["gpipe", "one_f_one_b"])
@pytest.mark.parametrize("p", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("m", [1, 2, 3, 4, 7, 8, 16])
def test_gpipe_and_1f1b_take_m_plus_p_minus_1_times_f_plus_b(name, p, m):
    s = getattr(schedules, name)(p, m)
    for F, B in [(1, 2), (3, 1), (Fraction(1, 3), Fraction(5, 7))]:
        t = run(s, Cost(F=F, B=B))
        assert t.makespan == (m + p - 1) * (F + B)
        assert t.bubble == Fraction(p - 1, m + p - 1), "it does not depend on B / F"
        assert t.bubble_over_ideal == Fraction(p - 1, m), "the other definition"
        assert t.span == t.makespan, "rank 0 starts first and ends last"
    in_flight = [m] * p if name == "gpipe" else [min(p - r, m) for r in range(p)]
    assert t.peak_activations == in_flight


def test_one_microbatch_has_no_overlap_and_one_rank_has_no_bubble():
    assert run(schedules.one_f_one_b(4, 1)).bubble == Fraction(3, 4)
    assert run(schedules.one_f_one_b(1, 5)).bubble == 0
    assert labels(schedules.one_f_one_b(1, 3), 0) == "F0 B0 F1 B1 F2 B2"


@pytest.mark.parametrize("p, percent", [(4, 15.8), (8, 17.9), (16, 19.0)])
def test_four_microbatches_per_rank_do_not_give_a_20_percent_bubble(p, percent):
    assert round(100 * float(run(schedules.one_f_one_b(p, 4 * p)).bubble), 1) == percent


@pytest.mark.parametrize("p", [2, 4, 8])
@pytest.mark.parametrize("c", [Fraction(1, 4), Fraction(1, 2), 1])
def test_a_hop_of_c_costs_gpipe_2_p_minus_1_c(p, c):
    t = run(schedules.gpipe(p, 2 * p), Cost(F=1, B=2, comm=c))
    assert t.makespan == (3 * p - 1) * 3 + 2 * (p - 1) * c


@pytest.mark.parametrize("p, m", [(2, 4), (4, 8), (4, 16), (8, 32)])
@pytest.mark.parametrize("c", [Fraction(1, 4), Fraction(1, 2)])
def test_latency_hurts_1f1b_again_and_again(p, m, c):
    t = run(schedules.one_f_one_b(p, m), Cost(F=1, B=2, comm=c))
    assert t.makespan == (m + p - 1) * 3 + (Fraction(2 * (p - 1) * m, p) + 2 * (p - 2)) * c


def test_two_microbatches_per_unit_of_latency_1f1b_p8_m32_117_134_151():
    times = [
        run(schedules.one_f_one_b(8, 32), Cost(F=1, B=2, comm=c)).makespan for c in (0, 0.25, 0.5)
    ]
    assert times == [117, 134, 151]


def test_a_71_step_1f1b_for_p8_m32_cannot_be_the_least_is_78():
    assert run(schedules.one_f_one_b(8, 32), Cost(F=1, B=1)).makespan == 78


def test_the_slowest_stage_sets_the_pace():
    slow = run(schedules.one_f_one_b(4, 64), Cost(F=[1, 2, 1, 1]))
    assert slow.busy == [192, 384, 192, 192]
    assert 0 <= slow.makespan - 64 * 6 <= 6, "the fill and the drain do not grow with m"


# Exact numbers


def test_fractions_stay_exact_and_format_like_numbers_on_every_python():
    t = run(schedules.one_f_one_b(4, 8), Cost(F=Fraction(1, 3), B=Fraction(1, 7)))
    assert t.makespan == Fraction(110, 21)
    bubble = run(schedules.one_f_one_b(4, 8)).bubble
    assert isinstance(bubble, Exact)
    assert f"{bubble:.4f} {bubble:.1%} {bubble}" == "0.2727 27.3% 3/11"
    assert repr(Exact(57, 2)) == "28.5"
    assert [type(x) for x in t.idle] == [Exact] * 4


def test_a_cost_of_floats_is_timed_in_floats():
    t = run(schedules.gpipe(2, 2), Cost(F=0.1, B=0.2))
    assert isinstance(t.makespan, float)
    assert t.makespan == pytest.approx(0.9)


def test_a_cost_is_exact_or_not_but_not_half_of_it():
    cost = Cost(F=Fraction(1, 3), B=0.5, comm=1)
    assert all(isinstance(x, float) for x in cost.numbers())
    assert simulate(schedules.gpipe(2, 2), cost).makespan == pytest.approx(3 * (1 / 3 + 0.5) + 2)


def test_b_is_twice_f_and_halves_into_i_and_w_unless_told():
    assert (Cost(F=3).B, Cost(F=3).I, Cost(F=3).W) == (6, 3, 3)
    assert Cost(F=1, I=2, W=Fraction(1, 2)).B == Fraction(5, 2)
    assert Cost(F=1, B=3, I=2).W == 1
    assert Cost(F=[1, 2]).B == (2, 4)


@pytest.mark.parametrize(
    "arguments, word",
    [
        (dict(F=-1), "F=-1"),
        (dict(F=float("nan")), "finite"),
        (dict(F="1"), "F='1'"),
        (dict(F=[]), "empty"),
        (dict(F=[1, 2], B=[1, 2, 3]), "[2, 3]"),
        (dict(F=True), "True"),
        (dict(B=1, I=2), "W=-1"),
        (dict(comm=[1, 2]), "comm"),
    ],
)
def test_an_impossible_cost_is_refused_by_name(arguments, word):
    with pytest.raises(ValueError) as error:
        Cost(**arguments)
    assert word in str(error.value)


def test_costs_for_fewer_stages_than_the_schedule_has_are_refused():
    with pytest.raises(ValueError, match="2 stages"):
        simulate(schedules.gpipe(3, 2), Cost(F=[1, 2]))


# Wrong schedules


def edited(rank, position, *new, schedule=None, drop=1):
    """1F1B p=4 m=8 with the ops from `position` on replaced by `new`."""
    rows = [list(row) for row in (schedule or schedules.one_f_one_b(4, 8)).ranks]
    rows[rank][position : position + drop] = new
    return rows


def refused(rows, **more):
    with pytest.raises(ScheduleError) as error:
        verify(Schedule("mine", rows, microbatches=8), **more)
    return error.value


def F(stage, i):
    return Op("F", stage, i)


def B(stage, i):
    return Op("B", stage, i)


DEADLOCK = [[F(0, 0), B(0, 0), F(0, 1), B(0, 1)], [F(1, 0), F(1, 1), B(1, 0), B(1, 1)]]


def test_a_missing_forward_is_named():
    error = refused(edited(1, 2))
    assert error.rank == 1 and error.op == F(1, 2)
    assert "rank 1 never runs 1F2" in error.reason


def test_a_missing_backward_is_named():
    error = refused(edited(0, 15))
    assert error.rank == 0 and error.op == B(0, 7)
    assert "rank 0 never runs 0B7" in error.reason


def test_a_doubled_op_is_named_with_both_places():
    error = refused(edited(1, 4, F(1, 2), drop=0))
    assert (error.rank, error.position, error.op) == (1, 4, F(1, 2))
    assert "1F2 is there twice; the first is at position 2" in error.reason


def test_an_op_on_the_wrong_rank_is_told_where_it_belongs():
    error = refused(edited(1, 0, F(2, 0)))
    assert (error.rank, error.position, error.op) == (1, 0, F(2, 0))
    assert "2F0 belongs to rank 2" in error.reason


@pytest.mark.parametrize(
    "op, reason",
    [
        (F(9, 0), "only stages 0 to 3"),
        (F(1, 8), "only micro-batches 0 to 7"),
        (F(1, -1), "only micro-batches 0 to 7"),
        (Op("X", 1, 0), "has the kind 'X'"),
        (Op("F", 1, 0.5), "whole numbers"),
        ("1F0", "is not an op"),
        (None, "is not an op"),
    ],
)
def test_a_foreign_op_is_refused_at_its_place(op, reason):
    rows = edited(1, 0, op)
    with pytest.raises(ScheduleError) as error:
        verify(Schedule("mine", rows, schedules.one_f_one_b(4, 8).placement, 8))
    assert (error.value.rank, error.value.position) == (1, 0)
    assert error.value.reason.startswith("rank 1, position 0: ")
    assert reason in error.value.reason


def test_a_backward_before_its_own_forward_is_named():
    error = refused(edited(3, 0, B(3, 0), F(3, 0), drop=2))
    assert (error.rank, error.position, error.op) == (3, 0, B(3, 0))
    assert "3B0 needs 3F0, which stands only later" in error.reason


def test_a_deadlock_names_who_waits_for_whom():
    # Rank 0 wants micro-batch 0 back before it sends 1; rank 1 wants 1 before it gives 0 back.
    with pytest.raises(ScheduleError) as error:
        verify(Schedule("mine", DEADLOCK))
    assert (error.value.rank, error.value.position, error.value.op) == (0, 1, B(0, 0))
    assert error.value.reason == (
        "deadlock: rank 0 waits at position 1 (0B0) for 1B0, which rank 1 has only at position 2; "
        "rank 1 waits at position 1 (1F1) for 0F1, which rank 0 has only at position 2. "
        "So rank 0 waits for itself."
    )
    assert "!B0!" in str(error.value), "the picture marks the culprit"


def test_the_memory_cap_is_kept_or_the_op_that_breaks_it_is_named():
    s = schedules.one_f_one_b(4, 8)
    verify(s, memory_cap=4)
    with pytest.raises(ScheduleError) as error:
        verify(s, memory_cap=3)
    assert (error.value.rank, error.value.position, error.value.op) == (0, 3, F(0, 3))
    assert "holds 4 activations, and the cap is 3" in error.value.reason


def test_a_backward_is_one_b_or_an_i_and_a_w_but_not_both():
    error = refused(edited(3, 2, Op("W", 3, 0), drop=0))
    assert (error.rank, error.position) == (3, 2)
    assert "3W0 does again what 3B0 at position 1 does" in error.reason
    error = refused(edited(3, 1, Op("I", 3, 0)))
    assert error.rank == 3 and "never runs 3W0" in error.reason


def test_the_published_1f1b_chart_with_p_minus_1_minus_r_forwards_then_b_takes_54():
    """One forward is missing before the first B of every rank: legal, but slow."""
    p, m = 4, 8
    rows = []
    for r in range(p):
        forwards, backwards = [F(r, i) for i in range(m)], [B(r, i) for i in range(m)]
        ahead = max(p - 1 - r, 1)  # the last rank cannot start with B
        row = forwards[:ahead]
        for k in range(m):
            row += backwards[k : k + 1] + forwards[ahead + k : ahead + k + 1]
        rows.append(row)
    assert run(Schedule("chart", rows)).makespan == 54


def test_sizes_that_are_no_positive_whole_numbers_are_refused_by_name():
    for bad in (0, -1, 2.5, "4", True, None):
        with pytest.raises(ScheduleError, match="p="):
            schedules.gpipe(bad, 4)
        with pytest.raises(ScheduleError, match="m="):
            schedules.one_f_one_b(4, bad)


def test_an_empty_schedule_is_refused():
    with pytest.raises(ScheduleError, match="at least one rank"):
        Schedule("nothing", [])


def test_simulate_refuses_what_verify_refuses():
    with pytest.raises(ScheduleError, match="never runs"):
        simulate(Schedule("mine", edited(1, 3)))
    with pytest.raises(ScheduleError, match="deadlock"):
        simulate(Schedule("mine", DEADLOCK))


# The law, and the text form


def test_needs_states_every_dependence():
    assert needs(F(0, 3), 4) == ()
    assert needs(F(2, 3), 4) == (F(1, 3),)
    assert needs(B(3, 3), 4) == (F(3, 3),)
    assert needs(B(1, 3), 4) == (F(1, 3), Op("I", 2, 3))
    assert needs(Op("I", 1, 3), 4) == (F(1, 3), Op("I", 2, 3))
    assert needs(Op("W", 1, 3), 4) == (Op("I", 1, 3),)
    assert needs(Pair(F(1, 4), B(1, 3)), 4) == (F(0, 4), F(1, 3), Op("I", 2, 3))


def test_ops_have_torchs_text_form():
    for item in (F(2, 0), B(10, 31), Op("I", 0, 1), Pair(F(0, 3), B(3, 1))):
        assert parse(str(item)) == item
    assert str(F(2, 0)) == "2F0"
    assert str(Pair(F(0, 3), B(3, 1))) == "(0F3;3B1)OVERLAP_F_B"
    for bad in ("F0", "2X0", "2F", "", "(0F3)OVERLAP_F_B"):
        with pytest.raises(ValueError, match="not an op"):
            parse(bad)


# Explanations


def test_the_critical_path_takes_the_whole_makespan_without_a_gap():
    for s in (schedules.gpipe(4, 8), schedules.one_f_one_b(4, 8)):
        for cost in (F1B2, Cost(F=3, B=1), Cost(F=1, B=2, comm=Fraction(1, 2))):
            t = simulate(s, cost)
            path = t.critical_path()
            assert path[0].start == 0 and path[-1].end == t.makespan
            for before, after in zip(path, path[1:], strict=False):
                hop = cost.comm if before.rank != after.rank else 0
                assert after.start == before.end + hop


def test_why_idle_names_the_op_that_is_waited_for_and_who_is_at_the_root():
    t = simulate(schedules.one_f_one_b(4, 8), F1B2)
    assert t.why_idle(1, 0) == (
        "rank 1 is idle until 1: its next op, F0, needs 0F0, which rank 0 ends at 1"
    )
    assert t.why_idle(0, 5) == (
        "rank 0 is idle until 10: its next op, B0, needs 1B0, which rank 1 ends at 10; "
        "at 5 the chain that leads there stands at 3B0 on rank 3"
    )
    assert t.why_idle(0, 0) == "rank 0 is not idle at 0: it runs F0 from 0 to 1"
    assert "nothing left to do" in t.why_idle(3, 32)
    assert "outside the step" in t.why_idle(0, 33)
    assert "no rank 4" in t.why_idle(4, 0)


def test_why_idle_tells_apart_a_late_op_and_a_late_message():
    t = simulate(schedules.gpipe(2, 1), Cost(F=1, B=2, comm=5))
    assert t.why_idle(1, 2) == (
        "rank 1 is idle until 6: its next op, F0, needs 0F0, which rank 0 ends at 1 "
        "and which arrives at 6"
    )


def test_idle_and_busy_time_fill_every_ranks_makespan():
    t = simulate(schedules.one_f_one_b(4, 8), F1B2)
    assert t.idle == [9, 9, 9, 9]
    assert [i + b for i, b in zip(t.idle, t.busy, strict=True)] == [t.makespan] * 4


def test_the_text_timeline_shows_every_op_in_its_column():
    assert str(simulate(schedules.one_f_one_b(2, 2), F1B2)) == "\n".join(
        [
            "1F1B p=2 m=2, cost F=1 B=2: makespan 9, bubble 33.3%, peak activations 2 1",
            "rank 0 |F0 F1 ......B0--- ...B1--- |",
            "rank 1 |...F0 B0--- F1 B1--- ......|",
        ]
    )


def test_the_text_timeline_of_a_long_step_still_fits_a_page():
    text = str(simulate(schedules.one_f_one_b(8, 64), F1B2))
    assert max(len(line) for line in text.splitlines()[1:]) <= 180


def test_a_chrome_trace_has_one_process_per_rank_and_every_op(tmp_path):
    t = simulate(schedules.one_f_one_b(4, 8), F1B2)
    t.to_chrome_trace(tmp_path / "trace.json")
    records = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    ops = [r for r in records if r["ph"] == "X"]
    assert len(ops) == 64 and {r["pid"] for r in records} == {0, 1, 2, 3}
    assert max(r["ts"] + r["dur"] for r in ops) == 33_000, "a unit is shown as a millisecond"


def test_two_traces_are_equal_when_every_event_is():
    one, two = (simulate(schedules.gpipe(2, 3), F1B2) for _ in range(2))
    assert one == two
    assert one != simulate(schedules.gpipe(2, 3), Cost(F=1, B=3))


# Placements


def test_a_loop_places_stage_s_on_rank_s_mod_p_without_being_told():
    s = Schedule(
        "mine", [[F(0, 0), F(2, 0), B(2, 0), B(0, 0)], [F(1, 0), F(3, 0), B(3, 0), B(1, 0)]]
    )
    assert s.placement.copies == ((0, 1, 0, 1),)
    assert run(s).makespan == 12


def test_two_copies_of_the_model_share_the_microbatches_in_contiguous_halves():
    both = Placement("bidirectional", ((0, 1), (1, 0)))
    rows = [[F(0, 0), F(1, 1), B(1, 1), B(0, 0)], [F(0, 1), F(1, 0), B(1, 0), B(0, 1)]]
    s = Schedule("both ways", rows, both, 2)
    assert run(s).makespan == 6 and run(s).bubble == 0
    with pytest.raises(ScheduleError, match="belongs to rank 1"):
        verify(Schedule("swapped", rows[::-1], both, 2))
