"""The forms that checks share: numbers with known mistakes, lists of ops, schedules held to limits.

(A run held to targets is `Verdict.agree`.)
"""

from numbers import Real

from ..schedule import Op, Pair
from .words import missing, short


def numbers(verdict, answer, cases, *, call, right, wrong, mistakes=(), otherwise="", near=1e-9):
    """`answer` gives the right number in every case, or the check ends.

    call: a function of a case: how it is called, for the learner; right: a function of a case:
    the number that it should give; wrong: a function (case, value, right value): the sentence
    where they differ. The known mistake that gives all of these values ends it, or `otherwise`,
    a text or a function of the same three. near: how far a value may be off, for each unit of its
    size. Returns {case: value}.
    """
    given = {case: verdict.number(call(*case), answer(*case)) for case in cases}
    for case, value in given.items():
        wanted = right(*case)
        if abs(value - wanted) > near * max(abs(wanted), 1):
            known = recognised(given, mistakes)
            end = f": {known}" if known else otherwise
            if callable(end):
                end = end(case, value, wanted)
            verdict.fail(wrong(case, value, wanted) + end)
    return given


def recognised(given, mistakes):
    """The sentence for the first known mistake that gives what was given in every case.

    given: {case: what the answer gave}, or pairs of the two, for cases with lists in them;
    mistakes: pairs (function of a case, sentence)
    """
    pairs = given.items() if isinstance(given, dict) else given
    for wrong, sentence in mistakes:
        if all(same(value, wrong(*case)) for case, value in pairs):
            return sentence
    return None


def same(a, b):
    """Whether two numbers, or lists or dicts of numbers, are equal but for rounding."""
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if not isinstance(a, Real) or not isinstance(b, Real):
        return a is None and b is None or isinstance(a, str) and a == b
    return abs(a - b) <= 1e-9 * max(abs(a), abs(b), 1)


def rows(verdict, call, given, p, what="ops"):
    """`given`, if it is a list for each of p ranks; else the check ends with what it is instead.

    call: what gave it, for the learner, or ""
    """
    if not isinstance(given, (list, tuple)) or not all(map(_is_row, given)):
        shown = short(given)
        if isinstance(given, (list, tuple)) and given and not any(map(_is_row, given)):
            shown = f"one list of {what}"
        said = f"{call} gives {shown}, not" if call else f"{shown} is not"
        verdict.fail(f"{said} a list of {what} for each rank{missing(given)}")
    if len(given) != p:
        have = f"{call} has" if call else "there are"
        verdict.fail(f"{have} lists for {len(given)} ranks, not for {p}")
    return given


def _is_row(value):
    return isinstance(value, (list, tuple)) and not isinstance(value, (Op, Pair))


def within(verdict, trace, target, *, slow, full, fast="", where="", caps=None):
    """A schedule is as fast as a target, in no more memory; or the check ends.

    trace, target: simulated; slow: a function (trace, target) -> the sentence where it takes
    longer; full: a function (rank, held, enough) -> the sentence for the first rank that holds too
    much; fast: what is said where it takes no longer; caps: for each rank, the target's peaks
    unless given; where: begins the sentences.
    """
    if trace.makespan > target.makespan:
        verdict.fail(where + slow(trace, target))
    if fast:
        verdict.reasons.append(("yes", where + fast))
    caps = target.peak_activations if caps is None else caps
    for rank, (held, enough) in enumerate(zip(trace.peak_activations, caps, strict=True)):
        if held > enough:
            verdict.fail(where + full(rank, held, enough))
