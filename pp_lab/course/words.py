"""How checks write numbers, lists and what a function gave."""

import math


def show(value):
    """A number to six digits, a whole one in full."""
    value = float(value)
    whole = math.isfinite(value) and value == int(value)
    return f"{value:.0f}" if whole and abs(value) < 1e15 else f"{value:.6g}"


def short(value, most=80):
    """What something is, in at most so many characters."""
    text = repr(value)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def row(values):
    """Values side by side; of one value that one."""
    return " ".join(map(str, values)) if isinstance(values, (list, tuple)) else str(values)


def listed(words):
    """a, b and c"""
    *most, last = map(str, words)
    return f"{', '.join(most)} and {last}" if most else last


def call(name, arguments, values):
    """How a function was called: call("bubble", "p m", (4, 8)) is "bubble(p=4, m=8)"."""
    given = zip(arguments.replace(",", "").split(), values, strict=True)
    return f"{name}({', '.join(f'{a}={x}' for a, x in given)})"


def missing(value):
    """The end of a sentence about what a function gave."""
    return ": is a return missing?" if value is None else ""


def because(known):
    """The end of a sentence whose cause is known, if it is."""
    return f": {known}" if known else ""
