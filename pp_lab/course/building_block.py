"""The building block of a schedule on a V: what a learner's must keep to, and what it holds.

A block has, for each rank, the steps of micro-batch 0's F on the way down, F on the way up, I on
the way up and I on the way down. See `pp_lab.schedule.blocks`, which repeats it.
"""

from ..schedule.blocks import PERIOD
from .words import short

NAMES = ("F down", "F up", "I up", "I down")


def checked(verdict, call, block, p):
    """The block, if each step comes after what it needs and none meets another; else the check
    ends.

    call: what gave it, for the learner
    """
    if not isinstance(block, (list, tuple)) or len(block) != p:
        given = f"{len(block)} rows" if isinstance(block, (list, tuple)) else short(block)
        verdict.fail(
            f"{call} gives {given}: return a list with four steps for each of the {p} ranks"
        )
    for r, row in enumerate(block):
        if not isinstance(row, (list, tuple)) or len(row) != 4 or not all(
            isinstance(x, int) and not isinstance(x, bool) and x >= 0 for x in row
        ):  # fmt: skip
            verdict.fail(
                f"{call}, rank {r}: {short(row)} is not four steps, whole numbers from 0: F and I "
                "of the two stages, in the order F down, F up, I up, I down"
            )
    down, up, back, home = zip(*block, strict=True)
    # One micro-batch's way, op by op: what, on which rank, in which step.
    way = [("F", r, r, down[r]) for r in range(p)]
    way += [("F", 2 * p - 1 - r, r, up[r]) for r in reversed(range(p))]
    way += [("I", 2 * p - 1 - r, r, back[r]) for r in range(p)]
    way += [("I", r, r, home[r]) for r in reversed(range(p))]
    for (kind, stage, rank, step), (k, s, r, then) in zip(way, way[1:], strict=False):
        if then <= step:
            verdict.fail(
                f"p={p}: {s}{k}0 on rank {r} stands in step {then}, but it needs {stage}{kind}0, "
                f"which rank {rank} runs in step {step}: the earliest is step {step + 1}"
            )
    for r, row in enumerate(block):
        for a in range(4):
            for b in range(a + 1, 4):
                if (row[b] - row[a]) % PERIOD == 0:
                    verdict.fail(
                        f"p={p}, rank {r}: {NAMES[a]} in step {row[a]} and {NAMES[b]} in step "
                        f"{row[b]} meet: {PERIOD} steps make a period, so some micro-batch's one "
                        f"and another's other want the same step. Let {NAMES[b]} wait"
                    )
    return [tuple(row) for row in block]


def _weights(row):
    """The steps of the two W: the next free one of the period after each I."""
    taken, steps = {x % PERIOD for x in row}, []
    for start in (row[2], row[3]):
        step = start + 1
        while step % PERIOD in taken:
            step += 1
        taken.add(step % PERIOD)
        steps.append(step)
    return steps


def lifespans(row):
    """How many steps the two stages of a rank keep one micro-batch's activation, F to W."""
    up, down = _weights(row)
    return (down + 1 - row[0]) + (up + 1 - row[1])


def peaks(block, m):
    """For each rank, how many activations it holds if the block is repeated m times as it is."""
    peaks = []
    for row in block:
        once = [(step, 1) for step in row[:2]] + [(step, -1) for step in _weights(row)]
        changes = [(step + PERIOD * i, change) for i in range(m) for step, change in once]
        held = most = 0
        for _, change in sorted(changes):
            held += change
            most = max(most, held)
        peaks.append(most)
    return peaks
