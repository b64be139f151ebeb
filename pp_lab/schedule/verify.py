"""Is a schedule legal? If not, one sentence says where it breaks and why."""

from .cost import Cost, Exact
from .errors import ScheduleError
from .reasons import grid
from .schedule import Schedule
from .timing import timed

MEETING = Cost(F=1, B=2, blocking=True)  # a send waits until it is received

# When the backward gives an activation's memory back, by convention: what I and W free.
FREED = {"W": (0, 1), "B": (1, 0), "half": (Exact(1, 2), Exact(1, 2))}


def verify(schedule: Schedule, memory_cap: int | None = None) -> None:
    """Raise `ScheduleError`, whose text is the reason, unless the schedule can run.

    Legal means: every stage runs each micro-batch's forward once and its backward once (as
    one B, or as I and W), on the rank that owns it, in an order in which nobody waits for
    ever; and, with `memory_cap`, no rank ever holds more stage activations than that. Where
    messages are spelled out, each has two ends, and the order works even if a send waits
    until it is received.
    """
    if schedule.has_moves:
        timed(schedule, MEETING)
        schedule = schedule.without_moves()
    else:
        timed(schedule)
    if memory_cap is not None:
        _check_memory(schedule, memory_cap)


def activations(schedule: Schedule, rank: int, freed: str = "W"):
    """How many stage activations a rank holds after each of its items starts.

    One lives from its F to its B. Where the backward is split, it lives to its W, which still
    needs it (freed="W", the honest count), or to its I (freed="B", a count that papers use),
    or I and W free half of it each (freed="half"). In a pair the forward's is there before
    the backward's goes.
    """
    by_i, by_w = FREED[freed]
    change = {"F": 1, "B": -1, "I": -by_i, "W": -by_w}
    held, count = [], 0
    for item in schedule.ranks[rank]:
        most = count
        for op in item.parts:
            count += change[op[0]]
            if count > most:
                most = count
        held.append(most)
    return held


def _check_memory(schedule, cap):
    for rank in range(schedule.p):
        for position, held in enumerate(activations(schedule, rank)):
            if held > cap:
                item = schedule.ranks[rank][position]
                raise ScheduleError(
                    f"rank {rank}, position {position}: with {item} it holds {held} activations, "
                    f"and the cap is {cap}. Run a backward (or the W of a split one) first",
                    rank,
                    position,
                    item,
                    grid(schedule, [(rank, position)]),
                )
