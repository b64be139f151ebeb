"""What all checks share: they judge properties, explain, and never raise.

A check is a function of a `Verdict` and of the learner's answers. It asks for one property
after the other; each that holds earns its points, the first that does not ends the check with
a sentence that helps. An answer that is still the stub is "not attempted".

A check asks its verdict for sizes and seeds. In the notebook it gets those that it names; under
`drawn`, when somebody grades, it gets others of the same kind, which no answer can know.
"""

import contextlib
import functools
import linecache
import math
import random
import traceback
from numbers import Real

from ..run.failures import NotAttempted
from ..run.late import NoTorch, has_torch
from ..run.score import Score
from ..schedule import LabError
from ..show import timeline
from .words import row, short

OURS = __name__.rpartition(".")[0].rpartition(".")[0].replace(".", "/")


class _Failed(Exception):
    """A property does not hold: the check is over."""


_seed = None  # of the sizes that are drawn; None: the visible ones


@contextlib.contextmanager
def drawn(seed):
    """Checks inside draw their sizes and seeds; the same `seed` draws the same."""
    global _seed
    before, _seed = _seed, seed
    try:
        yield
    finally:
        _seed = before


class Verdict:
    """What a check has found so far. `random` draws hidden sizes, and is None without them."""

    def __init__(self, name=""):
        self.points, self.reasons, self.figure = 0, [], None
        self.random = None if _seed is None else random.Random(f"{_seed} {name}")

    def seed(self, visible):
        """The seed of a lab's weights and data."""
        return visible if self.random is None else self.random.randrange(1000, 1_000_000)

    def size(self, p, m):
        """The size (p, m), or a hidden one of its kind: m < p, m = p, m > p and p = 1 stay so."""
        if self.random is None:
            return p, m
        # From three ranks on there is one in the middle: that stays so too.
        ranks = [1] if p == 1 else [q for q in range(max(p - 2, min(p, 3)), p + 3) if q != p]
        p, gap = self.random.choice(ranks), m - p
        if p == 1 or gap > 0:
            return p, p + self.random.randint(1, max(gap, 1) + 2) if m > 1 else 1
        return p, p if gap == 0 else self.random.randint(1, p - 1)

    def sizes(self, visible):
        """`size` of each."""
        return [self.size(p, m) for p, m in visible]

    def expect(self, holds, yes, no, points=0):
        """One property. `no` is the sentence for the learner where it does not hold."""
        if not holds:
            self.fail(no)
        self.points += points
        self.reasons.append(("yes", yes))

    def fail(self, no):
        """The answer is wrong: say why, and end the check."""
        self.reasons.append(("no", no))
        raise _Failed

    def number(self, call, value):
        """`value`, if it is a finite number; else the check ends. call: what gave it, for the
        learner: "bubble(p=4, m=8)"."""
        if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
            self.fail(
                f"{call} gives {short(value)}, not a number"
                + (": is a return missing?" if value is None else "")
            )
        return value

    def agree(self, lab, run, points, **targets):
        """The run equals the reference and meets its targets (see `Lab.check`)."""
        score = lab.check(run, **targets)
        where = f"p={run.schedule.p}, m={lab.microbatches}: "
        if score.passed and self.reasons:
            # What was said in full before is said in short for further sizes.
            met = "".join(f", {name} {row(most)}" for name, most in targets.items())
            self.reasons.append(("yes", f"{where}equal to the reference{met}"))
        else:
            self.reasons += [(kind, where + text) for kind, text in score.reasons]
        if score.passed or score.reasons[0][0] == "yes":  # right, if perhaps not good enough
            self.points += points * score / score.of
        if not score.passed:
            raise _Failed

    def on_ranks(self, points, check):
        """What a simulation has found right, on real ranks too: `check()`, which earns `points` by
        itself. Without torch the simulation's verdict stands, and earns them."""
        if has_torch():
            check()
            self.reasons.append(("note", RAN))
        else:
            self.points += points
            self.reasons.append(("note", SIMULATED))


RAN = "judged by simulation, then run on real ranks"
SIMULATED = "judged by simulation only: real ranks need torch, which is not installed here"


def over(trace, target):
    """The learner's timeline, over the target's where the two differ."""
    return timeline(trace, predicted=None if trace == target else target)


def exercise(points):
    """Make a check of a function (verdict, *answers): it returns a `Score` and never raises."""

    def decorate(function):
        @functools.wraps(function)
        def check(*answers):
            verdict = Verdict(function.__name__)
            try:
                function(verdict, *answers)
            except _Failed:
                pass
            except (NotImplementedError, NotAttempted):
                return Score(0, points, [("note", "not attempted")])
            except NoTorch as error:
                verdict.reasons.append(("note", str(error)))
            except LabError as error:
                verdict.reasons.append(("no", str(error)))
            except Exception as error:
                verdict.reasons.append(("no", _their_line(error)))
            return Score(verdict.points, points, verdict.reasons, verdict.figure)

        check.points = points
        return check

    return decorate


def _their_line(error):
    """An exception in the learner's code: what, and on which of their lines."""
    text = f"{type(error).__name__}: {error}"
    frames = [
        f
        for f in traceback.extract_tb(error.__traceback__)
        if f"{OURS}/" not in f.filename.replace("\\", "/")
    ]
    if frames:
        last = frames[-1]
        line = (last.line or linecache.getline(last.filename, last.lineno)).strip()
        text += f"\nline {last.lineno}, in {last.name}" + (f": {line}" if line else "")
    return text
