"""Answers to the exercises of lab 3: right ones, and wrong ones with what each must be told.

RIGHT[exercise] and WRONG[exercise] list tuples of answers; a wrong one ends with a regular
expression that the check's reasons must match.
"""

import math

import torch

from pp_lab import Op, schedules
from pp_lab.course.lab03 import lagging

# ---- one Linear


def input_grad(dy, weight):
    return dy @ weight


def weight_grad(x, dy):
    x, dy = x.reshape(-1, x.shape[-1]), dy.reshape(-1, dy.shape[-1])
    return dy.T @ x, dy.sum(0)


def input_grad_einsum(dy, weight):
    return torch.einsum("...o,oi->...i", dy, weight)


def weight_grad_einsum(x, dy):
    return [torch.einsum("...o,...i->oi", dy, x), dy.flatten(0, -2).sum(0)]


def flat(x, dy):
    return x.reshape(-1, x.shape[-1]), dy.reshape(-1, dy.shape[-1])


def transposed(x, dy):
    x, dy = flat(x, dy)
    return x.T @ dy, dy.sum(0)


def mean(x, dy):
    dw, db = weight_grad(x, dy)
    return dw / x[..., 0].numel(), db


def mean_bias(x, dy):
    dw, db = weight_grad(x, dy)
    return dw, db / x[..., 0].numel()


def matrices_only(x, dy):
    return dy.mT @ x, dy.sum(-2)


def bias_matrices_only(x, dy):
    return weight_grad(x, dy)[0], dy.sum(-2)


def bias_unsummed(x, dy):
    return weight_grad(x, dy)[0], dy


def bias_over_outputs(x, dy):
    return weight_grad(x, dy)[0], flat(x, dy)[1].sum(-1)


def bias_one_number(x, dy):
    return weight_grad(x, dy)[0], dy.sum()


def no_bias(x, dy):
    return weight_grad(x, dy)[0]


def two_dimensions(x, dy):
    return dy.t() @ x, dy.sum(0)


# ---- a stage


def stage_input(dy, layers, saved):
    kept = []
    for (weight, _), (x, y) in zip(reversed(layers), reversed(saved), strict=True):
        dz = dy * (1 - y * y)
        kept.append((x, dz))
        dy = dz @ weight
    return dy, kept[::-1]


def stage_weight(kept):
    return [weight_grad(x, dz) for x, dz in kept]


def stage_input_dict(dy, layers, saved):
    kept = {"x": [], "dz": []}
    for k in range(len(layers) - 1, -1, -1):
        x, y = saved[k]
        dz = (1 - y**2) * dy
        kept["x"].insert(0, x)
        kept["dz"].insert(0, dz)
        dy = torch.matmul(dz, layers[k][0])
    return [dy, kept]


def stage_weight_dict(kept):
    return [list(weight_grad(x, dz)) for x, dz in zip(kept["x"], kept["dz"], strict=True)]


def stage_with(slope, keep=lambda x, y, dy, dz, weight: (x, dz)):
    def stage_input(dy, layers, saved):
        kept = []
        for (weight, _), (x, y) in zip(reversed(layers), reversed(saved), strict=True):
            dz = dy * slope(x, y)
            kept.insert(0, keep(x, y, dy, dz, weight))
            dy = dz @ weight
        return dy, kept

    return stage_input


def slope(x, y):
    return 1 - y * y


outside = []


def stage_input_outside(dy, layers, saved):
    dx, kept = stage_input(dy, layers, saved)
    outside.append(kept)
    return dx, []


def stage_weight_outside(kept):
    return stage_weight(outside.pop())


def stage_input_late(dy, layers, saved):
    """A closure, as DualPipe keeps it."""
    dx, kept = stage_input(dy, layers, saved)
    return dx, [lambda: stage_weight(kept)]


def first_block_first(dy, layers, saved):
    for (weight, _), (_, y) in zip(layers, saved, strict=True):
        dy = (dy * (1 - y * y)) @ weight
    return dy, []


# ---- schedules


def rows(schedule):
    return [list(row) for row in schedule.ranks]


def h1(p, m):
    return rows(schedules.zb_h1(p, m))


def by_counting(p, m, hop):
    """Forward while there is room, then I, then the W that are due."""
    ranks = []
    for r in range(p):
        row, f, i, w = [], 0, 0, 0
        while w < m:
            due = i > w and (i - w > hop * r or f == m)
            if f < m and f - i <= hop * (p - 1 - r) and not due:
                row.append(Op("F", r, f))
                f += 1
            elif due and (f < m or i == m or row[-1].kind == "I"):
                row.append(Op("W", r, w))
                w += 1
            else:
                row.append(Op("I", r, i))
                i += 1
        ranks.append(row)
    return ranks


def h1_by_counting(p, m):
    return by_counting(p, m, hop=1)


def h2_by_counting(p, m):
    return by_counting(p, m, hop=2)


def lags(lag, warmup=None):
    """An answer: `lag` and `warmup` are functions of (p, m, r)."""

    def answer(p, m):
        warmups = None if warmup is None else [max(0, warmup(p, m, r)) for r in range(p)]
        return rows(lagging(p, m, [lag(p, m, r) for r in range(p)], warmups))

    return answer


def whole(p, m):
    return rows(schedules.one_f_one_b(p, m))


def no_weights(p, m):
    return [[op for op in row if op.kind != "W"] for row in h1(p, m)]


def rest_forgotten(p, m):
    return [[op for op in row if op.kind != "W" or op.microbatch < m - r]
            for r, row in enumerate(h1(p, m))]  # fmt: skip


def weight_first(p, m):
    ranks = h1(p, m)
    swapped = {"I": "W", "W": "I"}
    ranks[-1] = [op._replace(kind=swapped.get(op.kind, op.kind)) for op in ranks[-1]]
    return ranks


def fields_swapped(p, m):
    return [[Op(op.kind, op.microbatch, op.stage) for op in row] for row in h1(p, m)]


def not_cut_to_m(p, m):
    """The warm-up is p-1-r, also where there are fewer micro-batches."""
    return [[Op("F", r, i) for i in range(m, p - 1 - r)] + row for r, row in enumerate(h1(p, m))]


def at_the_end(p, m):
    """All W after all else."""
    return [[op for op in row if op.kind != "W"] + [op for op in row if op.kind == "W"]
            for row in h1(p, m)]  # fmt: skip


def h2(p, m):
    return rows(schedules.zb_h2(p, m))


# ---- figures


def spans(starts, ends):
    return [b - a for a, b in zip(starts, ends, strict=True)]


def rate(starts, ends, work):
    cost = max(spans(starts, ends))
    return (cost - work) / cost


def rate_of(cost):
    return lambda s, e, work: (cost(s, e) - work) / cost(s, e)


def chained(ranks, m, steps):
    return [
        [op._replace(microbatch=op.microbatch + k * m) for k in range(steps) for op in row]
        for row in ranks
    ]


def chained_slowly(ranks, m, steps):
    result = [[] for _ in ranks]
    for k in range(steps):
        for mine, row in zip(result, ranks, strict=True):
            for kind, stage, i in row:
                mine.append(Op(kind, stage, i + m * k))
    return tuple(map(tuple, result))


def by_turns(ranks, m, steps):
    """Op by op through the steps."""
    return [
        [op._replace(microbatch=op.microbatch + k * m) for op in row for k in range(steps)]
        for row in ranks
    ]


def rank_after_rank(ranks, m, steps):
    return [op for row in chained(ranks, m, steps) for op in row]


def forwards_first(ranks, m, steps):
    """Each step GPipe."""
    return [sorted(row, key=lambda op: (op.microbatch // m, "FBIW".index(op.kind)))
            for row in chained(ranks, m, steps)]  # fmt: skip


# ---- the optimizer


def back(weight, velocity, grad, lr, momentum, decay):
    before = (weight + lr * velocity) / (1 - lr * decay)
    return before, (velocity - grad) / momentum


def back_in_place(weight, velocity, grad, lr, momentum, decay):
    weight.add_(velocity, alpha=lr).div_(1 - lr * decay)
    velocity.sub_(grad).div_(momentum)
    return [weight, velocity]


def velocity_first(weight, velocity, grad, lr, momentum, decay):
    velocity = (velocity - grad) / momentum
    return (weight + lr * velocity) / (1 - lr * decay), velocity


def validate(weights, grads, lr, limit):
    squares = [float((g * g).sum()) for g in grads]
    total = math.sqrt(sum(squares))
    result, undone = [], []
    for rank, (weight, grad) in enumerate(zip(weights, grads, strict=True)):
        stepped = math.sqrt(sum(squares[: rank + 1])) <= limit
        if stepped:
            weight = weight - lr * grad
        if not total <= limit:
            if stepped:
                weight = weight + lr * grad
                undone.append(rank)
            if math.isfinite(total):
                weight = weight - lr * limit / total * grad
        result.append(weight)
    return result, undone


def validate_at_the_end(weights, grads, lr, limit):
    """Computes the outcome without playing it through."""
    norms = [torch.cat([g.flatten() for g in grads[: r + 1]]).norm() for r in range(len(grads))]
    if norms[-1] <= limit:
        return [w - lr * g for w, g in zip(weights, grads, strict=True)], []
    scale = limit / norms[-1] if norms[-1].isfinite() else None
    new = [w if scale is None else w - lr * scale * g for w, g in zip(weights, grads, strict=True)]
    return tuple(new), tuple(r for r, norm in enumerate(norms) if norm <= limit)


def scaled_by(scale):
    """Steps with scale(squares, rank, limit); right about what was rolled back."""

    def answer(weights, grads, lr, limit):
        squares = [float((g * g).sum()) for g in grads]
        new = [
            weight - lr * scale(squares, rank, limit) * grad
            for rank, (weight, grad) in enumerate(zip(weights, grads, strict=True))
        ]
        return new, validate(weights, grads, lr, limit)[1]

    return answer


def clip(norm):
    return lambda squares, rank, limit: min(1, limit / norm(squares, rank))


def undone_as(ranks):
    def answer(weights, grads, lr, limit):
        return validate(weights, grads, lr, limit)[0], ranks(weights, grads, lr, limit)

    return answer


def all_if_clipped(weights, grads, lr, limit):
    return list(range(len(grads))) if validate(weights, grads, lr, limit)[1] else []


def those_that_waited(weights, grads, lr, limit):
    undone = validate(weights, grads, lr, limit)[1]
    return [r for r in range(len(grads)) if r not in undone] if undone else []


def comparing_with_nan(weights, grads, lr, limit):
    total = math.sqrt(sum(float((g * g).sum()) for g in grads))
    if total > limit:
        return validate(weights, grads, lr, limit)
    return [w - lr * g for w, g in zip(weights, grads, strict=True)], []


def without_redo(weights, grads, lr, limit):
    new, undone = validate(weights, grads, lr, limit)
    return [w if r in undone else n for r, (w, n) in enumerate(zip(weights, new, strict=True))], (
        undone
    )


def without_rollback(weights, grads, lr, limit):
    new, undone = validate(weights, grads, lr, limit)
    new = [n - lr * grads[r] if r in undone else n for r, n in enumerate(new)]
    return new, undone


PROGRAMS = ()

RIGHT = {
    "split_linear": [(input_grad, weight_grad), (input_grad_einsum, weight_grad_einsum)],
    "split_stage": [(stage_input, stage_weight), (stage_input_dict, stage_weight_dict)],
    "held": [
        (lambda m, warmup, lag: min(m, warmup + 1 + lag),),
        (lambda m, warmup, lag: m if m - warmup <= lag else warmup + lag + 1,),
    ],
    "zb_h1": [(h1,), (lags(lambda p, m, r: r),), (h1_by_counting,)],
    "zb_h2": [
        (h2,),
        (h2_by_counting,),
        (lags(lambda p, m, r: 2 * r, lambda p, m, r: 2 * (p - 1 - r)),),
    ],
    "bubble_rate": [(rate,), (lambda s, e, work: 1 - work / max(map(float.__sub__, *(
        list(map(float, x)) for x in (e, s)))),)],
    "in_a_row": [(chained,), (chained_slowly,)],
    "undo": [(back,), (back_in_place,)],
    "post_validate": [(validate,), (validate_at_the_end,)],
}  # fmt: skip

WRONG = {
    "split_linear": [
        (lambda dy, weight: dy @ weight.T, weight_grad, "RuntimeError.*\nline"),
        (lambda dy, weight: -dy @ weight, weight_grad, "dx: it has the wrong sign"),
        (lambda dy, weight: dy @ weight / len(dy), weight_grad, "rows add up|Rows add up"),
        (lambda dy, weight: dy, weight_grad, r"dx has the shape \[5, 4\], not \[5, 3\]"),
        (lambda dy, weight: None, weight_grad, "dx is None, not a tensor: is a return missing"),
        (input_grad, transposed, "it is transposed"),
        (input_grad, mean, "gradient of weight: it is divided by the number of rows"),
        (input_grad, mean_bias, "gradient of bias: it is divided by the number of rows"),
        (input_grad, matrices_only, "gradient of weight: one weight serves all rows"),
        (input_grad, bias_matrices_only, "bias: one bias serves all rows: add up over every"),
        (input_grad, bias_unsummed, "bias: one bias serves all rows: add dy up"),
        (input_grad, bias_over_outputs, "added up over the outputs"),
        (input_grad, bias_one_number, "one number for all outputs"),
        (input_grad, no_bias, r"one tensor of shape \[4, 3\]. Return two tensors"),
        (input_grad, two_dimensions, "RuntimeError: t.. expects.*\nline"),
        (input_grad, lambda x, dy: None, "gives None. Return two tensors"),
    ],
    "split_stage": [
        (stage_with(lambda x, y: 1), stage_weight, "does not go through tanh"),
        (stage_with(lambda x, y: 1 - torch.tanh(y) ** 2), stage_weight, "y is what tanh gave"),
        (stage_with(lambda x, y: y), stage_weight, "1 - y², not y"),
        (
            stage_with(slope, lambda x, y, dy, dz, w: (dz.T @ x, dz.sum(0))),
            lambda kept: kept,
            "finished weight gradient",
        ),
        (stage_with(slope, lambda x, y, dy, dz, w: (x, y, dz, w)), stage_weight, "are enough: of"),
        (stage_with(slope, lambda x, y, dy, dz, w: (x, dy)), stage_weight, "before tanh, dz"),
        (stage_input, lambda kept: stage_weight(kept)[::-1], "in reverse order"),
        (stage_input_outside, stage_weight_outside, "that is micro-batch 1's"),
        (stage_input_late, lambda kept: kept[0](), "in lists, tuples or dicts only"),
        (first_block_first, stage_weight, "RuntimeError.*\nline"),
        (lambda dy, layers, saved: stage_input(dy, layers, saved)[0], stage_weight, "two things"),
        (stage_input, lambda kept: stage_weight(kept)[0], "list of 2|tuple of 2"),
        (stage_input, lambda kept: None, "gives None. Return a list"),
        (stage_input, lambda kept: [w for w, _ in stage_weight(kept)], "one tensor of shape"),
    ],
    "held": [
        (lambda m, warmup, lag: min(m, warmup + 1), "lives until its W"),
        (lambda m, warmup, lag: min(m, warmup + lag), "begins with one more forward"),
        (lambda m, warmup, lag: warmup + 1 + lag, "with few micro-batches"),
        (lambda m, warmup, lag: m, "that is GPipe"),
        (lambda m, warmup, lag: min(m, max(warmup + 1, lag + 1)), "they add up"),
        (lambda m, warmup, lag: min(m, warmup + 2 + lag), "one too many"),
        (lambda m, warmup, lag: min(m, 1 + lag), "the warm-up counts"),
        (lambda m, warmup, lag: 4, "Follow the strip"),
        (lambda m, warmup, lag: None, "is a return missing"),
        (lambda m, warmup, lag: [lag], "gives .*, not a number"),
    ],
    "zb_h1": [
        (whole, "is a whole backward"),
        (no_weights, "so the weight gradient is missing"),
        (rest_forgotten, "so the weight gradient is missing"),
        (weight_first, r"needs 3I0, which stands only later"),
        (lags(lambda p, m, r: 0), "makespan 30, but 27 is possible: every W follows its I at once"),
        (lags(lambda p, m, r: m), "rank 0 holds 8 activations, 4 is the limit: its W pile up"),
        (at_the_end, "its W pile up"),
        (lags(lambda p, m, r: p - 1 - r), "rank 0 holds 7 .*comes 3 micro-batches after its I"),
        (lags(lambda p, m, r: p - 1), "comes 3 micro-batches after its I, where 0 is the most"),
        (lags(lambda p, m, r: min(1, p - 1 - r)), "comes 1 micro-batches after its I, where 0"),
        (
            lags(lambda p, m, r: r, lambda p, m, r: p - r),
            "runs 5 forwards before its first I, 4",
        ),
        (
            lags(lambda p, m, r: r, lambda p, m, r: p - 2 - r),
            "too few forwards before its first I, 3.*needs 4",
        ),
        (lags(lambda p, m, r: max(0, r - 1)), "more than r input gradients"),
        (h2, "rank 0 holds 7 activations, 4 is the limit: it runs 7 forwards before"),
        (fields_swapped, "belongs to rank|names micro-batch|names stage"),
        (not_cut_to_m, "names micro-batch 2"),
        (lambda p, m: [op for row in h1(p, m) for op in row], "one list of ops"),
        (lambda p, m: h1(p, m)[:-1], "lists for 3 ranks, not for 4"),
        (lambda p, m: [[tuple(op) for op in row] for row in h1(p, m)], "is not an op. Write Op"),
        (lambda p, m: None, "None is not a list of ops for each rank: is a return missing"),
    ],
    "zb_h2": [
        (h1, "takes 27 from its first op to its last, but 24 is possible: rank 0 runs 4 forwards"),
        (
            lags(lambda p, m, r: r, lambda p, m, r: 2 * (p - 1 - r)),
            "takes 27 .*W has to lag twice as much",
        ),
        (lags(lambda p, m, r: 2 * r), "rank 0 runs 4 forwards before its first I"),
        (lags(lambda p, m, r: 0, lambda p, m, r: 2 * (p - 1 - r)), "lag twice as much"),
        (
            lags(lambda p, m, r: 2 * (p - 1 - r), lambda p, m, r: 2 * (p - 1 - r)),
            "lag twice as much|comes 6 micro-batches",
        ),
        (
            lags(lambda p, m, r: m, lambda p, m, r: 2 * (p - 1 - r)),
            "its W pile up|Which rank waits",
        ),
        (
            lags(lambda p, m, r: 2 * r, lambda p, m, r: 3 * (p - 1 - r)),
            "runs .* forwards before its first I",
        ),
        (lambda p, m: rows(schedules.eager_1f1b(p, m)), "is a whole backward"),
        (lambda p, m: [row[:-1] for row in h2(p, m)], "so the weight gradient is missing"),
        (lambda p, m: None, "is a return missing"),
    ],
    "bubble_rate": [
        (rate_of(lambda s, e: max(e) - min(s)), "takes the makespan for cost"),
        (rate_of(lambda s, e: sum(spans(s, e)) / len(s)), "mean over the ranks"),
        (rate_of(lambda s, e: min(spans(s, e))), "that is the shortest rank"),
        (rate_of(lambda s, e: e[0] - s[0]), "the first rank alone"),
        (rate_of(lambda s, e: e[-1] - s[-1]), "the last rank alone|the shortest rank"),
        (lambda s, e, work: max(spans(s, e)) / work - 1, "idle time over work"),
        (lambda s, e, work: max(spans(s, e)) - work, "that is a time"),
        (lambda s, e, work: work / max(spans(s, e)), "the busy part"),
        (lambda s, e, work: 100 * rate(s, e, work), "in per cent"),
        (lambda s, e, work: 0.1083, "your bubble rate is 0.1083, and it should be"),
        (lambda s, e, work: spans(s, e), "gives \\[24, .*, not a number"),
        (lambda s, e, work: None, "is a return missing"),
    ],
    "in_a_row": [
        (lambda ranks, m, steps: [row * steps for row in ranks], "no micro-batch above 7"),
        (by_turns, "of step 2 before .* of step 0"),
        (rank_after_rank, "one list of ops"),
        (forwards_first, "is too long. Keep the order within a step|is possible"),
        (lambda ranks, m, steps: ranks, "has 24 ops, not 24 for each of 3 steps"),
        (lambda ranks, m, steps: chained(ranks, m, steps + 1), "has 96 ops, not 24 for each"),
        (lambda ranks, m, steps: chained(ranks, 1, steps), "names the micro-batches 0 1 2"),
        (lambda ranks, m, steps: chained(ranks, m + 1, steps), "They should be 0 to 23"),
        (lambda ranks, m, steps: chained(ranks, m, steps)[0], "one list of ops"),
        (lambda ranks, m, steps: [r[::-1] for r in chained(ranks, m, steps)], "of step 2 before"),
        (lambda ranks, m, steps: None, "is a return missing"),
    ],
    "undo": [
        (velocity_first, "undo the weight first"),
        (lambda w, v, g, lr, mu, wd: (w, v), "the weight after the step"),
        (lambda w, v, g, lr, mu, wd: (back(w, v, g, lr, mu, wd)[0], v), "velocity after the step"),
        (lambda w, v, g, lr, mu, wd: (w + lr * v, (v - g) / mu), "the decay is still in it"),
        (
            lambda w, v, g, lr, mu, wd: ((w + lr * v) * (1 - lr * wd), (v - g) / mu),
            "multiplied by 1 - lr · decay once more",
        ),
        (lambda w, v, g, lr, mu, wd: ((w + lr * g) / (1 - lr * wd), v), "you took lr · grad back"),
        (lambda w, v, g, lr, mu, wd: ((w - lr * v) / (1 - lr * wd), v), "a second time: add lr"),
        (lambda w, v, g, lr, mu, wd: (w / (1 - lr * wd) + lr * v, v), "in the opposite order"),
        (
            lambda w, v, g, lr, mu, wd: (back(w, v, g, lr, mu, wd)[0], v - g),
            "still multiplied by the momentum",
        ),
        (
            lambda w, v, g, lr, mu, wd: (back(w, v, g, lr, mu, wd)[0], v / mu - g),
            "was added last",
        ),
        (lambda w, v, g, lr, mu, wd: back(w, v, g, lr, mu, wd)[0], "Return two tensors"),
        (lambda w, v, g, lr, mu, wd: None, "gives None. Return two tensors"),
    ],
    "post_validate": [
        (scaled_by(lambda squares, rank, limit: 1), "nobody validated"),
        (scaled_by(clip(lambda q, r: math.sqrt(q[r]))), "by the rank's own norm"),
        (scaled_by(clip(lambda q, r: math.sqrt(sum(q[: r + 1])))), "Validate with the norm of all"),
        (scaled_by(clip(lambda q, r: sum(map(math.sqrt, q)))), "norms do not add up"),
        (scaled_by(clip(lambda q, r: sum(q))), "the root is missing"),
        (
            scaled_by(lambda q, r, limit: limit / math.sqrt(sum(q))),
            "clipping only makes a gradient smaller",
        ),
        (scaled_by(clip(lambda q, r: math.sqrt(sum(q)))), "there must be no step at all"),
        (comparing_with_nan, "NaN on rank 2: rank 0's weight has changed"),
        (without_redo, "the right step is still to be made"),
        (without_rollback, "made two steps"),
        (undone_as(all_if_clipped), "had nothing to roll back: .*so it had waited"),
        (undone_as(those_that_waited), "is missing among those that rolled back"),
        (undone_as(lambda *arguments: []), "is missing among those that rolled back"),
        (undone_as(lambda w, g, lr, limit: list(range(len(w)))), "its step was right"),
        (lambda w, g, lr, limit: validate(w, g, lr, limit)[0], "Return two lists"),
        (lambda w, g, lr, limit: None, "gives None. Return two lists"),
    ],
}
