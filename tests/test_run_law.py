"""The law: a schedule that is run takes, event for event, the time that is simulated, holds as
many activations, and gives the gradients of one process, whatever the schedule and its cost."""

import pytest
import random_schedules
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import pp_lab as pp
from pp_lab import Cost, schedules, simulate

COST = Cost(F=3, B=5, I=3, W=4, pair=7, comm=2)
FAMILY = [
    *(make(p, m) for make in (schedules.gpipe, schedules.one_f_one_b, schedules.eager_1f1b,
                              schedules.zb_h1, schedules.zb_h2)
      for p, m in ((1, 2), (2, 5), (4, 2), (4, 6), (8, 8))),
    *(make(p, m) for make in (schedules.zb_v, schedules.v_half, schedules.v_min)
      for p, m in ((2, 4), (4, 8))),
    *(schedules.interleaved(p, m, v) for p, m, v in ((2, 3, 2), (2, 4, 3), (4, 6, 2), (4, 8, 2))),
    schedules.interleaved(4, 8, 2, extra_warmup=1),
    schedules.looped_bfs(2, 3, 2),
    schedules.looped_bfs(4, 4, 2),
    schedules.dualpipe(2, 4),
    schedules.dualpipe(4, 8),
    schedules.dualpipe_v(2, 5),
    schedules.dualpipe_v(4, 9),
    schedules.combined_1f1b(1, 3, 1),
    schedules.combined_1f1b(2, 4, 2),
    schedules.combined_1f1b(4, 8, 2),
]  # fmt: skip


def assert_law(schedule, cost, **arguments):
    lab = pp.Lab(schedule.stages, schedule.microbatches, hidden=5, blocks=schedule.stages)
    run = lab.run(schedule, cost=cost, **arguments)
    predicted = simulate(schedule, cost)
    assert run.trace == predicted
    assert run.peak_activations == predicted.peak_activations
    assert sum(run.messages) == schedule.messages
    score = lab.check(run)
    assert score == 1, str(score)
    return run, score


@pytest.mark.parametrize("schedule", FAMILY, ids=lambda s: f"{s.name}-{s.p}-{s.microbatches}")
def test_every_schedule_of_the_library_runs_as_simulated(schedule):
    run, score = assert_law(schedule, COST)
    ascending = len(schedule.placement.copies) == 1
    assert run.exact == ascending
    assert ("to the last bit" in str(score)) == ascending


@pytest.mark.parametrize("schedule", [s for s in FAMILY if s.p in (2, 4)],
                         ids=lambda s: f"{s.name}-{s.p}-{s.microbatches}")  # fmt: skip
def test_links_and_reductions_are_lanes_of_a_run_as_of_a_simulation(schedule):
    assert_law(schedule, Cost(F=3, B=5, I=3, W=4, pair=7, comm=2, link=4, sync=6))


@pytest.mark.parametrize("schedule", [s for s in FAMILY if s.p == 4],
                         ids=lambda s: f"{s.name}-{s.microbatches}")  # fmt: skip
def test_no_schedule_relies_on_tags(schedule):
    """Taken first in, first out between any two ranks, as NCCL has it."""
    assert_law(schedule, COST, tags=False)


@settings(max_examples=40, deadline=None, derandomize=True,
          suppress_health_check=[HealthCheck.too_slow])  # fmt: skip
@given(st.data())
def test_random_legal_schedules_costs_latencies_and_placements(data):
    schedule = data.draw(random_schedules.schedules())
    lanes = data.draw(st.booleans())
    cost = data.draw(random_schedules.costs(schedule.stages, lanes))
    assert_law(schedule, cost, tags=data.draw(st.booleans()))


def test_three_copies_of_the_model_on_two_ranks():
    places = pp.Placement("three copies", ((0, 1), (1, 0), (0, 0)))
    rows = [[], []]
    for i in range(3):
        for kind, stage in (("F", 0), ("F", 1), ("B", 1), ("B", 0)):
            rows[places.copies[i][stage]].append(pp.Op(kind, stage, i))
    assert_law(pp.Schedule("three copies", rows, places, 3), COST)
