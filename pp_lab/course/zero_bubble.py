"""Orders of F, I and W in which W lags behind: made, and looked at for where they lose.

The sentences are for orders that are legal.
"""

from ..schedule import Op, Schedule, loop


def lagging(p, m, lags, warmups=None):
    """1F1B with split backwards: on rank r, W runs `lags[r]` micro-batches behind I.

    When a rank is out of forwards, a W follows each I, and the rest of W comes last. The
    warm-ups are 1F1B's, p-1-r forwards, unless given.
    """
    rows = []
    for rank in range(p):
        f, i, w = ([Op(kind, rank, k) for k in range(m)] for kind in "FIW")
        warmup, late = p - 1 - rank if warmups is None else warmups[rank], iter(w)
        row = f[:warmup]
        for k in range(m):
            row += [*f[warmup + k : warmup + k + 1], i[k]]
            if k >= lags[rank] or warmup + k >= m:
                row.append(next(late))
        rows.append([*row, *late])
    return Schedule(f"W lags by {' '.join(map(str, lags))}", rows, loop(p), m)


def repeated(schedule, steps):
    """Several training steps behind each other: each rank starts one when it has ended the last."""
    m = schedule.microbatches
    rows = [
        [op._replace(microbatch=op.microbatch + k * m) for k in range(steps) for op in row]
        for row in schedule.ranks
    ]
    return Schedule(f"{schedule.name}, {steps} steps", rows, schedule.placement, m * steps)


def warmup_and_lag(row):
    """Forwards before the first I, and by how much the first W lags behind its I."""
    kinds = "".join(op.kind for op in row)
    return kinds.index("I"), kinds[: kinds.index("W")].count("I") - 1


def overfull(trace, caps, per_hop):
    """The first rank that holds more than its cap, and why: a sentence, or None.

    per_hop: forwards of warm-up, and lag of W, that each rank has more than its neighbour
    """
    full = [rank for rank, cap in enumerate(caps) if trace.peak_activations[rank] > cap]
    if not full:
        return None
    rank, schedule = full[0], trace.schedule
    row = schedule.ranks[rank]
    forwards, lag = warmup_and_lag(row)
    enough, late = 1 + per_hop * (schedule.p - 1 - rank), per_hop * rank
    kinds = "".join(op.kind for op in row)
    if lag > late and "F" not in kinds[kinds.index("W") :]:
        why = "its W pile up until the forwards are through, and so do the activations"
    elif forwards > enough:
        why = f"it runs {forwards} forwards before its first I, {enough} are enough"
    elif lag > late:
        why = f"its first W comes {lag} micro-batches after its I, where {late} is the most"
    else:
        why = "an activation lives until its W, so do not let W fall further behind"
    return (
        f"rank {rank} holds {trace.peak_activations[rank]} activations, {caps[rank]} is the "
        f"limit: {why}"
    )


def slow(schedule):
    """Where an order as that of ZB-H1 loses its time, as far as known: the end of a sentence."""
    p, m = schedule.p, schedule.microbatches
    shapes = [warmup_and_lag(row) for row in schedule.ranks]
    for rank, (forwards, _) in enumerate(shapes):
        if forwards < min(p - rank, m):
            return (
                f": rank {rank} has too few forwards before its first I, {forwards}. As in 1F1B, "
                f"it needs {min(p - rank, m)}"
            )
    if all(lag == 0 for _, lag in shapes):
        return (
            ": every W follows its I at once, so the rank before waits for it as for a whole "
            "backward. Later ranks have to put W off: by how many micro-batches may rank r?"
        )
    return ". Does rank r start W when it has run more than r input gradients, and not before?"


def gaps(schedule):
    """Why an order as that of ZB-H2 has gaps, as far as known: the end of a sentence."""
    p, m = schedule.p, schedule.microbatches
    shapes = [warmup_and_lag(row) for row in schedule.ranks]
    for rank, (forwards, _) in enumerate(shapes):
        if forwards < min(2 * (p - 1 - rank) + 1, m):
            return (
                f": rank {rank} runs {forwards} forwards before its first I. It is busy until "
                f"its first gradient comes if it runs {min(2 * (p - 1 - rank) + 1, m)}"
            )
        if forwards > 2 * (p - 1 - rank) + 1:
            return (
                f": rank {rank} runs {forwards} forwards before its first I, and its first "
                f"gradient has come after {2 * (p - 1 - rank) + 1}"
            )
    if any(lag < min(2 * rank, m - forwards) for rank, (forwards, lag) in enumerate(shapes)):
        return ": with twice the warm-up, W has to lag twice as much too, 2r on rank r"
    return ". Which rank waits, and for what? Look at the picture"
