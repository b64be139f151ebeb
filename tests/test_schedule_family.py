"""Every schedule of the family reproduces its paper's numbers, in the order of its paper."""

# ruff: noqa: E741 - I is the field's letter for the input gradient

from fractions import Fraction

import pytest

from pp_lab.schedule import (
    Cost,
    Op,
    Pair,
    Schedule,
    ScheduleError,
    loop,
    schedules,
    simulate,
    verify,
)
from pp_lab.schedule.bound import bound_of
from pp_lab.schedule.schedules import alternate
from pp_lab.schedule.table import share

F1B2 = Cost(F=1, B=2)


def run(schedule, cost=F1B2):
    """The trace under the cost of a rank's whole share, if the schedule is legal."""
    verify(schedule)
    return simulate(schedule, share(schedule, cost))


def labels(schedule, rank):
    return " ".join(map(str, schedule.ranks[rank]))


# The table of reference values: F=1, B=2 for a rank's share, bubble to four digits, peaks in
# stage activations.
ROWS = [
    ("gpipe", (4, 8), {}, 33, 0.2727, [8] * 4),
    ("one_f_one_b", (4, 8), {}, 33, 0.2727, [4, 3, 2, 1]),
    ("one_f_one_b", (8, 32), {}, 117, 0.1795, [8, 7, 6, 5, 4, 3, 2, 1]),
    ("one_f_one_b", (4, 2), {}, 15, 0.60, [2, 2, 2, 1]),
    ("eager_1f1b", (4, 8), {}, 33, 0.2727, [7, 5, 3, 1]),
    ("interleaved", (4, 8, 2), {}, 28.5, 0.1579, [11, 9, 7, 5]),
    ("interleaved", (4, 8, 4), {}, 26.25, 0.0857, [19, 17, 15, 13]),
    ("interleaved", (8, 32, 2), {}, 106.5, 0.0986, list(range(23, 7, -2))),
    ("looped_bfs", (4, 8, 2), {}, 28.5, 0.1579, [16] * 4),
    ("zb_h1", (4, 8), {}, 27, 0.1111, [4] * 4),
    ("zb_h1", (8, 32), {}, 103, 0.0680, [8] * 8),
    ("zb_h2", (4, 8), {}, 27, 0.1111, [7] * 4),
    ("zb_v", (4, 8), {}, 25.5, 0.0588, [8] * 4),
    ("v_half", (4, 8), {}, 26.5, 0.0943, [6] * 4),
    ("v_min", (4, 8), {}, 29.5, 0.1864, [4] * 4),
    ("dualpipe", (4, 8), {"pair": 3}, 26, 0.0769, [5] * 4),
    ("dualpipe", (8, 32), {"pair": 3}, 102, 0.0588, [9] * 8),
    ("dualpipe_v", (4, 10), {"pair": 3}, 33, 0.0909, [9] * 4),
    ("dualpipe_v", (8, 32), {"pair": 3}, 103, 0.0680, [17] * 8),
    ("combined_1f1b", (4, 8, 2), {"pair": 3}, 28.5, 0.1579, [12, 10, 8, 6]),
    ("combined_1f1b", (4, 8, 2), {"pair": 2.5}, 25.75, 0.1456, [12, 10, 8, 6]),
]


@pytest.mark.parametrize("name, sizes, pair, makespan, bubble, peak", ROWS)
def test_the_reference_values(name, sizes, pair, makespan, bubble, peak):
    t = run(getattr(schedules, name)(*sizes), Cost(F=1, B=2, **pair))
    assert float(t.makespan) == makespan
    assert f"{float(t.bubble):.4f}" == f"{bubble:.4f}"
    assert t.peak_activations == peak


# One after the other


def test_eager_1f1b_gains_nothing_without_latency_and_hides_it_where_there_is_some():
    plain, eager = schedules.one_f_one_b(8, 32), schedules.eager_1f1b(8, 32)
    times = {
        c: [run(s, Cost(F=1, B=2, comm=c)).makespan for s in (plain, eager)] for c in (0, 0.25, 0.5)
    }
    assert times == {0: [117, 117], 0.25: [134, 120.5], 0.5: [151, 124]}
    assert run(eager).peak_activations[0] == 2 * 8 - 1


@pytest.mark.parametrize("p, m", [(2, 4), (4, 8), (4, 9), (8, 16)])
@pytest.mark.parametrize("c", [Fraction(1, 4), Fraction(1, 2)])
def test_a_hop_of_c_costs_eager_1f1b_2_p_minus_1_c(p, m, c):
    t = run(schedules.eager_1f1b(p, m), Cost(F=1, B=2, comm=c))
    assert t.makespan == (m + p - 1) * 3 + 2 * (p - 1) * c


@pytest.mark.parametrize("p, m, v", [(2, 4, 2), (4, 8, 2), (4, 8, 3), (8, 16, 2)])
@pytest.mark.parametrize("c", [Fraction(1, 8), Fraction(1, 4)])
def test_a_hop_of_c_costs_interleaved_2_pv_minus_1_c(p, m, v, c):
    t = run(schedules.interleaved(p, m, v), Cost(F=1, B=2, comm=c))
    assert t.makespan == (m * v + p - 1) * Fraction(3, v) + 2 * (p * v - 1) * c


def test_interleaving_divides_the_absolute_bubble_by_v():
    idle = [
        run(schedules.interleaved(8, 32, v) if v > 1 else schedules.one_f_one_b(8, 32)).idle[0]
        for v in (1, 2, 4)
    ]
    assert list(map(float, idle)) == [21, 10.5, 5.25]


def test_micro_batches_go_through_the_chunks_in_groups():
    """p=2, group 3, m=5, v=2: micro-batches 0 1 2 0 1 2 3 4 3 4, chunks 0 0 0 1 1 1 0 0 1 1."""
    s = schedules.interleaved(2, 5, 2, group=3)
    forwards = [op for op in s.ranks[0] if op.kind == "F"]
    backwards = [op for op in s.ranks[0] if op.kind == "B"]
    assert [op.microbatch for op in forwards] == [0, 1, 2, 0, 1, 2, 3, 4, 3, 4]
    assert [op.stage // 2 for op in forwards] == [0, 0, 0, 1, 1, 1, 0, 0, 1, 1]
    assert [op.stage // 2 for op in backwards] == [1, 1, 1, 0, 0, 0, 1, 1, 0, 0]
    assert s.ranks[0].index(backwards[0]) == 2 * 1 + 1 * 3 + 1, "warm-up and the first turn's F"


def test_the_order_of_interleaved_p2_m4_v2_as_in_the_paper():
    assert labels(schedules.interleaved(2, 4, 2), 1) == (
        "1F0 1F1 3F0 3B0 3F1 3B1 1F2 1B0 1F3 1B1 3F2 3B2 3F3 3B3 1B2 1B3"
    )


def test_balanced_rounds_beat_a_short_last_group():
    for m, balanced, short in [(6, 45, 55), (10, 69, 79)]:
        assert 2 * run(schedules.interleaved(4, m, 2)).makespan == balanced
        with pytest.raises(ScheduleError, match="leaves a last round of 2"):
            schedules.interleaved(4, m, 2, group=4)
        rows = short_group(4, m, 2, group=4)
        assert 2 * run(Schedule("short last group", rows, loop(4, 2), m)).makespan == short


def short_group(p, m, v, group, warmup=None):
    """Interleaved order in groups, without Megatron's conditions; warmup(rank) in chunks."""
    rows = []
    for rank in range(p):
        groups = [range(a, min(a + group, m)) for a in range(0, m, group)]
        table = [(c, i) for g in groups for c in range(v) for i in g]
        ahead = 2 * (p - 1 - rank) + (v - 1) * group if warmup is None else warmup(rank)
        rows.append(
            alternate(
                [Op("F", c * p + rank, i) for c, i in table],
                [Op("B", (v - 1 - c) * p + rank, i) for c, i in table],
                ahead,
            )
        )
    return rows


def test_groups_of_four_to_eight_at_p4_m8_v2():
    times = [2 * run(schedules.interleaved(4, 8, 2, group=n)).makespan for n in (4, 8)]
    assert times == [57, 57]
    for n, time in ((5, 59), (6, 62), (7, 67)):
        rows = short_group(4, 8, 2, group=n)
        assert 2 * run(Schedule("", rows, loop(4, 2), 8)).makespan == time


@pytest.mark.parametrize(
    "k, c, makespan, peak",
    [
        (1, 0, 57, [8, 7, 6, 5]),
        (1, 1, 57 + 30, [8, 7, 6, 5]),
        (2, 0, 57, [11, 9, 7, 5]),
        (2, 1, 57 + 14, [11, 9, 7, 5]),
    ],
)
def test_the_factor_2_in_the_warm_up_hides_latency_and_costs_memory(k, c, makespan, peak):
    rows = short_group(4, 8, 2, 4, warmup=lambda rank: k * (3 - rank) + 4)
    t = simulate(Schedule("", rows, loop(4, 2), 8), Cost(F=1, B=2, comm=c))
    assert (t.makespan, t.peak_activations) == (makespan, peak)


def test_a_factor_3_in_the_warm_up_deadlocks():
    rows = short_group(4, 8, 2, 4, warmup=lambda rank: 3 * (3 - rank) + 4)
    with pytest.raises(ScheduleError, match="deadlock"):
        verify(Schedule("", rows, loop(4, 2), 8))


@pytest.mark.parametrize(
    "p, m, group, words",
    [
        (4, 8, 2, ["smaller than p=4", "in a circle", "4 or 8"]),
        (4, 8, 9, ["larger than m=8"]),
        (4, 6, 4, ["last round of 2", "fewer than p=4", "6"]),
        (4, 2, 4, ["larger than m=2", "leave `group` out"]),
        (4, 8, 0, ["group=0"]),
        (4, 8, 2.5, ["group=2.5"]),
    ],
)
def test_what_megatron_refuses_is_refused_with_the_reason_and_the_nearest_group(p, m, group, words):
    with pytest.raises(ScheduleError) as error:
        schedules.interleaved(p, m, 2, group=group)
    for word in words:
        assert word in str(error.value)


def test_extra_warmup_runs_that_many_more_forwards_first():
    for extra in (0, 1, 3):
        row = schedules.interleaved(4, 8, 2, extra_warmup=extra).ranks[0]
        assert [op.kind for op in row].index("B") == 2 * 3 + 4 + 1 + extra
    with pytest.raises(ScheduleError, match="extra_warmup"):
        schedules.interleaved(4, 8, 2, extra_warmup=0.5)


# Zero bubble


def test_zb_h1_order_w_lags_by_the_rank():
    s = schedules.zb_h1(3, 4)
    assert [" ".join(op.label for op in row) for row in s.ranks] == [
        "F0 F1 F2 I0 W0 F3 I1 W1 I2 W2 I3 W3",
        "F0 F1 I0 F2 I1 W0 F3 I2 W1 I3 W2 W3",
        "F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3",
    ]


@pytest.mark.parametrize("p", [2, 3, 4, 8])
@pytest.mark.parametrize("costs", [(1, 1, 1), (1, 1, Fraction(1, 2)), (2, 3, 1), (3, 2, 2)])
def test_zb_h1_takes_m_f_i_w_plus_p_minus_1_f_plus_i_minus_w_for_w_up_to_i(p, costs):
    F, I, W = costs
    for m in (2 * p, 4 * p):
        t = run(schedules.zb_h1(p, m), Cost(F=F, I=I, W=W))
        assert t.makespan == m * (F + I + W) + (p - 1) * (F + max(I - W, 0))


def test_where_w_is_longer_than_i_the_textbook_form_of_zb_h1_is_too_short():
    F, I, W, p, m = 1, 1, 2, 4, 16
    t = run(schedules.zb_h1(p, m), Cost(F=F, I=I, W=W))
    assert t.makespan == m * (F + I + W) + (p - 1) * F
    assert t.makespan > m * (F + I + W) + (p - 1) * (F + I - W)


def test_zb_h1_keeps_within_1f1bs_memory_and_h2_within_twice():
    for p, m in [(4, 8), (8, 32)]:
        h1, h2 = run(schedules.zb_h1(p, m)), run(schedules.zb_h2(p, m))
        assert h1.peaks("W") == [p] * p, "freed at W"
        assert h1.peaks("B") == list(range(p, 0, -1)), "freed at B, as the paper counts"
        assert h2.peaks("W") == [2 * p - 1] * p


def test_the_zero_bubble_trap_span_is_not_makespan():
    """F = I = W = 1, p=4, m=8: H2's ranks have no gap, and the step is no shorter than H1's."""
    of = {
        name: run(getattr(schedules, name)(4, 8))
        for name in ("one_f_one_b", "zb_h1", "zb_h2", "zb_v")
    }
    assert {name: (float(t.span), float(t.makespan)) for name, t in of.items()} == {
        "one_f_one_b": (33, 33),
        "zb_h1": (27, 27),
        "zb_h2": (24, 27),
        "zb_v": (24, 25.5),
    }


TABLE_5 = [  # m; F, I, W, hop in ms; bubble rates of 1F1B, ZB-H1, ZB-H2, all for p=8
    (24, (18.522, 18.086, 9.337, 0.601), (0.2431, 0.1585, 0.1083)),
    (64, (18.546, 18.097, 9.321, 0.762), (0.1240, 0.0674, 0.0444)),
    (24, (29.718, 29.444, 19.927, 0.527), (0.2347, 0.1323, 0.0698)),
    (64, (29.935, 29.621, 19.388, 0.535), (0.1091, 0.0554, 0.0294)),
]


@pytest.mark.parametrize("m, times, rates", TABLE_5)
def test_table_5_of_the_zero_bubble_paper(m, times, rates):
    F, I, W, hop = times
    work, found = m * (F + I + W), []
    for name in ("one_f_one_b", "zb_h1", "zb_h2"):
        t = run(getattr(schedules, name)(8, m), Cost(F=F, I=I, W=W, comm=hop))
        found.append(round((t.span - work) / t.span, 4))
    assert tuple(found) == rates


def test_zb_v_has_no_gap_from_m_2p_minus_1_on_if_f_i_and_w_are_equal():
    for p in (1, 2, 4, 8):
        assert run(schedules.zb_v(p, 2 * p - 1)).span == 3 * (2 * p - 1)
        if p > 2:
            assert run(schedules.zb_v(p, 2 * p - 3)).span > 3 * (2 * p - 3)
    assert run(schedules.zb_v(4, 8), Cost(F=1, I=1, W=Fraction(1, 2))).span > 8 * Fraction(5, 2)


# V-Half and V-Min


@pytest.mark.parametrize("p", [2, 3, 4, 5, 6, 8, 9])
def test_v_half_and_v_min_need_half_and_a_third_of_1f1bs_memory(p):
    m = 2 * p
    for schedule, cap in (
        (schedules.v_half(p, m), 2 * ((p + 2) // 2)),
        (schedules.v_min(p, m), 2 * ((p + 4) // 3)),
    ):
        verify(schedule, memory_cap=cap)
        assert max(run(schedule).peak_activations) == cap


@pytest.mark.parametrize(
    "p, m, half, least",
    [
        (2, 4, 12.5, 13.5),
        (3, 8, 26.5, 26.5),
        (4, 8, 26.5, 29.5),
        (5, 10, 35.5, 37.5),
        (6, 12, 41.5, 44.5),
        (8, 16, 56.5, 61.5),
        (8, 32, 104.5, 109.5),
    ],
)
def test_v_half_and_v_min_are_as_fast_as_the_reference_implementation(p, m, half, least):
    """zbv_greedy.py in sail-sg/zero-bubble at 39f2c186, F = I = W = 1 per rank."""
    assert run(schedules.v_half(p, m)).makespan <= half
    assert run(schedules.v_min(p, m)).makespan <= least


def test_less_memory_costs_time_on_the_same_v():
    times = [run(s(8, 32)).makespan for s in (schedules.zb_v, schedules.v_half, schedules.v_min)]
    assert times == sorted(times) and len(set(times)) == 3


# DualPipe


def test_dualpipe_on_a_middle_rank_begins_its_pairs_one_turn_later():
    assert labels(schedules.dualpipe(4, 8), 1) == (
        "1F0 2F4 1F1 2F5 1F2 2B4 (2F6;1B0)OVERLAP_F_B (1F3;2B5)OVERLAP_F_B (2F7;1B1)OVERLAP_F_B "
        "2B6 1B2 2I7 1I3 2W7 1W3"
    )


def test_dualpipe_rank_0_of_4_in_its_eight_steps():
    assert labels(schedules.dualpipe(4, 8), 0) == (
        "0F0 0F1 0F2 3F4 3I4 3W4 3F5 (0F3;3B5)OVERLAP_F_B (3F6;0B0)OVERLAP_F_B "
        "3B6 (3F7;0B1)OVERLAP_F_B 3B7 0I2 0W2 0I3 0W3"
    )


@pytest.mark.parametrize("p, m", [(2, 4), (4, 8), (4, 12), (6, 14), (8, 20)])
@pytest.mark.parametrize("F, I, W, FB", [(1, 1, 1, 3), (2, 2, 1, 5), (2, 2, 1, 4)])
def test_dualpipes_idle_time_on_the_middle_ranks(p, m, F, I, W, FB):
    t = run(schedules.dualpipe(p, m), Cost(F=F, B=I + W, I=I, W=W, pair=FB))
    assert max(t.idle) == t.idle[p // 2] == (p // 2 - 1) * (FB + I + W - 3 * W)


def test_dualpipe_holds_two_copies_of_the_model_and_p_plus_1_activations():
    s = schedules.dualpipe(8, 32)
    assert all(len(s.placement.held_by(rank)) == 2 for rank in range(8))
    assert set(run(s).peak_activations) == {9}
    v = schedules.dualpipe_v(8, 32)
    assert len(v.placement.copies) == 1 and v.stages == 16


@pytest.mark.parametrize(
    "p, m, words",
    [
        (5, 20, ["p=4 m=20", "p=6 m=20"]),
        (4, 9, ["p=4 m=10"]),
        (4, 6, ["p=4 m=8"]),
        (1, 8, ["p=2 m=8"]),
        (3, 3, ["p=2 m=4", "p=4 m=8"]),
    ],
)
def test_dualpipes_conditions_are_stated_with_the_nearest_legal_values(p, m, words):
    with pytest.raises(ScheduleError, match="even p, an even m and m >= 2p") as error:
        schedules.dualpipe(p, m)
    for word in words:
        assert word in str(error.value)
        sizes = dict(part.split("=") for part in word.split())
        verify(schedules.dualpipe(int(sizes["p"]), int(sizes["m"])))


def test_dualpipe_vs_condition_is_stated_with_the_nearest_legal_values():
    with pytest.raises(ScheduleError, match="m=8 or more, or p=3 or less"):
        schedules.dualpipe_v(4, 7)
    with pytest.raises(ScheduleError, match="at least m=2"):
        schedules.dualpipe_v(1, 1)
    verify(schedules.dualpipe_v(4, 8))
    verify(schedules.dualpipe_v(3, 7))


# Combined 1F1B


def test_combined_1f1b_on_one_rank_is_f0_then_pairs_then_the_last_b():
    assert labels(schedules.combined_1f1b(1, 4), 0) == (
        "0F0 (0F1;0B0)OVERLAP_F_B (0F2;0B1)OVERLAP_F_B (0F3;0B2)OVERLAP_F_B 0B3"
    )


def pairs(p, m, v, warmup):
    """Interleaved 1F1B in atomic pairs, with a warm-up of one's own."""
    rows = []
    for rank in range(p):
        table = [(c, i) for g in range(0, m, p) for c in range(v) for i in range(g, g + p)]
        rows.append(
            alternate(
                [Op("F", c * p + rank, i) for c, i in table],
                [Op("B", (v - 1 - c) * p + rank, i) for c, i in table],
                warmup(rank),
                pair=True,
            )
        )
    return Schedule("pairs", rows, loop(p, v), m)


def test_without_the_extra_forward_the_last_rank_pairs_a_micro_batch_with_itself():
    with pytest.raises(ScheduleError) as error:
        verify(pairs(4, 8, 2, lambda rank: 2 * (3 - rank) + 4))
    assert error.value.rank == 3
    assert "needs itself: a pair starts as one" in str(error.value)
    with_it = pairs(4, 8, 2, lambda rank: 2 * (3 - rank) + 4 + 1)
    assert with_it.ranks == schedules.combined_1f1b(4, 8, 2).ranks


def test_pairs_on_plain_1f1b_need_twice_the_warm_up_and_one_more():
    p, m, cost = 4, 16, Cost(F=1, B=2, pair=3)
    assert simulate(pairs(p, m, 1, lambda rank: 2 * (p - 1 - rank) + 1), cost).makespan == 57
    assert simulate(pairs(p, m, 1, lambda rank: p - 1 - rank + 1), cost).makespan == 99
    with pytest.raises(ScheduleError, match="deadlock"):
        verify(pairs(p, m, 1, lambda rank: p - 1 - rank + (rank == p - 1)))
    assert (
        schedules.combined_1f1b(p, m).ranks
        == pairs(p, m, 1, lambda rank: 2 * (p - 1 - rank) + 1).ranks
    )


@pytest.mark.parametrize("p, m, v", [(2, 4, 2), (4, 8, 2), (4, 8, 3), (8, 32, 2)])
@pytest.mark.parametrize("FB", [3, Fraction(5, 2), 2])
def test_the_total_of_the_interleaved_overlap(p, m, v, FB):
    t = run(schedules.combined_1f1b(p, m, v), Cost(F=1, B=2, pair=FB))
    n = p * (v - 1) + 1
    assert t.makespan == Fraction((p - 1) * 3 + n * 3 + (m * v - n) * FB, v)


def test_the_share_of_chunk_forwards_that_have_a_partner_p8_v2_m32_64_and_86_percent():
    s = schedules.combined_1f1b(8, 32, 2)
    shares = [sum(type(item) is Pair for item in row) / 64 for row in s.ranks]
    assert [round(100 * x) for x in (shares[0], shares[-1])] == [64, 86]


@pytest.mark.parametrize("p, crossing", [(4, 9), (8, 7), (16, Fraction(45, 7))])
def test_where_interleaved_overlap_and_dualpipe_have_the_same_bubble(p, crossing):
    """B = 2F = 2W, FB = B: (p/2-1)F against 3(p-1)F/v; they cross at v = 6(p-1)/(p-2)."""
    m, cost = 2 * p, Cost(F=1, B=2, pair=2)
    dual = max(run(schedules.dualpipe(p, m), cost).idle)
    assert dual == Fraction(p, 2) - 1
    for v in (2, 3):
        combined = run(schedules.combined_1f1b(p, m, v), cost)
        assert max(combined.idle) * v == 3 * (p - 1)
    assert Fraction(max(combined.idle) * v, dual) == crossing


# Together


FAMILY = {
    "gpipe": 2, "one_f_one_b": 2, "eager_1f1b": 2, "interleaved": 3, "looped_bfs": 3,
    "zb_h1": 2, "zb_h2": 2, "zb_v": 2, "v_half": 2, "v_min": 2, "dualpipe": 2, "dualpipe_v": 2,
    "combined_1f1b": 3,
}  # fmt: skip


@pytest.mark.parametrize("name", FAMILY)
def test_each_schedule_is_legal_for_every_size_that_it_accepts(name):
    accepted = 0
    for p in range(1, 7):
        for m in (1, 2, 3, 4, 5, 7, 8, 12, 13):
            for v in (1, 2, 3) if FAMILY[name] == 3 else (1,):
                try:
                    s = getattr(schedules, name)(*(p, m, v)[: FAMILY[name]])
                except ScheduleError as error:
                    assert name in ("dualpipe", "dualpipe_v"), error
                    continue
                t = run(s, Cost(F=1, B=2, pair=3))
                assert t.makespan >= bound_of(s, t.cost), (name, p, m, v)
                assert sum(t.busy) == 3 * p * m
                accepted += 1
    assert accepted >= 6


@pytest.mark.parametrize("name", FAMILY)
def test_each_schedule_refuses_sizes_that_are_no_positive_whole_numbers(name):
    good = (4, 8, 2)[: FAMILY[name]]
    for k, size in enumerate("pmv"[: FAMILY[name]]):
        for bad in (0, -2, 2.0, "4", None, True):
            with pytest.raises(ScheduleError, match=f"{size}="):
                getattr(schedules, name)(*good[:k], bad, *good[k + 1 :])
