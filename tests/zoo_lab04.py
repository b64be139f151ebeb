"""Answers to the exercises of lab 4: right ones, and wrong ones with what each must be told."""

import torch

from pp_lab import Op, Pair, schedules

# ---- placements


def v_placement(p):
    return [*range(p), *reversed(range(p))]


def v_placement_by_formula(p):
    return tuple(min(s, 2 * p - 1 - s) for s in range(2 * p))


def two_way_placement(p):
    return [list(range(p)), list(range(p))[::-1]]


def two_way_by_formula(p):
    return tuple(tuple(s if c == 0 else p - 1 - s for s in range(p)) for c in (0, 1))


# ---- ZB-V


def zb_v(p, m):
    ranks = []
    for r in range(p):
        a, b = (
            {kind: iter([Op(kind, stage, i) for i in range(m)]) for kind in "FIW"}
            for stage in (r, 2 * p - 1 - r)
        )
        row = [next(a["F"]) for _ in range(2 * (p - r) - 1)]
        for _ in range(r):
            row += [next(b["F"]), next(a["F"])]
        for _ in range(p - r):
            row += [next(b[kind]) for kind in "FIW"]
        for _ in range(m - p):
            row += [op for op in [next(a["F"], None)] if op]
            row += [next(a["I"]), next(a["W"])] + [next(b[kind]) for kind in "FIW"]
        for _ in range(r):
            row += [next(a["I"]), next(b["I"])]
        for _ in range(p - r):
            row += [next(a["I"]), next(a["W"])]
        ranks.append(row + [*b["W"], *a["W"]])
    return ranks


def of(schedule):
    return lambda p, m: [list(row) for row in schedule(p, m).ranks]


def edited(schedule, edit):
    """The rows of a schedule, each gone through by edit(row, rank, p, m)."""
    return lambda p, m: [
        edit(list(row), rank, p, m) for rank, row in enumerate(schedule(p, m).ranks)
    ]


def whole(row, *_):
    """Full backwards where there were halves."""
    return [op._replace(kind="B") if op.kind == "I" else op for op in row if op.kind != "W"]


def w_to_the_end(row, *_):
    return [op for op in row if op.kind != "W"] + [op for op in row if op.kind == "W"]


def without_tail(row, *_):
    while row[-1].kind == "W":
        row.pop()
    return row


def on_a_loop(row, rank, p, m):
    """Chunk 1 of rank r as stage p + r."""
    return [op._replace(stage=p + rank) if op.stage >= p else op for op in row]


def from_one(row, *_):
    """Micro-batches 1 to m."""

    def later(op):
        return op._replace(microbatch=op.microbatch + 1)

    return [Pair(*map(later, x)) if isinstance(x, Pair) else later(x) for x in row]


def one_after_the_other(p, m):
    """Warm-up of one forward: each micro-batch goes all the way before the next one starts."""
    ranks = []
    for r in range(p):
        a, b = r, 2 * p - 1 - r
        row = []
        for i in range(m):
            row += [Op("F", a, i), Op("F", b, i), Op("I", b, i), Op("W", b, i)]
            row += [Op("I", a, i), Op("W", a, i)]
        ranks.append(row)
    return ranks


def all_forwards_first(p, m):
    return [
        [Op("F", s, i) for s in (r, 2 * p - 1 - r) for i in range(m)]
        + [Op(k, s, i) for s in (2 * p - 1 - r, r) for i in range(m) for k in "IW"]
        for r in range(p)
    ]


def zb_v_too_short_warmup(p, m):
    """2(p-r)-2 forwards: on the last rank none, so that it waits for itself."""
    ranks = of(schedules.zb_v)(p, m)
    ranks[-1].insert(0, ranks[-1].pop(1))
    return ranks


# ---- the building block


def v_min_block(p):
    gap = 2 if p % 3 == 0 else 0
    return [(r, 2 * p - 1 - r, 2 * p + gap + r, 4 * p + gap - 1 - r) for r in range(p)]


def v_min_block_searched(p):
    """The way up and back waits until nothing meets; as lists."""
    wait = 0
    while (2 * p + wait) % 6 == 0:
        wait += 2
    turn = 2 * p + wait
    return [[r, 2 * p - 1 - r, turn + r, turn + 2 * p - 1 - r] for r in range(p)]


def block(gap, more=0):
    return lambda p: [
        (r, 2 * p - 1 - r, 2 * p + gap + r, 4 * p + gap + more - 1 - r) for r in range(p)
    ]


def v_half_block(p):
    gap = 3 if p % 2 == 0 else 0
    return [(2 * r, 3 * p - r - 2, 3 * p + gap + 2 * r - 1, 6 * p + gap - r - 2) for r in range(p)]


# ---- fits


def fits(p, cap):
    peaks = {"ZB-V": p, "V-Half": (p + 2) // 2, "V-Min": (p + 4) // 3}
    return next((name for name, peak in peaks.items() if peak <= cap), None)


def fits_by_simulation(p, cap):
    from pp_lab import Cost, simulate

    for name, make in (
        ("ZB-V", schedules.zb_v),
        ("V-Half", schedules.v_half),
        ("V-Min", schedules.v_min),
    ):
        if max(simulate(make(p, 3 * p), Cost(F=1, B=2)).peak_activations) <= 2 * cap:
            return name


def fits_with(full=lambda p: p, half=lambda p: (p + 2) // 2, least=lambda p: (p + 4) // 3):
    def answer(p, cap):
        if full(p) <= cap:
            return "ZB-V"
        if half(p) <= cap:
            return "V-Half"
        return "V-Min" if least(p) <= cap else None

    return answer


def least_memory(p, cap):
    return "V-Min" if cap >= (p + 4) // 3 else None


def fits_strictly(p, cap):
    return fits(p, cap - 1)


# ---- two copies


def sum_copies(rank, near, far):
    peer = rank.size - 1 - rank.index
    theirs_far, theirs_near = torch.empty_like(near), torch.empty_like(far)
    requests = [
        rank.isend(near, peer),
        rank.isend(far, peer),
        rank.irecv(theirs_near, peer),
        rank.irecv(theirs_far, peer),
    ]
    for request in requests:
        request.wait()
    return near + theirs_far, far + theirs_near


def sum_copies_in_turn(rank, near, far):
    """The lower half sends first; in place."""
    peer = rank.size - 1 - rank.index
    theirs_far, theirs_near = torch.empty_like(near), torch.empty_like(far)
    if rank.index < peer:
        rank.send(near, peer)
        rank.send(far, peer)
    rank.recv(theirs_near, peer)
    rank.recv(theirs_far, peer)
    if rank.index > peer:
        rank.send(near, peer)
        rank.send(far, peer)
    near += theirs_far
    far += theirs_near
    return [near, far]


def not_summed(rank, near, far):
    return near, far


def mean_of_copies(rank, near, far):
    near, far = sum_copies(rank, near, far)
    return near / 2, far / 2


def swapped(rank, near, far):
    near, far = sum_copies(rank, near, far)
    return far, near


def only_near(rank, near, far):
    return sum_copies(rank, near, far)[0], far


def theirs_only(rank, near, far):
    a, b = sum_copies(rank, near, far)
    return a - near, b - far


def own_twice(rank, near, far):
    sum_copies(rank, near, far)
    return near + near, far + far


def minus(rank, near, far):
    a, b = sum_copies(rank, near, far)
    return 2 * near - a, 2 * far - b


def both_send_first(rank, near, far):
    peer = rank.size - 1 - rank.index
    theirs_far, theirs_near = torch.empty_like(near), torch.empty_like(far)
    rank.send(near, peer)
    rank.send(far, peer)
    rank.recv(theirs_near, peer)
    rank.recv(theirs_far, peer)
    return near + theirs_far, far + theirs_near


def near_to_near(rank, near, far):
    """Adds what the other rank calls near to its own near."""
    peer = rank.size - 1 - rank.index
    theirs_near, theirs_far = torch.empty_like(near), torch.empty_like(far)
    requests = [
        rank.isend(near, peer),
        rank.isend(far, peer),
        rank.irecv(theirs_near, peer),
        rank.irecv(theirs_far, peer),
    ]
    for request in requests:
        request.wait()
    return near + theirs_near, far + theirs_far


def not_waited(rank, near, far):
    peer = rank.size - 1 - rank.index
    theirs_far, theirs_near = torch.zeros_like(near), torch.zeros_like(far)
    rank.isend(near, peer)
    rank.isend(far, peer)
    rank.irecv(theirs_near, peer)
    rank.irecv(theirs_far, peer)
    return near + theirs_far, far + theirs_near


def returns_nothing(rank, near, far):
    sum_copies(rank, near, far)


def returns_one(rank, near, far):
    return sum_copies(rank, near, far)[0]


# ---- DualPipe's steps


def step_counts(half, depth, n):
    rest, deep = half - depth - 1, depth + 1
    return [2 * rest, deep, rest, n - 2 * half + deep, rest, deep, rest, deep]


def step_counts_from_the_forwards(half, depth, n):
    """Step 4 gets the forwards of direction 0 that steps 1 and 2 have left."""
    counts = [2 * (half - 1 - depth), depth + 1, half - 1 - depth]
    counts.append(n - counts[0] - counts[1])
    return (*counts, counts[2], counts[1], counts[2], counts[1])


def with_count(step, change):
    def answer(half, depth, n):
        counts = step_counts(half, depth, n)
        counts[step - 1] = change(half, depth, n)
        return counts

    return answer


def two_ways(half, depth, near, far, pairs=True, split=True, middle=True):
    """One rank of DualPipe; near and far are (stage, micro-batches)."""
    F = [iter([Op("F", s, i) for i in mbs]) for s, mbs in (near, far)]
    B = [iter([Op("B", s, i) for i in mbs]) for s, mbs in (near, far)]
    counts, late, row = step_counts(half, depth, len(near[1])), [], []

    def I(way):  # noqa: E743 - the field's letter
        op = next(B[way])
        if not split:
            return [op]
        late.append(op._replace(kind="W"))
        return [op._replace(kind="I")]

    def W():
        return [late.pop(0)] if split else []

    def both(way):
        f, b = next(F[way]), next(B[1 - way])
        return [Pair(f, b)] if pairs else [f, b]

    row += [next(F[0]) for _ in range(counts[0])]
    for _ in range(counts[1]):
        row += [next(F[0]), next(F[1])]
    for _ in range(counts[2]):
        row += I(1) + W() + [next(F[1])]
    for k in range(counts[3]):
        first = both(0)
        row += list(first[0]) if middle and pairs and k == 0 and depth == half - 1 else first
        row += both(1)
    for _ in range(counts[4]):
        row += [next(B[1]), *both(1)]
    for k in range(2 * counts[5]):
        row += [next(B[1 - k % 2])] if k < counts[5] else I(1 - k % 2)
    for _ in range(counts[6]):
        row += W() + I(0)
    return row + late


def dualpipe(p, m, **changes):
    low, high = range(m // 2), range(m // 2, m)
    rows = []
    for r in range(p):
        near, far = (low, high) if r < p // 2 else (high, low)
        h = min(r, p - 1 - r)
        rows.append(two_ways(p // 2, h, (h, near), (p - 1 - h, far), **changes))
    return rows


def dualpipe_v(p, m, **changes):
    both = range(m)
    return [two_ways(p, r, (r, both), (2 * p - 1 - r, both), **changes) for r in range(p)]


def changed(function, **changes):
    return lambda p, m: function(p, m, **changes)


def same_micro_batches(p, m):
    """Both directions number theirs from 0."""
    mbs = range(m // 2)
    rows = []
    for r in range(p):
        h = min(r, p - 1 - r)
        rows.append(two_ways(p // 2, h, (h, mbs), (p - 1 - h, mbs)))
    return rows


def not_mirrored(p, m):
    """The upper half of the ranks does not swap the directions."""
    low, high = range(m // 2), range(m // 2, m)
    return [
        two_ways(
            p // 2,
            min(r, p - 1 - r),
            (min(r, p - 1 - r), low),
            (max(r, p - 1 - r), high),
        )
        for r in range(p)
    ]


def stages_of_the_rank(p, m):
    """Stage r for both directions."""
    low, high = range(m // 2), range(m // 2, m)
    rows = []
    for r in range(p):
        near, far = (low, high) if r < p // 2 else (high, low)
        rows.append(two_ways(p // 2, min(r, p - 1 - r), (r, near), (r, far)))
    return rows


def half_the_micro_batches(p, m):
    both = range(m // 2)
    return [two_ways(p, r, (r, both), (2 * p - 1 - r, both)) for r in range(p)] if m >= 4 * p else (
        dualpipe_v(p, m)[:-1] + [[Op("F", p - 1, 0)]]
    )  # fmt: skip


def split_micro_batches(p, m):
    """On a V, but with halves of the micro-batches as in DualPipe."""
    low, high = range(m // 2), range(m // 2, 2 * (m // 2))
    return [
        [
            *(Op("F", r, i) for i in low),
            *(Op("F", 2 * p - 1 - r, i) for i in high),
            *(Op("B", 2 * p - 1 - r, i) for i in high),
            *(Op("B", r, i) for i in low),
        ]
        for r in range(p)
    ]


def nothing(*arguments):
    return None


RIGHT = {
    "placements": [
        (v_placement, two_way_placement),
        (v_placement_by_formula, two_way_by_formula),
    ],
    "zb_v": [(zb_v,), (of(schedules.zb_v),)],
    "v_min_block": [(v_min_block,), (v_min_block_searched,)],
    "fits": [(fits,), (fits_by_simulation,)],
    "sum_copies": [(sum_copies,), (sum_copies_in_turn,)],
    "step_counts": [(step_counts,), (step_counts_from_the_forwards,)],
    "dualpipe": [(dualpipe,), (changed(dualpipe, middle=False),), (of(schedules.dualpipe),)],
    "dualpipe_v": [
        (dualpipe_v,),
        (changed(dualpipe_v, middle=False),),
        (of(schedules.dualpipe_v),),
    ],
    "crossing": [
        (lambda p, pair: 3 * (p - 1) / ((p / 2 - 1) * (pair - 1)),),
        (lambda p, pair: 6 * (p - 1) / (p - 2) / (pair - 1),),
    ],
}

WRONG = {
    "placements": [
        (lambda p: [s % p for s in range(2 * p)], two_way_placement, "loop of interleaved"),
        (lambda p: [s // 2 for s in range(2 * p)], two_way_placement, "without a fold"),
        (lambda p: [*range(p)], two_way_placement, "gives 3 ranks.*there are 6 stages"),
        (
            lambda p: [(r, 2 * p - 1 - r) for r in range(p)],
            two_way_placement,
            "lists the stages of each rank",
        ),
        (lambda p: [*range(p), *range(p, 0, -1)], two_way_placement, "names rank 3, but ranks are"),
        (
            lambda p: [*range(p), *range(p - 2, -1, -1), 0],
            two_way_placement,
            "at the fold",
        ),
        (lambda p: range(p).stop, two_way_placement, "return a list with a rank for each stage"),
        (v_placement, nothing, "return two lists"),
        (v_placement, lambda p: [list(range(p))] * 2, "both copies run down"),
        (
            v_placement,
            lambda p: [list(range(p))[::-1], list(range(p))],
            "copy 0 runs down the ranks and copy 1 up",
        ),
        (v_placement, lambda p: [[r, p - 1 - r] for r in range(p)], "one list for each copy"),
        (v_placement, lambda p: [list(range(p)), [(p - s) % p for s in range(p)]], "copy 1: stage"),
        (v_placement, lambda p: [list(range(p)), list(range(p, 0, -1))], "names rank 4"),
        (v_placement, v_placement, "there are two copies"),
    ],
    "zb_v": [
        (nothing, "is a return missing"),
        (lambda p, m: zb_v(p, m)[:-1], "lists for 3 ranks, not for 4"),
        (edited(schedules.zb_v, whole), "full backwards"),
        (edited(schedules.zb_v, w_to_the_end), "all W stand at the end"),
        (edited(schedules.zb_v, without_tail), "What is left goes to the tail"),
        (edited(schedules.zb_v, on_a_loop), "rank r owns the stages r and 2p-1-r"),
        (edited(schedules.zb_v, from_one), "only micro-batches 0 to 7"),
        (one_after_the_other, "has a gap before"),
        (all_forwards_first, "with F=0.5 .* it takes 30.*25.5 is possible"),
        (zb_v_too_short_warmup, "stands only later in the same rank's list|needs"),
        (of(schedules.v_half), "it takes 26.5, but 25.5 is possible"),
        (of(schedules.v_min), "it takes 29.5, but 25.5 is possible"),
        (of(schedules.one_f_one_b), "never runs|belongs to rank"),
    ],
    "v_min_block": [
        (nothing, "gives None: return a list with four steps"),
        (lambda p: v_min_block(p)[:-1], "gives 3 rows"),
        (lambda p: [row[:3] for row in v_min_block(p)], "is not four steps"),
        (block(0), "p=3, rank 0: F down in step 0 and I up in step 6 meet"),
        (block(1), "meet"),
        (block(2), "would hold 6 activations, and the cap is 4"),
        (v_half_block, "would hold 6 activations, and the cap is 4"),
        (
            lambda p: [(r, p - 1 - r, p + r, 2 * p - 1 - r) for r in range(p)],
            "but it needs .* the earliest is step",
        ),
        (
            lambda p: [(r, 2 * p - r, 2 * p + r, 4 * p - 1 - r) for r in range(p)],
            "stands in step 8, but it needs 7F0",
        ),
        (lambda p: [(0, 1, 2, 3) for r in range(p)], "the earliest is step 1"),
        (
            lambda p: [(r, r + p, 3 * p - 1 - r, 4 * p - 1 - r) for r in range(p)],
            "but it needs",
        ),
        (block(0, more=6), "keep theirs for 28 steps together"),
    ],
    "fits": [
        (nothing, "gives None, but V-Min fits"),
        (lambda p, cap: "1F1B", "the answer is ZB-V, V-Half and V-Min, or None"),
        (lambda p, cap: "ZB-V", "gives ZB-V, which does not fit"),
        (least_memory, "it is faster"),
        (fits_strictly, "Exactly at the cap fits too"),
        (lambda p, cap: fits(p, cap // 2), "a rank's whole share, of which a stage is half"),
        (fits_with(half=lambda p: p // 2), "gives V-Half, which does not fit"),
        (fits_with(least=lambda p: p // 3), "gives V-Min, which does not fit"),
        (fits_with(least=lambda p: (p + 2) // 3), "gives V-Min, which does not fit"),
        (fits_with(half=lambda p: (p + 1) // 2), "gives V-Half, which does not fit"),
        (fits_with(full=lambda p: p + 1), "ZB-V fits too, and it is faster"),
        (fits_with(full=lambda p: 2 * p, half=lambda p: p + 2), "faster|fits"),
    ],
    "sum_copies": [
        (not_summed, "has seen only half of the micro-batches"),
        (mean_of_copies, "add, and do not divide"),
        (swapped, "other way round|not the sum"),
        (only_near, "gradient returned for far: .* only half of the micro-batches"),
        (theirs_only, "without the rank's own"),
        (own_twice, "is in there twice"),
        (minus, "subtracted"),
        (both_send_first, "deadlock"),
        (near_to_near, "shape|elements|bytes"),
        (not_waited, "never waited for"),
        (returns_nothing, "gives None: return two tensors"),
        (returns_one, "gives Tensor: return two tensors"),
    ],
    "step_counts": [
        (nothing, "return a list of eight numbers"),
        (lambda q, h, n: step_counts(q, h, n)[:7], "gives 7 numbers"),
        (lambda q, h, n: [c / 1 for c in step_counts(q, h, n)], "whole numbers"),
        (lambda q, h, n: step_counts(q, q - 1 - h, n), "depth 0, that run ahead most"),
        (lambda q, h, n: step_counts(q, 0, n), "Use depth"),
        (with_count(1, lambda q, h, n: q - h - 1), "there and back to the middle"),
        (with_count(1, lambda q, h, n: 2 * (q - h)), "has nothing to do in step 1"),
        (with_count(2, lambda q, h, n: h), "forwards of direction 0 .*and there are"),
        (
            lambda q, h, n: [c - (k in (1, 5, 7)) for k, c in enumerate(step_counts(q, h, n))],
            "depth 0, runs them once",
        ),
        (with_count(4, lambda q, h, n: n - q + h + 1), "count the forwards of direction 0"),
        (with_count(4, lambda q, h, n: 2 * n - 2 * q + h + 1), "Is that m"),
        (with_count(4, lambda q, h, n: 2 * (n - 2 * q + h + 1)), "Count it once"),
        (with_count(5, lambda q, h, n: q - h), "forwards of direction 1 .*step 5: 2"),
        (with_count(8, lambda q, h, n: q), "weight gradients are left, but"),
        (with_count(7, lambda q, h, n: 0), "backwards of direction 0 .*and there are"),
        (lambda q, h, n: [2 * q - h - 3, *step_counts(q, h, n)[1:]], "less than 0|makes"),
    ],
    "dualpipe": [
        (nothing, "is a return missing"),
        (lambda p, m: dualpipe(p, m)[: p // 2], "lists for 2 ranks, not for 4"),
        (same_micro_batches, "enter at rank 3, where stage s is on rank 3-s"),
        (not_mirrored, "enter at rank 3"),
        (stages_of_the_rank, "where stage s is on rank 3-s"),
        (changed(dualpipe, pairs=False), "there is no Pair in it"),
        (changed(dualpipe, split=False), "no backward is split"),
        (edited(schedules.dualpipe, lambda row, *_: row[:-1]), "an I leaves its W for later"),
        (of(schedules.one_f_one_b), "enter at rank 3"),
        (
            lambda p, m: [
                [Pair(x.b, x.f) if isinstance(x, Pair) else x for x in row]
                for row in dualpipe(p, m)
            ],
            "a pair overlaps a forward",
        ),
        (
            lambda p, m: [
                [op for x in row for op in ((x.b, x.f) if isinstance(x, Pair) else (x,))]
                for row in dualpipe(p, m)
            ],
            "there is no Pair in it",
        ),
    ],
    "dualpipe_v": [
        (nothing, "is a return missing"),
        (lambda p, m: dualpipe_v(p, m)[:-1], "lists for 3 ranks, not for 4"),
        (dualpipe, "rank r owns the stages r and 2p-1-r|both ways carry"),
        (split_micro_batches, "both ways carry all m micro-batches"),
        (changed(dualpipe_v, pairs=False), "there is no Pair in it"),
        (changed(dualpipe_v, split=False), "no backward is split"),
        (edited(schedules.dualpipe_v, lambda row, *_: row[:-1]), "an I leaves its W for later"),
        (of(schedules.zb_v), "there is no Pair in it"),
        (edited(schedules.dualpipe_v, from_one), "carry the same micro-batches, 0 to m-1"),
    ],
    "crossing": [
        (nothing, "is a return missing"),
        (lambda p, pair: 8, "a rule of thumb"),
        (lambda p, pair: 6 * (p - 1) / (p - 2), "right for a pair that takes 2"),
        (lambda p, pair: (p / 2 - 1) * (pair - 1) / (3 * (p - 1)), "upside down"),
        (lambda p, pair: (p / 2 - 1) * (pair - 1), "For which v is 3"),
        (lambda p, pair: 3 * (p - 1), "1F1B with v=1"),
        (lambda p, pair: 3 / (pair - 1), "p/2-1 ranks between an end and the middle"),
        (lambda p, pair: 3 * (p - 1) / ((p / 2 - 1) * (pair + 2)), "three weight gradients"),
        (
            lambda p, pair: (p - 1) * (1 + pair) / ((p / 2 - 1) * (pair - 1)),
            "outside of its pairs",
        ),
        (lambda p, pair: 4 * (p - 1) / p, "set them equal"),
        (lambda p, pair: "nine", "not a number"),
    ],
}

PROGRAMS = ()
