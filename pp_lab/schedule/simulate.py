"""From a schedule and a cost to a trace, step by step."""

from .cost import F1B2, Cost
from .layers import Layers, spread
from .lower import lower
from .reductions import reduced
from .schedule import Schedule
from .timing import timed
from .trace import Trace


def simulate(schedule: Schedule, cost: Cost | Layers = F1B2) -> Trace:
    """Time a schedule. Exact for ints and Fractions, and linear in the number of ops.

    Each rank runs its ops in order, each as soon as the rank is free and everything it
    needs has arrived; a value from another rank arrives `cost.comm` after it was made, and
    where `cost.link` is not 0, after it went over the link, one message at a time. Where
    `cost.blocking`, messages are a rendezvous instead, and those that the schedule does not
    spell out are placed by `lower`. Where `cost.sync` is not 0, each stage's gradients are
    reduced over its copies as soon as all have them, on a lane of their own. Raises
    ScheduleError for a schedule that cannot run to its end. With `Layers` as the cost, ops
    are timed node by node, on two streams.
    """
    schedule = expand(schedule, cost)
    ticks, in_ticks = cost.in_ticks()
    lanes = timed(schedule, in_ticks)
    lanes += reduced(schedule, lanes, in_ticks)
    if isinstance(cost, Layers):
        schedule = schedule.without("all-to-all")
    return Trace(schedule, sorted(lanes, key=lambda lane: lane.rank), cost, ticks=ticks)


def expand(schedule, cost):
    """The schedule as the clock runs it: its messages spelled out where they are a rendezvous,
    and only there; its ops as nodes where the cost has layers."""
    if isinstance(cost, Layers):
        timed(schedule)  # what is wrong is said of ops, not of nodes
        return spread(schedule, cost)
    if cost.blocking:
        return schedule if schedule.has_moves else lower(schedule, cost)
    return schedule.without_moves() if schedule.has_moves else schedule
