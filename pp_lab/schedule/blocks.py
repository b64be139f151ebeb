"""Schedules from a repeated building block (arXiv:2405.15362), on a V of two stages per rank.

The block says when one micro-batch runs where, in steps in which F, I and W each take one.
Micro-batches follow each other every six steps, so a rank's six ops never meet. While the
pipeline fills and drains there is room: each rank then runs what it can as early as it can,
if the rest of the plan still fits under the memory cap.
"""

from itertools import count

from .op import Op, needs, ops

PERIOD = 6


def repeated(blocks, m, cap):
    """Rows of ops for blocks repeated m times, with never more than `cap` activations.

    blocks: for each rank the steps of micro-batch 0's F on its first stage, F on its second,
    I on its second, I on its first.

    Nobody ever waits for ever: of all ops that are left, the first one planned can always run.
    """
    p = len(blocks)
    plans = [_plan(rank, 2 * p - 1 - rank, block, m) for rank, block in enumerate(blocks)]
    rows, held, now = [[] for _ in blocks], [0] * p, 0
    # For a stage's ops of a kind the steps at which they ended, by micro-batch, and what they need.
    ended = {(kind, stage): [] for kind in "FIW" for stage in range(2 * p)}
    waits = {op: [ended[need[:2]] for need in needs(Op(*op, 0), 2 * p)] for op in ended}
    while any(plans):
        for rank, plan in enumerate(plans):
            filling = len(ended["F", rank]) < m
            place = _first(plan, filling, held[rank], cap, waits, now)
            if place is not None:
                op = plan.pop(place)
                rows[rank].append(op)
                held[rank] += (op.kind == "F") - (op.kind == "W")
                ended[op[:2]].append(now + 1)
        now += 1
    return rows


def _plan(first, second, block, m):
    """A rank's ops in the order of their planned steps; W takes the next step that is free."""
    kinds = [("F", first), ("F", second), ("I", second), ("I", first)]
    steps = dict(zip(kinds, block, strict=True))
    for stage in (second, first):
        step = steps["I", stage] + 1
        while step % PERIOD in {taken % PERIOD for taken in steps.values()}:
            step += 1
        steps["W", stage] = step
    planned = []
    for (kind, stage), step in steps.items():
        planned += zip(count(step, PERIOD), ops(kind, stage, range(m)), strict=False)
    return [op for _, op in sorted(planned)]


def _first(plan, filling, held, cap, waits, now):
    """The place in the plan of the op that runs now: the first one that can, if there is one.

    A forward may overtake what is planned before it if all of that fits beside it. The weight
    gradients run as planned while new micro-batches come, and after that only where there is
    nothing else to do.
    """
    top, seen, spare = held, set(), None
    for place, (kind, stage, i) in enumerate(plan):
        if (kind, stage) not in seen:  # micro-batches do not overtake each other
            seen.add((kind, stage))
            for ended in waits[kind, stage]:
                if len(ended) <= i or ended[i] > now:
                    break
            else:
                if kind != "F" or top < cap:
                    if filling or kind != "W":
                        return place
                    spare = place if spare is None else spare
            if len(seen) == PERIOD:
                break
        held += (kind == "F") - (kind == "W")
        top = max(top, held)
    return spare
