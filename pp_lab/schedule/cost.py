"""What an op costs. Ints and Fractions stay exact from here to the last figure."""

# ruff: noqa: E741, E743 - I is the field's letter for the input gradient

from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, lru_cache
from math import lcm
from numbers import Number

from .op import KINDS, Op, Pair


class Exact(Fraction):
    """A Fraction that formats like a number on every Python: f"{Exact(3, 11):.2f}".

    It works out its float once: a picture asks a time of many events for it many times.
    """

    @cached_property
    def _decimal(self):
        return self.numerator / self.denominator

    def __float__(self):
        return self._decimal

    def __repr__(self):
        decimal = float(self)
        text = f"{decimal:.12g}"
        return text if Fraction(text) == self else f"{self.numerator}/{self.denominator}"

    __str__ = __repr__

    def __format__(self, spec):
        return format(float(self), spec) if spec else str(self)


def exact(numerator, denominator=1):
    """The quotient: an int where it is whole, `Exact` where both are exact, else a float."""
    if denominator == 1 and isinstance(numerator, (int, float)):
        return numerator
    if isinstance(numerator, float) or isinstance(denominator, float):
        return numerator / denominator
    quotient = Exact(numerator, denominator)
    return quotient.numerator if quotient.denominator == 1 else quotient


@dataclass(frozen=True, init=False)
class Cost:
    """Durations of one stage's ops, in any unit of time.

    F, B, I, W: forward, full backward, input gradient, weight gradient; each a number, or
        a sequence with one number per stage. `Cost(F=1, B=2)` means I = W = 1; B defaults
        to I + W, or to twice F. B may differ from I + W (a fused backward can be cheaper).
    pair: a forward and a backward run as one overlapped step; F + B unless given.
    comm: latency of a hop between two ranks, added to the time at which a message arrives.
    link: how long a message occupies the link from one rank to another, which carries one at a
        time in each direction; it arrives `comm` after that. Bytes over bandwidth, say.
    sync: the all-reduce of a stage's gradients over its copies, after its last backward, on a
        lane of its own; or a sequence with one number per stage.
    blocking: messages are a rendezvous: sender and receiver wait for each other, and then
        neither computes for `comm`. Otherwise a message travels on its own.
    """

    F: object
    B: object
    I: object
    W: object
    pair: object
    comm: object
    link: object
    sync: object
    blocking: bool

    def __init__(
        self, F=1, B=None, I=None, W=None, pair=None, comm=0, link=0, sync=0, blocking=False
    ):
        given = {"F": F, "B": B, "I": I, "W": W, "pair": pair}
        given |= {"comm": comm, "link": link, "sync": sync}
        values = {name: checked(name, value) for name, value in given.items()}
        for name in ("comm", "link"):
            if isinstance(values[name], tuple):
                raise ValueError(f"{name} is that of any hop: give one number, not a sequence")
        if blocking and values["link"]:
            raise ValueError(
                "a message that is a rendezvous takes comm of both ranks: give no link"
            )
        lengths = {len(v) for v in values.values() if isinstance(v, tuple)}
        if len(lengths) > 1:
            raise ValueError(
                f"the sequences have different lengths {sorted(lengths)}: "
                "give one number per stage in each"
            )
        values |= zip("BIW", _backward(*(values[kind] for kind in KINDS)), strict=True)
        for name in "IW":
            checked(name, values[name])
        if float in map(type, _flat(values.values())):  # all exact, or none
            values = {k: v if v is None else _each(float, v) for k, v in values.items()}
        for name, value in values.items():
            object.__setattr__(self, name, value)
        object.__setattr__(self, "blocking", bool(blocking))

    def of(self, item: Op | Pair):
        """The duration of an op, a pair, or a reduction."""
        if isinstance(item, Pair):
            if self.pair is None:
                return self.of(item.f) + self.of(item.b)
            return _at(self.pair, item.f.stage)
        return _at(self.sync if item.kind == "R" else getattr(self, item.kind), item.stage)

    def split(self, v: int) -> "Cost":
        """The cost of one of v equal chunks of a rank's share; a hop costs what it did."""
        if not isinstance(v, int) or v < 1:
            raise ValueError(f"cannot split a rank's share into v={v!r} chunks: v is at least 1")
        part = {
            k: None if x is None else _each(lambda d: exact(d, v), x)
            for k, x in vars(self).items()
            if k in (*KINDS, "pair", "sync")
        }
        return replace(self, **part)

    # A stage is one piece, runs on one stream, and no rank has a part of it: see `Layers`.
    streams, ep = 1, 1

    def pieces(self, stage):
        """What runs of a stage, for one micro-batch."""
        return _pieces(stage)

    def on(self, rank):
        """The cost as a rank sees it."""
        return self

    def numbers(self):
        """Every number in here, flat."""
        return _flat(getattr(self, name) for name in NUMBERS)

    def in_ticks(self):
        """Into how many ticks a unit of time is cut, so that every number is whole, and the cost
        in ticks. Whole numbers add up faster than Fractions. With floats, a tick is the unit."""
        ticks = ticks_of(self.numbers())
        if ticks == 1:
            return 1, self
        whole = {name: getattr(self, name) for name in NUMBERS}
        return ticks, replace(
            self,
            **{k: None if x is None else _each(lambda d: d * ticks, x) for k, x in whole.items()},
        )

    def __str__(self):
        def show(x):
            if isinstance(x, tuple):
                return f"[{' '.join(map(show, x))}]"
            return f"{x:.12g}" if isinstance(x, float) else str(x)

        text = f"F={show(self.F)} B={show(self.B)}"
        halves = _each(lambda b: exact(b, 2), self.B)
        if self.I != halves or self.W != halves:
            text += f" I={show(self.I)} W={show(self.W)}"
        if self.pair is not None:
            text += f" pair={show(self.pair)}"
        text += f" comm={show(self.comm)}" if self.comm else ""
        text += f" link={show(self.link)}" if self.link else ""
        text += f" sync={show(self.sync)}" if self.sync else ""
        return text + " blocking" * self.blocking


@lru_cache(maxsize=1 << 12)
def _pieces(stage):
    return [Op(kind, stage, 0) for kind in KINDS]


NUMBERS = (*KINDS, "pair", "comm", "link", "sync")


def ticks_of(numbers):
    """The parts into which a unit is cut, so that each number is a whole one; 1 with floats."""
    return 1 if float in map(type, numbers) else lcm(*(x.denominator for x in numbers))


def checked(name, value):
    """A duration, or a tuple of them for a sequence, exact where it can be; ValueError where it
    is none. None stays None."""
    if value is None:
        return None
    if isinstance(value, (list, tuple)):
        if not value:
            raise ValueError(f"{name} is an empty sequence: give one number per stage")
        return tuple(checked(name, x) for x in value)
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, Number) or isinstance(value, complex):
        raise ValueError(f"{name}={value!r} is not a duration: give a number, or one per stage")
    if not 0 <= value < float("inf"):
        raise ValueError(f"{name}={value} is not a duration: it must be finite and not negative")
    return exact(value) if isinstance(value, (int, Fraction)) else float(value)


def _backward(F, B, I, W):
    """B, I and W, where those that were not given follow from the others."""
    if B is None and I is None and W is None:
        B = _each(lambda f: 2 * f, F)
    elif B is None:
        I, W = (F if x is None else x for x in (I, W))
        B = _each(lambda i, w: i + w, I, W)
    if I is None and W is None:
        I = W = _each(lambda b: exact(b, 2), B)
    elif I is None:
        I = _each(lambda b, w: b - w, B, W)
    elif W is None:
        W = _each(lambda b, i: b - i, B, I)
    return B, I, W


def _flat(values):
    """Every number in values of which some are sequences and some None."""
    return [x for v in values if v is not None for x in (v if isinstance(v, tuple) else (v,))]


def _each(function, *values):
    """Apply to numbers, or element by element where some are sequences."""
    length = max((len(v) for v in values if isinstance(v, tuple)), default=None)
    if length is None:
        return function(*values)
    return tuple(function(*(_at(v, k) for v in values)) for k in range(length))


def _at(value, stage):
    if not isinstance(value, tuple):
        return value
    if stage >= len(value):
        raise ValueError(
            f"the cost has durations for {len(value)} stages, but the schedule has a stage {stage}"
        )
    return value[stage]


F1B2 = Cost(F=1, B=2)  # the cost of a figure that says no other
