"""Every schedule as a short pure function that returns data.

p is the number of ranks, m of micro-batches. Sources are named by paper; the orders are
those of the reference implementations.
"""

from .errors import ScheduleError
from .op import Op
from .schedule import Schedule, loop


def gpipe(p: int, m: int) -> Schedule:
    """All forwards, then all backwards (GPipe, arXiv:1811.06965). Holds m activations."""
    _positive(p=p, m=m)
    ranks = [[Op(kind, rank, i) for kind in "FB" for i in range(m)] for rank in range(p)]
    return Schedule("GPipe", ranks, loop(p), m)


def one_f_one_b(p: int, m: int) -> Schedule:
    """One forward, one backward (PipeDream-flush, arXiv:2006.09503; Megatron's default).

    Rank r runs p-1-r forwards ahead, enough for the first backward to come back to it, and
    so never holds more than p-r activations.
    """
    _positive(p=p, m=m)
    ranks = [alternate([Op("F", rank, i) for i in range(m)],
                       [Op("B", rank, i) for i in range(m)], warmup=p - 1 - rank)
             for rank in range(p)]
    return Schedule("1F1B", ranks, loop(p), m)


def alternate(forwards, backwards, warmup):
    """`warmup` forwards, then forward and backward in turn, then the backwards left over."""
    warmup = min(warmup, len(forwards))
    steady = len(forwards) - warmup
    order = forwards[:warmup]
    for pair in zip(forwards[warmup:], backwards):
        order += pair
    return order + backwards[steady:]


def _positive(**sizes):
    for name, value in sizes.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ScheduleError(f"{name}={value!r}: {name} must be a whole number, at least 1")
