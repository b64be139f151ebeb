"""The closed forms, on a grid of configurations."""

# ruff: noqa: E741 - I is the field's letter for the input gradient

from fractions import Fraction
from itertools import product

import pytest

from pp_lab.schedule import Cost, schedules, simulate, verify
from pp_lab.schedule.bound import bound_of

COSTS = [(1, 2), (2, 1), (Fraction(1, 3), Fraction(3, 7))]
PLAIN = {
    name: list(product([1, 2, 3, 4, 6, 8], [1, 2, 3, 4, 5, 7, 8, 12, 16, 24]))
    for name in ("gpipe", "one_f_one_b", "eager_1f1b")
}
CHUNKED = {
    name: list(product([1, 2, 3, 4, 6, 8], [1, 2, 3], [1, 2, 3, 4]))
    for name in ("interleaved", "looped_bfs")
}
PAIRED = list(product([1, 2, 3, 4, 6], [1, 2, 4], [1, 2, 3]))
SPLIT = list(product([1, 2, 3, 4, 8], [1, 3]))


def run(schedule, cost):
    verify(schedule)
    return simulate(schedule, cost)


def test_the_grid_has_at_least_300_configurations():
    assert sum(map(len, [*PLAIN.values(), *CHUNKED.values(), PAIRED, SPLIT])) >= 300


@pytest.mark.parametrize("name", PLAIN)
def test_m_plus_p_minus_1_times_f_plus_b(name):
    for p, m in PLAIN[name]:
        schedule = getattr(schedules, name)(p, m)
        for F, B in COSTS:
            t = run(schedule, Cost(F=F, B=B))
            assert t.makespan == (m + p - 1) * (F + B) == bound_of(schedule, t.cost), (p, m)
            assert t.bubble == Fraction(p - 1, m + p - 1)
            assert t.bubble_over_ideal == Fraction(p - 1, m)
        ahead = {
            "gpipe": lambda r, p, m: m,
            "one_f_one_b": lambda r, p, m: p - r,
            "eager_1f1b": lambda r, p, m: 2 * (p - 1 - r) + 1,
        }[name]
        assert t.peak_activations == [min(m, ahead(r, p, m)) for r in range(p)], (p, m)


@pytest.mark.parametrize("name", CHUNKED)
def test_mv_plus_p_minus_1_times_f_plus_b_of_a_chunk(name):
    for p, k, v in CHUNKED[name]:
        m = k * p
        schedule = getattr(schedules, name)(p, m, v)
        for F, B in COSTS:
            t, chunk = run(schedule, Cost(F=F, B=B).split(v)), (Fraction(F) + B) / v
            assert t.makespan == (m * v + p - 1) * chunk == bound_of(schedule, t.cost), (p, m, v)
            assert t.idle == [(p - 1) * chunk] * p, "divided by v as well"
        first = m * v if name == "looped_bfs" else min(m * v, 2 * (p - 1) + (v - 1) * p + 1)
        assert t.peak_activations[0] == first, (p, m, v)


def test_the_paired_part_of_combined_1f1b_costs_fb_and_the_rest_f_plus_b():
    for p, k, v in PAIRED:
        m, n = k * p, p * (v - 1) + 1
        schedule = schedules.combined_1f1b(p, m, v)
        for FB in (3, Fraction(5, 2), 2):
            t = run(schedule, Cost(F=1, B=2, pair=FB).split(v))
            assert t.makespan == Fraction((p - 1) * 3 + n * 3 + (m * v - n) * FB, v), (p, m, v)


def test_zb_h1_adds_p_minus_1_times_the_largest_of_f_plus_i_minus_w_and_f_and_i():
    """Often printed as (p-1)(F+I-W), which is right only if W is at most F and at most I."""
    for p, k in SPLIT:
        m = (k + 1) * p
        schedule = schedules.zb_h1(p, m)
        for F, I, W in product([1, 2, 3], repeat=3):
            t = run(schedule, Cost(F=F, I=I, W=W))
            assert t.makespan == m * (F + I + W) + (p - 1) * max(F + I - W, F, I), (p, m, F, I, W)
        assert set(t.peaks("W")) == {p} and t.peaks("B") == list(range(p, 0, -1))
