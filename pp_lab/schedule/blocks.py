"""Schedules from a repeated building block (arXiv:2405.15362), on a V of two stages per rank.

The block says when one micro-batch runs where, in steps in which F, I and W each take one.
Micro-batches follow each other every six steps, so a rank's six ops never meet. While the
pipeline fills and drains there is room: each rank then runs what it can as early as it can,
if the rest of the plan still fits under the memory cap.
"""

from .op import Op, needs

PERIOD = 6


def repeated(blocks, m, cap):
    """Rows of ops for blocks repeated m times, with never more than `cap` activations.

    blocks: for each rank the steps of micro-batch 0's F on its first stage, F on its second,
    I on its second, I on its first.

    Nobody ever waits for ever: of all ops that are left, the first one planned can always run.
    """
    p = len(blocks)
    plans = [_plan(rank, 2 * p - 1 - rank, block, m) for rank, block in enumerate(blocks)]
    rows, held, done, now = [[] for _ in blocks], [0] * p, {}, 0
    while any(plans):
        for rank, plan in enumerate(plans):
            filling = ("F", rank, m - 1) not in done
            # The weight gradients run as planned while new micro-batches come, and after that
            # only where there is nothing else to do.
            for kinds in ("FIW",) if filling else ("FI", "W"):
                op = _first(plan, kinds, held[rank], cap, done, now, 2 * p)
                if op:
                    plan.remove(op)
                    rows[rank].append(op)
                    held[rank] += (op.kind == "F") - (op.kind == "W")
                    done[op] = now + 1
                    break
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
    planned = [(step + PERIOD * i, Op(*op, i)) for op, step in steps.items() for i in range(m)]
    return [op for _, op in sorted(planned)]


def _first(plan, kinds, held, cap, done, now, stages):
    """The first planned op of these kinds that can run now, if there is one.

    A forward may overtake what is planned before it if all of that fits beside it.
    """
    top, seen = held, set()
    for op in plan:
        if op[:2] not in seen:  # micro-batches do not overtake each other
            seen.add(op[:2])
            ready = all(done.get(need, now + 1) <= now for need in needs(op, stages))
            if ready and op.kind in kinds and (op.kind != "F" or top < cap):
                return op
        if len(seen) == PERIOD:
            return None
        held += (op.kind == "F") - (op.kind == "W")
        top = max(top, held)
    return None
