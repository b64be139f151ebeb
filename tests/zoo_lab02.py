"""Answers to the exercises of lab 2: right ones, and wrong ones with what each must be told.

RIGHT[exercise] and WRONG[exercise] list tuples of answers; a wrong one ends with a regular
expression that the check's reasons must match. PROGRAMS: the exercises whose answer is one
function of a rank.
"""

from pp_lab import Cost, Op, ScheduleError, schedules, simulate
from pp_lab.course.lab02 import interleaved_with

# ---- placement and bubble


def looped(p, v):
    return [[c * p + r for c in range(v)] for r in range(p)]


def simulated_bubble(p, m, v):
    trace = simulate(schedules.interleaved(p, m, v), Cost(F=1, B=2).split(v))
    return trace.idle[0], trace.bubble


def idle(p, m, v):
    return 3 * (p - 1) / v


def part(p, m, v):
    return (p - 1) / (m * v + p - 1)


# ---- tables


def groups(m, group):
    return [range(a, min(a + group, m)) for a in range(0, m, group)]


def forward_table(m, v, group):
    return [(i, c) for g in groups(m, group) for c in range(v) for i in g]


def backward_table(m, v, group):
    return [(i, v - 1 - c) for i, c in forward_table(m, v, group)]


def forward_by_counting(m, v, group):
    """Lists instead of tuples, and one position after the other."""
    table = []
    for k in range(m * v):
        first = k // (group * v) * group
        size = min(group, m - first)
        chunk, i = divmod(k - first * v, size)
        table.append([first + i, chunk])
    return table


def backward_by_rounds(m, v, group):
    return [(i, c) for g in groups(m, group) for c in reversed(range(v)) for i in g]


def dropping_the_rest(m, v, group):
    return forward_table(m - m % group, v, group)


def padding_the_rest(m, v, group):
    return [(i, c) for a in range(0, m, group) for c in range(v) for i in range(a, a + group)]


# ---- warm-up


def warmup(p, m, v, rank, k):
    return min(k * (p - 1 - rank) + (v - 1) * p, m * v)


def counted_warmup(p, m, v, rank, k):
    row = interleaved_with(p, m, v, k).ranks[rank]
    return next(n for n, op in enumerate(row) if op.kind == "B") - 1


def simulated_choice(p, m, v, c):
    found = []
    for k in (1, 2, 3):
        try:
            trace = simulate(interleaved_with(p, m, v, k), Cost(F=1, B=2, comm=c).split(v))
        except ScheduleError:
            continue
        found.append((trace.makespan, trace.peak_activations[0], k))
    return min(found)[2]


def equally_good_choice(p, m, v, c):
    """Where two are equally fast in equally much memory, the larger one."""
    found = {}
    for k in (1, 2, 3):
        try:
            trace = simulate(interleaved_with(p, m, v, k), Cost(F=1, B=2, comm=c).split(v))
        except ScheduleError:
            continue
        found[trace.makespan, max(trace.peak_activations)] = k
    return found[min(found)]


# ---- the schedule


def rows(p, m, v, warmups, forwards=forward_table, backwards=backward_table):
    """The rows of ops for a list of warm-ups and two tables."""
    made = []
    for r, w in enumerate(warmups):
        f = [Op("F", c * p + r, i) for i, c in forwards(m, v, p)]
        b = [Op("B", c * p + r, i) for i, c in backwards(m, v, p)]
        w = max(0, min(w, len(f)))
        row = f[:w]
        for k in range(len(f) - w):
            row += [f[w + k], b[k]]
        made.append(row + b[len(f) - w :])
    return made


def interleaved(p, m, v):
    return rows(p, m, v, [warmup(p, m, v, r, 2) for r in range(p)])


def interleaved_with_less_memory(p, m, v, k=1):
    return rows(p, m, v, [warmup(p, m, v, r, k) for r in range(p)])


def interleaved_from_the_package(p, m, v):
    return [list(row) for row in schedules.interleaved(p, m, v).ranks]


def one_more(p, m, v):
    return rows(p, m, v, [warmup(p, m, v, r, 2) + 1 for r in range(p)])


def one_less(p, m, v):
    return rows(p, m, v, [warmup(p, m, v, r, 2) - 1 for r in range(p)])


def warmup_of_1f1b(p, m, v):
    return rows(p, m, v, [2 * (p - 1 - r) for r in range(p)])


def same_warmup(p, m, v):
    return rows(p, m, v, [warmup(p, m, v, 0, 2)] * p)


def backwards_as_forwards(p, m, v):
    return rows(p, m, v, [warmup(p, m, v, r, 2) for r in range(p)], backwards=forward_table)


def breadth_first(p, m, v):
    return [list(row) for row in schedules.looped_bfs(p, m, v).ranks]


def depth_first(p, m, v):
    def table(m, v, group):
        return forward_table(m, v, 1)

    def back(m, v, group):
        return backward_table(m, v, 1)

    return rows(p, m, v, [m * v] * p, table, back)


def chunk_as_stage(p, m, v):
    """Forgets that chunk c of rank r is stage c*p + r."""
    return [
        [Op(op.kind, op.stage // p, op.microbatch) for op in row] for row in interleaved(p, m, v)
    ]


def neighbours_on_a_rank(p, m, v):
    return [
        [Op(op.kind, r * v + op.stage // p, op.microbatch) for op in row]
        for r, row in enumerate(interleaved(p, m, v))
    ]


def without_cooldown(p, m, v):
    made = interleaved(p, m, v)
    return [
        row[: len(row) - warmup(p, m, v, r, 2)] if warmup(p, m, v, r, 2) else row
        for r, row in enumerate(made)
    ]


# ---- groups and rounds


def refused(p, m, group):
    if group < p:
        return "small"
    if group > m:
        return "large"
    return "rest" if 0 < m % group < p else None


def refused_by_rounds(p, m, group):
    sizes = [min(group, m - a) for a in range(0, m, group)]
    if group < p or group > m:
        return "small" if group < p else "large"
    return None if sizes[-1] >= min(p, group) else "rest"


def balanced(p, m):
    count = max(m // p, 1)
    return [m // count + (k < m % count) for k in range(count)]


def balanced_by_ends(p, m):
    count = max(m // p, 1)
    ends = [-(-m * k // count) for k in range(count + 1)]
    return [b - a for a, b in zip(ends, ends[1:], strict=False)]


PROGRAMS = ()

RIGHT = {
    "place": [(looped,), (lambda p, v: [list(range(r, p * v, p)) for r in range(p)],)],
    "bubble": [(lambda p, m, v: (idle(p, m, v), part(p, m, v)),), (simulated_bubble,)],
    "tables": [(forward_table, backward_table), (forward_by_counting, backward_by_rounds)],
    "warmup": [(warmup,), (counted_warmup,)],
    "interleaved": [
        (interleaved,),
        (interleaved_with_less_memory,),
        (interleaved_from_the_package,),
    ],
    "price": [
        (lambda p, m, v: (2 * m * (p * v - 1), min(2 * (p - 1) + (v - 1) * p + 1, m * v)),),
        (
            lambda p, m, v: (
                schedules.interleaved(p, m, v).messages,
                max(simulate(schedules.interleaved(p, m, v)).peak_activations),
            ),
        ),
    ],
    "choose": [(simulated_choice,), (equally_good_choice,)],
    "refused": [(refused,), (refused_by_rounds,)],
    "rounds": [(balanced,), (balanced_by_ends,)],
}

WRONG = {
    "place": [
        (lambda p, v: [list(range(r * v, r * v + v)) for r in range(p)], "plain pipeline again"),
        (lambda p, v: [[r, 2 * p - 1 - r][:v] for r in range(p)], "That is a V"),
        (lambda p, v: [list(range(c * p, c * p + p)) for c in range(v)], "lists for|plain"),
        (lambda p, v: [[c * v + r for c in range(v)] for r in range(p)], "stage . is there twice"),
        (lambda p, v: [[c * p + r + 1 for c in range(v)] for r in range(p)], "count from 0"),
        (lambda p, v: [row[::-1] for row in looped(p, v)], "rank 0 has .2, 0.. Chunk 0 is"),
        (lambda p, v: [row[:1] for row in looped(p, v)], "stage 2 is on no rank"),
        (lambda p, v: looped(p, v)[::-1], "A micro-batch starts on rank 0"),
        (lambda p, v: looped(p, v + 1), "the last is 3"),
        (lambda p, v: [s % p for s in range(p * v)], "not a list of stages for each rank"),
        (lambda p, v: [[float(s) for s in row] for row in looped(p, v)], "a stage is a number"),
        (lambda p, v: None, "gives None.*is a return missing"),
    ],
    "bubble": [
        (lambda p, m, v: (3 * (p - 1), part(p, m, v)), "that is a plain pipeline's. To fill it"),
        (lambda p, m, v: ((p - 1) / v, part(p, m, v)), "counts slots"),
        (lambda p, m, v: (3 * p / v, part(p, m, v)), "one hop too many"),
        (lambda p, m, v: (3 * (p - 1) * v, part(p, m, v)), "grows with v"),
        (lambda p, m, v: (3 * (p * v - 1) / v, part(p, m, v)), "the way through all p.v stages"),
        (lambda p, m, v: (p * idle(p, m, v), part(p, m, v)), "of all ranks together"),
        (lambda p, m, v: (part(p, m, v), idle(p, m, v)), "The idle time comes first"),
        (lambda p, m, v: (idle(p, m, v), (p - 1) / (m + p - 1)), "that is a plain pipeline's"),
        (lambda p, m, v: (idle(p, m, v), (p - 1) / (m + p - 1) / v), "its part is not"),
        (lambda p, m, v: (idle(p, m, v), (p - 1) / (m * v)), "idle over busy time"),
        (lambda p, m, v: (idle(p, m, v), 1 - part(p, m, v)), "the busy part"),
        (lambda p, m, v: (idle(p, m, v), 100 * part(p, m, v)), "in per cent"),
        (
            lambda p, m, v: (idle(p, m, v), (p * v - 1) / (m + p * v - 1)),
            "a plain pipeline with p.v ranks",
        ),
        (lambda p, m, v: (idle(p, m, v), 0.5), "Count one row of a picture"),
        (lambda p, m, v: idle(p, m, v), "give two numbers"),
        (lambda p, m, v: (float("nan"), part(p, m, v)), "gives nan, not a number"),
        (lambda p, m, v: None, "is a return missing"),
    ],
    "tables": [
        (
            lambda m, v, n: [(i, c) for i in range(m) for c in range(v)],
            backward_table,
            "one micro-batch through all chunks",
        ),
        (lambda m, v, n: forward_table(m, v, m), backward_table, "breadth first"),
        (
            lambda m, v, n: [(c, i) for i, c in forward_table(m, v, n)],
            backward_table,
            "the micro-batch comes first",
        ),
        (dropping_the_rest, backward_table, "the last group is missing"),
        (padding_the_rest, backward_table, "no micro-batch that does not exist"),
        (
            lambda m, v, n: [(i - g[0], c) for g in groups(m, n) for c in range(v) for i in g],
            backward_table,
            "starts at micro-batch 0 again",
        ),
        (
            lambda m, v, n: forward_table(m, v, v),
            backward_table,
            "at position 2 stands .0, 1., but .2, 0. comes there",
        ),
        (
            lambda m, v, n: [*zip(*forward_table(m, v, n), strict=True)],
            backward_table,
            "not two lists",
        ),
        (lambda m, v, n: [i for i, _ in forward_table(m, v, n)], backward_table, "0 is not a pair"),
        (lambda m, v, n: None, backward_table, "is a return missing"),
        (forward_table, forward_table, "that is the forward order"),
        (forward_table, lambda m, v, n: forward_table(m, v, n)[::-1], "Only the chunks are"),
        (
            forward_table,
            lambda m, v, n: [(i, v - c) for i, c in forward_table(m, v, n)],
            "chunks count from 0",
        ),
        (forward_table, lambda m, v, n: backward_table(m, v, m), "at one chunk first"),
        (forward_table, lambda m, v, n: backward_table(m - m % n, v, n), "but .* comes there"),
    ],
    "warmup": [
        (lambda p, m, v, r, k: k * (p - 1 - r) + (v - 1) * p, "only m.v forwards"),
        (lambda p, m, v, r, k: k * (p - 1 - r), "enough for one chunk"),
        (lambda p, m, v, r, k: warmup(p, m, v, r, 2), "always two"),
        (lambda p, m, v, r, k: warmup(p, m, v, r, 1), "always one"),
        (lambda p, m, v, r, k: min(k * (p - 1 - r) + v * p, m * v), "one group too many"),
        (lambda p, m, v, r, k: min(k * (p - 1 - r) + (v - 1) * m, m * v), "all micro-batches"),
        (lambda p, m, v, r, k: min(k * r + (v - 1) * p, m * v), "the other way round"),
        (lambda p, m, v, r, k: min(k * (p - r) + (v - 1) * p, m * v), "after rank r come p-1-r"),
        (lambda p, m, v, r, k: min(warmup(p, m, v, r, k) + 1, m * v), "not part of the warm-up"),
        (lambda p, m, v, r, k: min(k * v * (p - 1 - r) + (v - 1) * p, m * v), "hops are hops"),
        (lambda p, m, v, r, k: warmup(p, m, v, r, k) - 1, "it would hold 3 .* would take"),
        (lambda p, m, v, r, k: m * v, "wait for each other for ever"),
        (lambda p, m, v, r, k: 2.5, "is whole"),
        (lambda p, m, v, r, k: None, "is a return missing"),
    ],
    "interleaved": [
        (one_more, "rank 0 holds 12 chunk activations, but 11 are enough: is its warm-up"),
        (one_less, "7B0 needs 7F0, which stands only later"),
        (warmup_of_1f1b, "deadlock|stands only later"),
        (same_warmup, "All ranks have the same warm-up"),
        (backwards_as_forwards, "deadlock|stands only later"),
        (breadth_first, "that is breadth first. Alternate"),
        (depth_first, "it has to go round all ranks"),
        (chunk_as_stage, "1F0 belongs to rank 1, which owns stage 1"),
        (neighbours_on_a_rank, "belongs to rank"),
        (without_cooldown, "never runs .B"),
        (
            lambda p, m, v: [[tuple(op) for op in row] for row in interleaved(p, m, v)],
            r"is not an op. Write Op\(",
        ),
        (lambda p, m, v: [op for row in interleaved(p, m, v) for op in row], "not a list of ops"),
        (lambda p, m, v: interleaved(p, m, v)[:-1], "lists for 3 ranks, not for 4"),
        (lambda p, m, v: interleaved(p, m, 1), "never runs|names stage"),
        (lambda p, m, v: None, "is a return missing"),
    ],
    "price": [
        (lambda p, m, v: (2 * m * (p - 1) * v, 0), "from the last rank back to the first"),
        (lambda p, m, v: (2 * m * p * v, 0), "p.v - 1 boundaries"),
        (lambda p, m, v: (m * (p * v - 1), 0), "gradients are sent too"),
        (lambda p, m, v: (2 * m * (p - 1), 0), "that is 1F1B's"),
        (lambda p, m, v: (2 * (p * v - 1), 0), "one micro-batch's"),
        (
            lambda p, m, v: (2 * m * (p * v - 1), 2 * (p - 1) + (v - 1) * p + 1),
            "there are only m.v forwards",
        ),
        (
            lambda p, m, v: (2 * m * (p * v - 1), min(2 * (p - 1) + (v - 1) * p, m * v)),
            "that is the warm-up",
        ),
        (
            lambda p, m, v: (2 * m * (p * v - 1), p * v),
            "p ranks' worth, as in 1F1B, and enough for k=1",
        ),
        (lambda p, m, v: (2 * m * (p * v - 1), p + (p - 1) / v), "in whole ranks' worth"),
        (lambda p, m, v: (2 * m * (p * v - 1), m * v), "all of them, as in GPipe"),
        (lambda p, m, v: (2 * m * (p * v - 1), p), "that is 1F1B's. Take the warm-up"),
        (lambda p, m, v: 2 * m * (p * v - 1), "give two numbers"),
        (lambda p, m, v: None, "is a return missing"),
    ],
    "choose": [
        (lambda p, m, v, c: 2, "k=1 is as fast and holds 8"),
        (lambda p, m, v, c: 1, "more forwards in hand"),
        (lambda p, m, v, c: 3, "with k=3 the ranks deadlock"),
        (lambda p, m, v, c: 2 if c else 1, "k=3 takes 2"),
        (lambda p, m, v, c: simulated_choice(p, m, v, 0), "more forwards in hand"),
        (
            lambda p, m, v, c: simulate(interleaved_with(p, m, v, 3)) and 2,
            "deadlock: rank 0 waits",
        ),
        (lambda p, m, v, c: 28.5, "gives 28.5: k is 1, 2 or 3"),
        (lambda p, m, v, c: None, "is a return missing"),
    ],
    "refused": [
        (lambda p, m, n: None, "group=1. gives None, Megatron says 'small'"),
        (lambda p, m, n: "rest" if m % n else refused(p, m, n), "turn to its next chunk"),
        (
            lambda p, m, n: refused(p, m, n) or ("rest" if m % n else None),
            "has 4 micro-batches for 4 ranks, which is enough",
        ),
        (lambda p, m, n: refused(p, m, n) if n < p or n > m else None, "It would take"),
        (
            lambda p, m, n: "rest" if m % p else refused(p, m, n),
            "Megatron says",
        ),
        (lambda p, m, n: "small" if n <= p else refused(p, m, n), "make whole rounds of 4"),
        (
            lambda p, m, n: "large" if n >= m else refused(p, m, n),
            "gives 'large', Megatron says (None|'small')",
        ),
        (
            lambda p, m, n: "large" if n > m else refused(p, m, n),
            "it breaks both rules, and the first one counts",
        ),
        (lambda p, m, n: refused(p, m, n) is None, "give None, 'small', 'large', 'rest'"),
        (lambda p, m, n: "", "give None"),
    ],
    "rounds": [
        (lambda p, m: [min(p, m - a) for a in range(0, m, p)], "a round of 2 cannot fill 4 ranks"),
        (lambda p, m: [m], "but rank 0 holds 17 chunks, and 12 are enough"),
        (lambda p, m: balanced(p, m)[::-1], "the larger rounds first"),
        (lambda p, m: [p] * (m // p - 1) + [p + m % p] if m >= p else [m], "larger rounds first"),
        (lambda p, m: [m % p] * (m % p > 0) + [p] * (m // p), "deadlocks|cannot fill"),
        (lambda p, m: [p] * (m // p), "8 micro-batches, not 10"),
        (lambda p, m: [p + m % p] + [p] * (m // p - 1), "rank 0 holds 13 chunks, and 12"),
        (lambda p, m: [-(-m // (m // p))] * (m // p), "micro-batches, not"),
        (lambda p, m: [1] * m, "deadlocks. A round of 1 is shorter"),
        (lambda p, m: [m / 2, m / 2], "a round is a whole number"),
        (lambda p, m: m // p, "gives 2, not a list"),
        (lambda p, m: None, "is a return missing"),
    ],
}
