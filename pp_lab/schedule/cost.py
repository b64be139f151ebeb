"""What an op costs. Ints and Fractions stay exact from here to the last figure."""

from dataclasses import dataclass
from fractions import Fraction
from numbers import Number

from .op import Op, Pair


class Exact(Fraction):
    """A Fraction that formats like a number on every Python: f"{Exact(3, 11):.2f}"."""

    def __repr__(self):
        decimal = float(self)
        text = f"{decimal:.12g}"
        return text if Fraction(text) == self else f"{self.numerator}/{self.denominator}"

    __str__ = __repr__

    def __format__(self, spec):
        return format(float(self), spec) if spec else str(self)


def exact(numerator, denominator=1):
    """The quotient: an int where it is whole, `Exact` where both are exact, else a float."""
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
    """

    F: object
    B: object
    I: object  # noqa: E741 - the field's letter for the input gradient
    W: object
    pair: object
    comm: object

    def __init__(self, F=1, B=None, I=None, W=None, pair=None, comm=0):  # noqa: E741
        given = {"F": F, "B": B, "I": I, "W": W, "pair": pair, "comm": comm}
        given = {name: _checked(name, value) for name, value in given.items()}
        F, B, I, W, pair, comm = given.values()  # noqa: E741
        if isinstance(comm, tuple):
            raise ValueError("comm is the latency of any hop: give one number, not a sequence")
        if B is None:
            if I is None and W is None:
                B = _each(lambda f: 2 * f, F)
            else:
                I = F if I is None else I  # noqa: E741
                W = F if W is None else W
                B = _each(lambda i, w: i + w, I, W)
        if I is None and W is None:
            I = W = _each(lambda b: exact(b, 2), B)  # noqa: E741
        elif I is None:
            I = _each(lambda b, w: b - w, B, W)  # noqa: E741
        elif W is None:
            W = _each(lambda b, i: b - i, B, I)
        for name, value in (("I", I), ("W", W)):
            _checked(name, value)
        values = dict(F=F, B=B, I=I, W=W, pair=pair, comm=comm)
        lengths = {len(v) for v in values.values() if isinstance(v, tuple)}
        if len(lengths) > 1:
            raise ValueError(f"the sequences have different lengths {sorted(lengths)}: "
                             "give one number per stage in each")
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def of(self, item: Op | Pair):
        """The duration of an op or a pair."""
        if isinstance(item, Pair):
            if self.pair is None:
                return self.of(item.f) + self.of(item.b)
            return _at(self.pair, item.f.stage)
        return _at(getattr(self, item.kind), item.stage)

    def split(self, v: int) -> "Cost":
        """The cost of one of v equal chunks of a rank's share; a hop costs what it did."""
        if not isinstance(v, int) or v < 1:
            raise ValueError(f"cannot split a rank's share into v={v!r} chunks: v is at least 1")
        part = {k: None if x is None else _each(lambda d: exact(d, v), x)
                for k, x in vars(self).items() if k != "comm"}
        return Cost(**part, comm=self.comm)

    def numbers(self):
        """Every number in here, flat."""
        for value in vars(self).values():
            if value is not None:
                yield from value if isinstance(value, tuple) else (value,)

    def __str__(self):
        def show(x):
            return "[" + " ".join(map(str, x)) + "]" if isinstance(x, tuple) else str(x)

        text = f"F={show(self.F)} B={show(self.B)}"
        halves = _each(lambda b: exact(b, 2), self.B)
        if (self.I, self.W) != (halves, halves):
            text += f" I={show(self.I)} W={show(self.W)}"
        if self.pair is not None:
            text += f" pair={show(self.pair)}"
        return text + (f" comm={self.comm}" if self.comm else "")


def _checked(name, value):
    if value is None:
        return None
    if isinstance(value, (list, tuple)):
        if not value:
            raise ValueError(f"{name} is an empty sequence: give one number per stage")
        return tuple(_checked(name, x) for x in value)
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, Number) or isinstance(value, complex):
        raise ValueError(f"{name}={value!r} is not a duration: give a number, or one per stage")
    if not 0 <= value < float("inf"):
        raise ValueError(f"{name}={value} is not a duration: it must be finite and not negative")
    return exact(value) if isinstance(value, (int, Fraction)) else float(value)


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
        raise ValueError(f"the cost has durations for {len(value)} stages, "
                         f"but the schedule has a stage {stage}")
    return value[stage]
