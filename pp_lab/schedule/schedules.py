"""Every schedule as a short pure function that returns data.

p is the number of ranks, m of micro-batches, v of chunks (stages) per rank. Sources are named
by paper, or by file at a commit of Megatron-LM (d98e8a64) and DualPipe (3da1bbea).
"""

# ruff: noqa: E741, E743 - I is the field's letter for the input gradient

from .blocks import repeated
from .errors import ScheduleError
from .op import Pair, ops
from .schedule import Schedule, bidirectional, loop, vshape


def gpipe(p: int, m: int) -> Schedule:
    """All forwards, then all backwards (GPipe, arXiv:1811.06965). Holds m activations."""
    _positive(p=p, m=m)
    rows = (ops("F", rank, range(m)) + ops("B", rank, range(m)) for rank in range(p))
    return Schedule("GPipe", rows, loop(p), m)


def one_f_one_b(p: int, m: int) -> Schedule:
    """One forward, one backward (PipeDream-flush, arXiv:2006.09503; Megatron's default).

    Rank r runs p-1-r forwards ahead, enough for the first backward to come back to it, and
    so never holds more than p-r activations.
    """
    _positive(p=p, m=m)
    rows = (
        alternate(ops("F", rank, range(m)), ops("B", rank, range(m)), warmup=p - 1 - rank)
        for rank in range(p)
    )
    return Schedule("1F1B", rows, loop(p), m)


def eager_1f1b(p: int, m: int) -> Schedule:
    """1F1B with twice the warm-up: two forwards in flight per hop instead of one.

    A message may then be on its way while both its ranks compute: no makespan is gained where
    messages take no time, all of the latency in the steady state where they do. It costs up
    to 2p-1 activations.
    """
    _positive(p=p, m=m)
    rows = (
        alternate(ops("F", rank, range(m)), ops("B", rank, range(m)), 2 * (p - 1 - rank))
        for rank in range(p)
    )
    return Schedule("eager 1F1B", rows, loop(p), m)


def interleaved(
    p: int, m: int, v: int, group: int | None = None, extra_warmup: int = 0
) -> Schedule:
    """1F1B over v chunks per rank (arXiv:2104.04473; schedules.py in Megatron-LM).

    Micro-batches go through the chunks in rounds. By default the rounds are balanced: m // p
    of them, as equal as can be, so any m is legal and no short round is left for the end.
    With `group` it is Megatron's strict grouping: rounds of that many micro-batches
    (microbatch_group_size_per_vp_stage) and a last one of what is left. `extra_warmup` more
    forwards run before the first backward on every rank.
    """
    _positive(p=p, m=m, v=v)
    _whole(extra_warmup=extra_warmup)
    rows = (
        alternate(forwards, backwards, warmup)
        for forwards, backwards, warmup in _rounds(p, m, v, group, extra_warmup)
    )
    return Schedule(f"interleaved 1F1B v={v}", rows, loop(p, v), m)


def looped_bfs(p: int, m: int, v: int) -> Schedule:
    """Breadth first (arXiv:2211.05953): all micro-batches at one chunk, then at the next.

    The bubble of interleaved 1F1B with the memory of GPipe.
    """
    _positive(p=p, m=m, v=v)
    rows = (
        [
            op
            for kind, chunks in (("F", range(v)), ("B", reversed(range(v))))
            for chunk in chunks
            for op in ops(kind, chunk * p + rank, range(m))
        ]
        for rank in range(p)
    )
    return Schedule(f"looped breadth-first v={v}", rows, loop(p, v), m)


def zb_h1(p: int, m: int) -> Schedule:
    """Zero bubble H1 (arXiv:2401.10241): 1F1B with W put off to where ranks would wait.

    On rank r the weight gradients lag r behind, which keeps within 1F1B's p activations.
    """
    _positive(p=p, m=m)
    rows = (_split(rank, m, warmup=p - 1 - rank, lag=rank) for rank in range(p))
    return Schedule("ZB-H1", rows, loop(p), m)


def zb_h2(p: int, m: int) -> Schedule:
    """Zero bubble H2 (arXiv:2401.10241): twice the warm-up, twice the lag, 2p activations.

    Each rank works without a gap, but ranks start late and end late: the gain appears only if
    the next step can start before this one has ended everywhere.
    """
    _positive(p=p, m=m)
    rows = (_split(rank, m, warmup=2 * (p - 1 - rank), lag=2 * rank) for rank in range(p))
    return Schedule("ZB-H2", rows, loop(p), m)


def zb_v(p: int, m: int) -> Schedule:
    """Zero bubble on a V (arXiv:2401.10241): rank r owns the stages r and 2p-1-r.

    No gap in any rank's work from m = 2p-1 on if F, I and W take the same time; p activations.
    """
    _positive(p=p, m=m)
    rows = (
        [op for op in _v_rank(p, rank, max(m, 2 * p - 1)) if op.microbatch < m] for rank in range(p)
    )
    return Schedule("ZB-V", rows, vshape(p), m)


def v_half(p: int, m: int) -> Schedule:
    """V-Half (arXiv:2405.15362): half of 1F1B's activation memory, (p+2)//2 whole ranks' worth."""
    _positive(p=p, m=m)
    gap = 3 if p % 2 == 0 else 0
    blocks = [
        (2 * r, 3 * p - r - 2, 3 * p + gap + 2 * r - 1, 6 * p + gap - r - 2) for r in range(p)
    ]
    return Schedule("V-Half", repeated(blocks, m, cap=2 * ((p + 2) // 2)), vshape(p), m)


def v_min(p: int, m: int) -> Schedule:
    """V-Min (arXiv:2405.15362): the least activation memory, (p+4)//3 whole ranks' worth."""
    _positive(p=p, m=m)
    gap = 2 if p % 3 == 0 else 0
    blocks = [(r, 2 * p - r - 1, 2 * p + gap + r, 4 * p + gap - r - 1) for r in range(p)]
    return Schedule("V-Min", repeated(blocks, m, cap=2 * ((p + 4) // 3)), vshape(p), m)


def dualpipe(p: int, m: int) -> Schedule:
    """DualPipe (DeepSeek-V3, arXiv:2412.19437; dualpipe.py in DualPipe).

    Micro-batches enter at both ends, half at each. So every rank holds two stages, of two
    copies of the model whose gradients must be summed.
    """
    _positive(p=p, m=m)
    if p % 2 or m % 2 or m < 2 * p:
        ranks = [p] if p % 2 == 0 else [q for q in (p - 1, p + 1) if q]
        nearest = " or ".join(f"p={q} m={max(2 * q, m + m % 2)}" for q in ranks)
        raise ScheduleError(
            f"DualPipe needs an even p, an even m and m >= 2p, not p={p} m={m}: "
            f"the nearest that will do is {nearest}"
        )
    halves = range(m // 2), range(m // 2, m)
    rows = []
    for rank in range(p):
        near, far = halves if rank < p // 2 else halves[::-1]  # each enters at its own end
        depth = min(rank, p - 1 - rank)
        rows.append(_two_ways(p // 2, depth, (depth, near), (p - 1 - depth, far)))
    return Schedule("DualPipe", rows, bidirectional(p), m)


def dualpipe_v(p: int, m: int) -> Schedule:
    """DualPipe cut in half (dualpipev.py in DualPipe): one copy, on a V of 2p stages.

    The way down and the way back up play the two directions.
    """
    _positive(p=p, m=m)
    if m < 2 * p:
        raise ScheduleError(
            f"DualPipeV needs m >= 2p, not p={p} m={m}: take m={2 * p} or more, "
            + (f"or p={m // 2} or less" if m > 1 else "and so at least m=2")
        )
    rows = (_two_ways(p, rank, (rank, range(m)), (2 * p - 1 - rank, range(m))) for rank in range(p))
    return Schedule("DualPipeV", rows, vshape(p), m)


def combined_1f1b(p: int, m: int, v: int = 1) -> Schedule:
    """1F1B whose steady state is pairs, so that each can hide the other's all-to-all.

    combined_1f1b.py in Megatron-LM: one more forward of warm-up on every rank, for otherwise
    the last rank would have to pair a forward with the backward of the same micro-batch.
    Megatron has it for p=1 and for v > 1; with v=1 this is the eager 1F1B's order in pairs.
    """
    _positive(p=p, m=m, v=v)
    rows = (
        alternate(forwards, backwards, warmup, pair=True)
        for forwards, backwards, warmup in _rounds(p, m, v, None, extra_warmup=1)
    )
    return Schedule(f"combined 1F1B v={v}", rows, loop(p, v), m)


def alternate(forwards, backwards, warmup, pair=False):
    """`warmup` forwards, then forward and backward in turn, then the backwards left over.

    With `pair`, a turn is one overlapped step.
    """
    warmup = max(0, min(warmup, len(forwards)))
    steady = len(forwards) - warmup
    turns = [None] * (2 * steady)
    turns[::2], turns[1::2] = forwards[warmup:], backwards[:steady]
    if pair:
        turns = list(map(Pair, turns[::2], turns[1::2]))
    return forwards[:warmup] + turns + backwards[steady:]


def _rounds(p, m, v, group, extra_warmup):
    """For each rank its forwards and backwards in interleaved order, and its warm-up."""
    if group is None:
        rounds = max(m // p, 1)
        ends = [-(-m * (k + 1) // rounds) for k in range(rounds)]
    else:
        _check_group(p, m, group)
        ends = [*range(group, m, group), m]
    starts = [0, *ends[:-1]]
    for rank in range(p):
        stages = range(rank, p * v, p)
        chunks = [
            [ops(kind, stage, range(m)) for stage in order]
            for kind, order in (("F", stages), ("B", stages[::-1]))
        ]
        forwards, backwards = (
            [op for a, z in zip(starts, ends, strict=True) for chunk in way for op in chunk[a:z]]
            for way in chunks
        )
        yield forwards, backwards, 2 * (p - 1 - rank) + (v - 1) * ends[0] + extra_warmup


def _check_group(p, m, group):
    """Megatron's conditions on microbatch_group_size_per_vp_stage, with their reasons."""
    _positive(group=group)
    legal = [n for n in range(p, m + 1) if m % n == 0 or m % n >= p]
    nearest = sorted(legal, key=lambda n: abs(n - group))[:2]
    advice = (
        f"the nearest that will do: {' or '.join(map(str, sorted(nearest)))}"
        if legal
        else f"with m={m} < p={p} no group will do, so leave `group` out"
    )
    if group < p:
        raise ScheduleError(
            f"group={group} is smaller than p={p}: a rank would turn to its next chunk before the "
            "first micro-batch has been through all ranks, so that it waits, and at many sizes "
            f"all wait in a circle; {advice}"
        )
    if group > m:
        raise ScheduleError(
            f"group={group} is larger than m={m}: there are not that many micro-batches; {advice}"
        )
    if group not in legal:
        raise ScheduleError(
            f"group={group} leaves a last round of {m % group} of the m={m} micro-batches, fewer "
            f"than p={p}: Megatron refuses it, as that round cannot fill the ranks; {advice}"
        )


def _split(stage, m, warmup, lag):
    """1F1B with split backwards: W runs `lag` behind I while there are forwards."""
    f, i, w = (ops(kind, stage, range(m)) for kind in "FIW")
    warmup, done = min(warmup, m), 0
    order = f[:warmup]
    for k in range(m):
        order += f[warmup + k : warmup + k + 1]
        order.append(i[k])
        if k >= lag or warmup + k >= m:
            order.append(w[done])
            done += 1
    return order + w[done:]


def _v_rank(p, rank, m):
    """ZB-V on one rank; chunk 0 is its stage on the way down, chunk 1 on the way back up."""
    F, I, W = (
        [iter(ops(kind, stage, range(m))) for stage in (rank, 2 * p - 1 - rank)] for kind in "FIW"
    )
    order = [next(F[0]) for _ in range(2 * (p - rank) - 1)]
    for _ in range(rank):
        order += next(F[1]), next(F[0])
    for _ in range(p - rank):
        order += next(F[1]), next(I[1]), next(W[1])
    for _ in range(m - p):
        turn = next(F[0], None), next(I[0]), next(W[0]), next(F[1]), next(I[1]), next(W[1])
        order += filter(None, turn)  # chunk 0 runs out of forwards first
    for _ in range(rank):
        order += next(I[0]), next(I[1])
    for _ in range(p - rank):
        order += next(I[0]), next(W[0])
    return order + [*W[1], *W[0]]


def _two_ways(half, depth, near, far):
    """One rank of DualPipe, in its eight steps; `near` and `far` are (stage, micro-batches).

    half: ranks between an end and the middle; depth: this rank's distance from its end. The
    near direction enters at that end, so the rank is early in it and late in the far one.
    """
    ways, waiting = (near, far), []
    forward = [iter(ops("F", *way)) for way in ways]
    backward = [iter(ops("B", *way)) for way in ways]
    n, rest, middle = len(near[1]), half - depth - 1, depth == half - 1

    def F(way):
        return next(forward[way])

    def B(way):
        return next(backward[way])

    def I(way):
        waiting.append(B(way)._replace(kind="W"))
        return waiting[-1]._replace(kind="I")

    def W():
        return waiting.pop(0)

    order = [F(0) for _ in range(2 * rest)]
    order += [F(way) for _ in range(depth + 1) for way in (0, 1)]
    order += [step() for _ in range(rest) for step in (lambda: I(1), W, lambda: F(1))]
    for k in range(n - 2 * half + depth + 1):
        # In the middle the two directions meet, and the first micro-batch has just turned.
        order += [F(0), B(1)] if middle and k == 0 else [Pair(F(0), B(1))]
        order += [Pair(F(1), B(0))]
    order += [step for _ in range(rest) for step in (B(1), Pair(F(1), B(0)))]
    order += [B(1 - k % 2) if k <= depth else I(1 - k % 2) for k in range(2 * (depth + 1))]
    order += [step() for _ in range(rest) for step in (W, lambda: I(0))]
    return order + [W() for _ in range(depth + 1)]


def _positive(**sizes):
    for name, value in sizes.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ScheduleError(f"{name}={value!r}: {name} must be a whole number, at least 1")


def _whole(**numbers):
    for name, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, int):
            raise ScheduleError(f"{name}={value!r}: {name} must be a whole number")
