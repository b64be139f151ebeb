"""The checks of labs/03_zero_bubble.ipynb. Each takes the learner's functions, gives a `Score`."""

import math
from itertools import accumulate

import torch

from ..run import Lab
from ..schedule import Cost, Op, Schedule, loop, schedules, simulate, verify
from ..show import timeline
from .exercise import exercise, recognised

COST = Cost(F=1, B=2)  # I = W = 1

# Zero Bubble, arXiv:2401.10241, Table 5: (model, p, m), the measured times in ms, and the bubble
# rates that the paper derives from them.
TABLE_5 = [
    (("1.5B", 8, 24), Cost(F=18.522, I=18.086, W=9.337, comm=0.601), (0.2431, 0.1585, 0.1083)),
    (("1.5B", 8, 64), Cost(F=18.546, I=18.097, W=9.321, comm=0.762), (0.1240, 0.0674, 0.0444)),
    (("6.2B", 8, 24), Cost(F=29.718, I=29.444, W=19.927, comm=0.527), (0.2347, 0.1323, 0.0698)),
    (("6.2B", 8, 64), Cost(F=29.935, I=29.621, W=19.388, comm=0.535), (0.1091, 0.0554, 0.0294)),
]
TABLE_5_SCHEDULES = (schedules.one_f_one_b, schedules.zb_h1, schedules.zb_h2)


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


# ---- the two halves of a backward


@exercise(points=2)
def split_linear(verdict, linear_input_grad, linear_weight_grad):
    """`linear_input_grad(dy, weight)` and `linear_weight_grad(x, dy)`, against autograd."""
    shapes = [((5,), 3, 4), ((2, 5), 4, 3), ((2, 3, 2), 5, 5), ((1,), 2, 6)]
    if verdict.random:
        draw = verdict.random.randint
        shapes = [(tuple(draw(2, 5) for _ in lead), draw(2, 5), draw(6, 9)) for lead, *_ in shapes]
    for lead, width, out in shapes:
        x, weight, bias, dy = _normal(
            verdict, (*lead, width), (out, width), (out,), (*lead, out)
        )  # x @ weight.T + bias has the shape of dy
        dx, dw, db = _backward(lambda x, w, b: x @ w.T + b, dy, x, weight, bias)
        rows, where = math.prod(lead), f"x of shape {list(x.shape)}"
        known = [(-dx, "it has the wrong sign"), (dx / rows, _MEAN)]
        if width == out:
            known.append((dy @ weight.T, "weight is [out, in]: multiply by it, not by weight.T"))
        _equal(verdict, f"{where}: dx", linear_input_grad(dy.clone(), weight.clone()), dx, known)
        both = linear_weight_grad(x.clone(), dy.clone())
        if not isinstance(both, (list, tuple)) or len(both) != 2:
            verdict.fail(
                f"{where}: linear_weight_grad gives {_kind(both)}. Return two tensors, the "
                "gradients of weight and of bias"
            )
        each = torch.einsum("...ro,...ri->...oi", dy, x)
        known = [
            (dw.T, "it is transposed: weight is [out, in], and so is its gradient"),
            (-dw, "it has the wrong sign"),
            (dw / rows, _MEAN),
            (each, "one weight serves all rows: add up over every leading dimension"),
        ]
        _equal(verdict, f"{where}: the gradient of weight", both[0], dw, known)
        known = [
            (dy, "one bias serves all rows: add dy up over them"),
            (dy.sum(-2), "one bias serves all rows: add up over every leading dimension"),
            (dy.sum(-1), "you added up over the outputs: add up over the rows"),
            (dy.sum(), "that is one number for all outputs: add up over the rows only"),
            (db / rows, _MEAN),
        ]
        _equal(verdict, f"{where}: the gradient of bias", both[1], db, known)
    verdict.expect(
        True,
        f"dx and the gradients of weight and bias equal autograd's, for {len(shapes)} shapes, "
        "elementwise within the rounding of float64",
        "",
        points=2,
    )


_MEAN = "it is divided by the number of rows. Rows add up; a mean is the loss's affair"


@exercise(points=3)
def split_stage(verdict, stage_input, stage_weight):
    """`stage_input(dy, layers, saved)` and, later, `stage_weight(kept)`."""
    widths, lead = [4, 5, 3, 6], (7,)
    if verdict.random:
        widths = verdict.random.sample(range(3, 10), verdict.random.randint(3, 5))
        lead = (verdict.random.randint(5, 9),)
    pairs = list(zip(widths, widths[1:], strict=False))
    flat = _normal(verdict, *[s for a, b in pairs for s in ((b, a), (b,))])
    layers = list(zip(flat[::2], flat[1::2], strict=True))
    tensors = _normal(verdict, *[(*lead, n) for n in (widths[0], widths[-1])] * 2)
    steps = []
    for i, (x, dy) in enumerate(zip(tensors[::2], tensors[1::2], strict=True)):
        saved = [(x, x)]
        for weight, bias in layers:
            saved.append((saved[-1][1], torch.tanh(saved[-1][1] @ weight.T + bias)))
        dx, *grads = _backward(_stage, dy, x, *flat)
        result = stage_input(dy.clone(), _copied(layers), _copied(saved[1:]))
        if not isinstance(result, (list, tuple)) or len(result) != 2:
            verdict.fail(
                f"stage_input gives {_kind(result)}. Return two things: dx, and what "
                "stage_weight will need"
            )
        known = [
            (_chain(layers, saved[1:], dy, slope), sentence)
            for slope, sentence in (
                (lambda x, y: 1, "it does not go through tanh: its slope is 1 - y², y its output"),
                (lambda x, y: 1 - torch.tanh(y) ** 2, "y is what tanh gave: its slope is 1 - y²"),
                (lambda x, y: y, "the slope of tanh is 1 - y², not y"),
            )
        ]
        _equal(verdict, f"micro-batch {i}: dx", result[0], dx, known)
        _kept(verdict, result[1], grads, sum(lead[0] * (a + b) for a, b in pairs))
        steps.append((result[1], dy, saved[1:], grads))
    verdict.expect(True, "dx equals autograd's, and no more is kept than x and dz of a block", "")
    of = [grads for *_, grads in steps]
    for i, (kept, dy, saved, grads) in enumerate(steps):  # both micro-batches are on their way
        result = stage_weight(kept)
        if not isinstance(result, (list, tuple)) or len(result) != len(layers):
            verdict.fail(
                f"stage_weight gives {_kind(result)}. Return a list with (gradient of weight, "
                f"gradient of bias) for each of the {len(layers)} blocks"
            )
        for k, got in enumerate(result):
            if not isinstance(got, (list, tuple)) or len(got) != 2:
                verdict.fail(f"block {k}: {_kind(got)}, not (gradient of weight, of bias)")
            for which, name in enumerate(("weight", "bias")):
                n = 2 * k + which
                known = [
                    (grads[-2 - 2 * k + which], "the blocks are in reverse order: give block 0 "
                     "first"),
                    (of[1 - i][n], f"that is micro-batch {1 - i}'s. What W needs has to travel "
                     "in kept, not in a variable outside"),
                    (of[0][n] + of[1][n], "that is the sum of both micro-batches: what W needs "
                     "has to travel in kept, not in a variable outside"),
                ]  # fmt: skip
                if not which:
                    x, before = saved[k][0], _chain(layers[k + 1 :], saved[k + 1 :], dy)
                    known.append((before.T @ x, "W needs the gradient before tanh, dz, not the "
                                  "one after it"))  # fmt: skip
                what = f"micro-batch {i}, block {k}: the gradient of {name}"
                _equal(verdict, what, got[which], grads[n], known)
    verdict.expect(
        True,
        "all weight gradients equal autograd's, computed after both micro-batches' dx",
        "",
        points=3,
    )


def _stage(x, *flat):
    for weight, bias in zip(flat[::2], flat[1::2], strict=True):
        x = torch.tanh(x @ weight.T + bias)
    return x


def _chain(layers, saved, dy, slope=lambda x, y: 1 - y * y):
    """The gradient of a stage's input, with some idea of the slope of tanh."""
    for (weight, _), (x, y) in zip(reversed(layers), reversed(saved), strict=True):
        dy = (dy * slope(x, y)) @ weight
    return dy


def _kept(verdict, kept, grads, most):
    """What lives from I to W: plain data, no finished weight gradient, and not too much."""
    leaves = list(_leaves(kept))
    strange = [x for x in leaves if not isinstance(x, (torch.Tensor, int, float, str, type(None)))]
    if strange:
        verdict.fail(f"kept holds {_kind(strange[0])}: keep tensors in lists, tuples or dicts only")
    tensors = {id(x): x for x in leaves if isinstance(x, torch.Tensor)}.values()
    if any(_close(x, grad) for x in tensors for grad in grads if grad.dim() == 2):
        verdict.fail(
            "kept holds a finished weight gradient: stage_input has then done W's work too, and "
            "there is nothing left to put off. Keep what it is the product of"
        )
    numbers = sum(x.numel() for x in tensors)
    if numbers > most:
        verdict.fail(
            f"kept holds {numbers} numbers, but {most} are enough: of each block its input x and "
            "the gradient before tanh, dz. All else can be freed when I is done"
        )


def _leaves(value):
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for part in value:
            yield from _leaves(part)
    else:
        yield value


# ---- schedules


@exercise(points=2)
def held(verdict, answer):
    """`held(m, warmup, lag)`: a rank's peak when W runs `lag` behind I."""
    sizes = [(4, 8, 0), (4, 8, 1), (4, 8, 3), (3, 9, 2), (4, 2, 1), (4, 6, 6), (1, 5, 0), (5, 5, 2)]
    if verdict.random:
        sizes = [(*verdict.size(p, m), verdict.random.randint(0, m)) for p, m, _ in sizes]
    measured = {}
    for p, m, lag in sizes:
        peaks = simulate(lagging(p, m, [lag] * p), COST).peak_activations
        measured |= {(m, p - 1 - rank, lag): peak for rank, peak in enumerate(peaks)}
    mistakes = [
        (lambda m, w, lag: min(m, w + 1), "that is 1F1B, where the backward frees. Here an "
         "activation lives until its W, lag micro-batches later"),
        (lambda m, w, lag: min(m, w + lag), "the steady state begins with one more forward, before "
         "the first I"),
        (lambda m, w, lag: w + 1 + lag, "with few micro-batches there are not so many to hold"),
        (lambda m, w, lag: m, "that is GPipe, where no W runs before the last forward"),
        (lambda m, w, lag: min(m, max(w + 1, lag + 1)), "those waiting for I and those waiting for "
         "W are held at the same time: they add up"),
        (lambda m, w, lag: min(m, w + 2 + lag), "one too many: before the next forward, a W has "
         "made room"),
        (lambda m, w, lag: min(m, lag + 1), "those that wait for their I are held too: the warm-up "
         "counts"),
    ]  # fmt: skip
    for case, peak in measured.items():
        call = "held(m={}, warmup={}, lag={})".format(*case)
        value = verdict.number(call, answer(*case))
        if value != peak:
            known = recognised(answer, mistakes, measured)
            verdict.fail(
                f"{call} is {value:g}, but a rank holds {peak}"
                + (f": {known}" if known else ". Follow the strip below a row, op by op")
            )
    verdict.expect(True, f"equal to the simulated peak in {len(measured)} cases", "", points=1)
    p, m = verdict.size(4, 8)
    lags = [rank % 3 for rank in range(p)]
    counted = Lab(p, m).run(lagging(p, m, lags)).peak_activations
    said = [answer(m, p - 1 - rank, lag) for rank, lag in enumerate(lags)]
    verdict.expect(
        said == counted,
        f"p={p}, m={m}, lags {_row(lags)}: {_row(counted)}, as counted on real ranks",
        f"p={p}, m={m}, lags {_row(lags)}: you say {said}, the ranks counted {counted}",
        points=1,
    )


H1_SIZES = [(4, 8), (1, 1), (2, 2), (3, 4), (4, 2), (5, 5), (4, 13)]
FEW = (5, 2)  # m < p - 1, so that rank 0 cannot fill its warm-up
H2_SIZES = [(4, 8), (1, 2), (2, 3), (3, 6), (4, 2), (4, 12), (5, 14)]


@exercise(points=4)
def zb_h1(verdict, answer):
    """`zb_h1(p, m)`: F, I and W by rank, within 1F1B's p activations."""
    for p, m in [*verdict.sizes(H1_SIZES), FEW]:
        schedule, trace = _split_schedule(verdict, answer, p, m)
        target = simulate(schedules.zb_h1(p, m), COST)
        if (p, m) == H1_SIZES[0] and trace != target:  # the same on fewer ranks was shown before
            verdict.figure = timeline(trace, predicted=target)
        _within(verdict, schedule, trace, target.peak_activations, per_hop=1)
        if trace.makespan > target.makespan:
            verdict.fail(
                f"makespan {trace.makespan}, but {target.makespan} is possible" + _slow(schedule)
            )
        verdict.reasons.pop()
    verdict.expect(
        True,
        f"legal, and within the makespan and the memory of ZB-H1, for {len(H1_SIZES) + 1} sizes",
        "",
        points=3,
    )
    _run(verdict, answer, *verdict.size(4, 8), "zb_h1")


@exercise(points=3)
def zb_h2(verdict, answer):
    """`zb_h2(p, m)`: no gap in any rank's work, within 2p activations."""
    for p, m in [*verdict.sizes(H2_SIZES), FEW]:
        schedule, trace = _split_schedule(verdict, answer, p, m)
        target = simulate(schedules.zb_h2(p, m), COST)
        if (p, m) == H2_SIZES[0] and trace != target:  # the same on fewer ranks was shown before
            verdict.figure = timeline(trace, predicted=target)
        _within(verdict, schedule, trace, [min(m, 2 * p)] * p, per_hop=2)
        if trace.span > target.span:
            verdict.fail(
                f"a rank takes {trace.span} from its first op to its last, but {target.span} is "
                "possible" + _gaps(schedule)
            )
        if trace.makespan > target.makespan:
            verdict.fail(
                f"no rank has a gap, but the makespan is {trace.makespan}, and {target.makespan} "
                "is possible: do ranks start later than they have to?"
            )
        verdict.reasons.pop()
    verdict.expect(
        True,
        f"legal, and within the span of ZB-H2 and 2p activations, for {len(H2_SIZES) + 1} sizes",
        "",
        points=2,
    )
    _run(verdict, answer, *verdict.size(4, 8), "zb_h2")


def _split_schedule(verdict, answer, p, m):
    """The answer as a legal `Schedule` of F, I and W, and its simulation."""
    verdict.reasons.append(("note", f"p={p}, m={m}"))
    ranks = _rows(verdict, answer(p, m), p)
    whole = [op for row in ranks for op in row if isinstance(op, Op) and op.kind == "B"]
    if whole:
        verdict.fail(
            f"{whole[0]} is a whole backward. Split each one: an I, and later a W of the same "
            "micro-batch"
        )
    schedule = Schedule("yours", ranks, loop(p), m)
    verify(schedule)
    return schedule, simulate(schedule, COST)


def _rows(verdict, ranks, p):
    if not isinstance(ranks, (list, tuple)) or not all(isinstance(r, (list, tuple)) for r in ranks):
        verdict.fail(f"{_kind(ranks)} is not a list of ops for each rank" + _none(ranks))
    if ranks and all(isinstance(row, Op) for row in ranks):
        verdict.fail("that is one list of ops. Return a list for each rank")
    if len(ranks) != p:
        verdict.fail(f"there are lists for {len(ranks)} ranks, not for {p}")
    return ranks


def _shape(row):
    """Forwards before the first I, and by how much the first W lags behind its I."""
    kinds = "".join(op.kind for op in row)
    return kinds.index("I"), kinds[: kinds.index("W")].count("I") - 1


def _within(verdict, schedule, trace, caps, per_hop):
    """No rank holds more than its cap. per_hop: forwards of warm-up, and lag of W, per rank."""
    over = [r for r, cap in enumerate(caps) if trace.peak_activations[r] > cap]
    if not over:
        return
    rank = over[0]
    row = schedule.ranks[rank]
    forwards, lag = _shape(row)
    enough, late = 1 + per_hop * (schedule.p - 1 - rank), per_hop * rank
    kinds = "".join(op.kind for op in row)
    if lag > late and "F" not in kinds[kinds.index("W") :]:
        why = ": its W pile up until the forwards are through, and so do the activations"
    elif forwards > enough:
        why = f": it runs {forwards} forwards before its first I, {enough} are enough"
    elif lag > late:
        why = f": its first W comes {lag} micro-batches after its I, where {late} is the most"
    else:
        why = ": an activation lives until its W, so do not let W fall further behind"
    verdict.fail(
        f"rank {rank} holds {trace.peak_activations[rank]} activations, {caps[rank]} is the "
        f"limit{why}"
    )


def _slow(schedule):
    """Where an order as such of ZB-H1 loses its time, as far as known."""
    p, m = schedule.p, schedule.microbatches
    shapes = [_shape(row) for row in schedule.ranks]
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


def _gaps(schedule):
    """Why an order as such of ZB-H2 has gaps, as far as known."""
    p, m = schedule.p, schedule.microbatches
    shapes = [_shape(row) for row in schedule.ranks]
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


def _run(verdict, answer, p, m, name):
    """On real ranks: gradients right, targets met."""
    lab = Lab(p, m, seed=verdict.seed(0))
    target = simulate(getattr(schedules, name)(p, m), COST)
    run = lab.run(Schedule(name, answer(p, m), loop(p), m), cost=COST)
    caps = {"peak": target.peak_activations} if name == "zb_h1" else {}  # H2: simulated before
    verdict.agree(lab, run, points=1, makespan=target.makespan, **caps)


# ---- span and makespan


@exercise(points=2)
def bubble_rate(verdict, answer):
    """`bubble_rate(starts, ends, work)`: the paper's bubble, from the longest rank's own time."""
    # The times by rank, the work of a rank, and what the paper has.
    cases = {"four ranks, the second one longest": ([0, 1, 2, 3], [24, 27, 25, 28], 24, None)}
    if verdict.random:
        starts = list(accumulate(verdict.random.randint(1, 4) for _ in range(4)))
        more = [0, 1, 2, 1]
        more[verdict.random.randint(1, 2)] = 4  # neither the first rank nor the last is longest
        ends = [start + 24 + n for start, n in zip(starts, more, strict=True)]
        cases = {"times made up": (starts, ends, 24, None)}

    def simulated(name, schedule, cost, rate):
        trace = simulate(schedule, cost)
        starts, ends = zip(*[(row[0].start, row[-1].end) for row in trace.ranks], strict=True)
        cases[name] = list(starts), list(ends), max(trace.busy), rate

    for p, m in verdict.sizes([(4, 8), (3, 6), (1, 3)]):
        for make in TABLE_5_SCHEDULES:
            simulated(f"{make.__name__}, p={p} m={m}", make(p, m), COST, None)
    for (model, p, m), cost, rates in TABLE_5:
        for make, rate in zip(TABLE_5_SCHEDULES, rates, strict=True):
            simulated(f"{make.__name__}, {model} m={m}", make(p, m), cost, rate)

    def from_cost(cost):
        return lambda s, e, work: (cost(s, e) - work) / cost(s, e)

    def spans(s, e):
        return [b - a for a, b in zip(s, e, strict=True)]

    mistakes = [
        (from_cost(lambda s, e: max(e) - min(s)), "that takes the makespan for cost, from the "
         "first start to the last end of all ranks. The paper's cost is one rank's own time"),
        (from_cost(lambda s, e: sum(spans(s, e)) / len(s)), "that is the mean over the ranks. The "
         "longest rank counts"),
        (from_cost(lambda s, e: min(spans(s, e))), "that is the shortest rank. The longest counts"),
        (from_cost(lambda s, e: e[-1] - s[-1]), "that is the last rank alone. The longest counts"),
        (from_cost(lambda s, e: e[0] - s[0]), "that is the first rank alone. The longest counts"),
        (lambda s, e, work: max(spans(s, e)) / work - 1, "that is idle time over work. Divide by "
         "the cost"),
        (lambda s, e, work: max(spans(s, e)) - work, "that is a time. Divide it by the cost"),
        (lambda s, e, work: work / max(spans(s, e)), "that is the busy part. The bubble is what "
         "is left"),
        (lambda s, e, work: 100 - 100 * work / max(spans(s, e)), "that is in per cent: give a "
         "part, between 0 and 1"),
    ]  # fmt: skip
    for name, (starts, ends, work, rate) in cases.items():
        value = verdict.number(f"bubble_rate({name})", answer(list(starts), list(ends), work))
        cost = max(spans(starts, ends))
        want = (cost - work) / cost
        if abs(value - want) > 1e-9:
            known = recognised(answer, mistakes, [case[:3] for case in cases.values()])
            verdict.fail(
                f"{name}: your bubble rate is {float(value):.4f}, and it should be {want:.4f}"
                + (f": {known}" if known else "")
            )
        if rate is not None and round(float(value), 4) != rate:
            verdict.fail(f"{name}: {float(value):.4f}, but the paper has {rate:.4f}")
    rates = sum(rate is not None for *_, rate in cases.values())
    verdict.expect(True, f"all {rates} numbers of the paper's Table 5, and times made up", "", 2)


@exercise(points=2)
def in_a_row(verdict, answer):
    """`in_a_row(ranks, m, steps)`: several training steps as one list for each rank."""
    for (p, m), steps in zip(verdict.sizes([(4, 8), (3, 6), (1, 2), (4, 2)]), (3, 2, 4, 1),
                             strict=True):  # fmt: skip
        for make in (schedules.zb_h2, schedules.one_f_one_b):
            one = make(p, m)
            where = f"{one.name}, p={p} m={m}, {steps} steps"
            ranks = _rows(verdict, answer([list(row) for row in one.ranks], m, steps), p)
            for rank, row in enumerate(ranks):
                _steps(verdict, f"{where}: rank {rank}", row, one.ranks[rank], m, steps)
            all_of_them = Schedule("yours", ranks, loop(p), m * steps)
            verify(all_of_them)
            makespan = simulate(all_of_them, COST).makespan
            verdict.expect(
                makespan <= simulate(repeated(one, steps), COST).makespan,
                f"{where}: {makespan}, against {steps * simulate(one, COST).makespan} if all wait "
                "for each other after every step",
                f"{where}: {makespan} is too long. Keep the order within a step",
            )
    verdict.points += 2


def _steps(verdict, where, row, one, m, steps):
    """One rank's ops: the right ones, step after step."""
    strange = [op for op in row if not isinstance(op, Op)]
    if strange:
        verdict.fail(f'{where}: {strange[0]!r} is not an op. Write Op("F", stage, microbatch)')
    if len(row) != len(one) * steps:
        verdict.fail(f"{where} has {len(row)} ops, not {len(one)} for each of {steps} steps")
    if steps > 1 and all(op.microbatch < m for op in row):
        verdict.fail(
            f"{where} names no micro-batch above {m - 1}. Every step has micro-batches of its own: "
            "add m for each step"
        )
    numbers = sorted({op.microbatch for op in row})
    if numbers != list(range(m * steps)):
        verdict.fail(
            f"{where} names the micro-batches {_row(numbers)}. They should be 0 to "
            f"{m * steps - 1}, so that step k has those from k·m on"
        )
    for before, op in zip(row, row[1:], strict=False):
        if op.microbatch // m < before.microbatch // m:
            verdict.fail(
                f"{where} runs {before} of step {before.microbatch // m} before {op} of step "
                f"{op.microbatch // m}. Between two steps a rank updates its weights, so a step "
                "is over before the next one starts"
            )


# ---- the optimizer


@exercise(points=2)
def undo(verdict, answer):
    """`undo(weight, velocity, grad, lr, momentum, decay)`: the state before a step."""
    cases = [((3, 4), 0.1, 0.9, 0.01), ((5,), 0.5, 0.5, 0.0), ((2, 3, 2), 0.02, 0.95, 0.3)]
    if verdict.random:
        real = verdict.random.uniform
        cases = [(shape, real(0.05, 0.5), real(0.4, 0.9), real(0.05, 0.5)) for shape, *_ in cases]
    for shape, lr, momentum, decay in cases:
        weight, velocity, grad = _normal(verdict, shape, shape, shape)
        new_velocity = momentum * velocity + grad
        new = (1 - lr * decay) * weight - lr * new_velocity
        result = answer(new.clone(), new_velocity.clone(), grad.clone(), lr, momentum, decay)
        if not isinstance(result, (list, tuple)) or len(result) != 2:
            verdict.fail(f"undo gives {_kind(result)}. Return two tensors, weight and velocity")
        where = f"lr={lr:.3g}, momentum={momentum:.3g}, decay={decay:.3g}"
        shrink = 1 - lr * decay
        known = [
            (new, "that is the weight after the step, as it was given"),
            ((new + lr * velocity) / shrink, "you used the velocity from before the step. The "
             "step used the new one: undo the weight first"),
            ((new + lr * grad) / shrink, "you took lr · grad back. The step took lr · velocity"),
            (new + lr * new_velocity, "the decay is still in it: divide by 1 - lr · decay"),
            ((new + lr * new_velocity) * shrink, "you multiplied by 1 - lr · decay once more. "
             "Divide by it"),
            ((new - lr * new_velocity) / shrink, "you made the step a second time: add lr · "
             "velocity"),
            (new / shrink + lr * new_velocity, "the step shrank the weight first and then took "
             "lr · velocity off. Undo it in the opposite order"),
        ]  # fmt: skip
        _equal(verdict, f"{where}: the weight", result[0], weight, known, loose=1e-9)
        known = [
            (new_velocity, "that is the velocity after the step, as it was given"),
            (new_velocity - grad, "it is still multiplied by the momentum: divide by it"),
            (new_velocity / momentum - grad, "the gradient was added last, so it goes first; then "
             "divide"),
            ((new_velocity - grad) * momentum, "you multiplied by the momentum once more. Divide"),
            ((new_velocity + grad) / momentum, "you added the gradient a second time"),
        ]  # fmt: skip
        _equal(verdict, f"{where}: the velocity", result[1], velocity, known, loose=1e-9)
    verdict.expect(
        True,
        f"weight and velocity are what they were, elementwise, in {len(cases)} cases; the "
        "difference is the rounding of a step and back",
        "",
        points=2,
    )


@exercise(points=3)
def post_validate(verdict, answer):
    """`post_validate(weights, grads, lr, limit)`: step at once, validate, roll back."""
    p = verdict.size(4, 8)[0]
    lr, shape = 0.1, (3, 2)
    tensors = _normal(verdict, *[shape] * 2 * p)
    weights, unit = tensors[:p], [g / g.norm() for g in tensors[p:]]
    grads = [(rank + 1) * g for rank, g in enumerate(unit)]  # norms 1, 2, 3, …
    norms = list(accumulate(g.norm().item() ** 2 for g in grads))
    middle = math.sqrt((norms[p // 2 - 1] + norms[p // 2]) / 2)
    broken = [g.clone() for g in grads]
    broken[p // 2][0, 0] = math.nan
    endless = [g.clone() for g in grads]
    endless[-1][0, 0] = math.inf
    cases = [
        ("no clipping needed", grads, 2 * math.sqrt(norms[-1])),
        ("clipping needed, as the later ranks find out", grads, middle),
        ("only the last rank brings the norm over the limit", grads,
         math.sqrt((norms[-2] + norms[-1]) / 2)),
        ("clipping needed, as every rank sees at once", grads, 0.5),
        (f"NaN on rank {p // 2}", broken, 10 * math.sqrt(norms[-1])),
        (f"an infinity on rank {p - 1}", endless, 10 * math.sqrt(norms[-1])),
        ("one rank", grads[:1], 0.5),
    ]  # fmt: skip
    for name, given, limit in cases:
        given_weights = [w.clone() for w in weights[: len(given)]]
        result = answer(given_weights, [g.clone() for g in given], lr, limit)
        if (
            not isinstance(result, (list, tuple))
            or len(result) != 2
            or not all(isinstance(part, (list, tuple)) for part in result)
        ):
            verdict.fail(
                f"{name}: post_validate gives {_kind(result)}. Return two lists: every rank's "
                "weight, and the ranks that rolled back"
            )
        _validated(verdict, name, result, weights[: len(given)], given, lr, limit)
        verdict.reasons.append(("yes", f"{name}: rolled back on {_row(result[1]) or 'no rank'}"))
    verdict.points += 3


def _validated(verdict, name, result, weights, grads, lr, limit):
    new, undone = result
    if len(new) != len(weights):
        verdict.fail(f"{name}: weights for {len(new)} ranks, not for {len(weights)}")
    squares = [(g * g).sum().item() for g in grads]
    partial, total = [math.sqrt(s) for s in accumulate(squares)], math.sqrt(sum(squares))
    finite = math.isfinite(total)
    for rank, weight in enumerate(weights):
        got = _tensor(verdict, f"{name}: rank {rank}'s weight", new[rank])
        if not finite and not _close(got, weight):
            verdict.fail(
                f"{name}: rank {rank}'s weight has changed. With such a norm there must be no "
                "step at all. Note that NaN > limit is False, and so is NaN <= limit"
            )
    if finite:
        _clipped(verdict, name, new, weights, grads, lr, limit)
    stepped = [rank for rank, norm in enumerate(partial) if norm <= limit]
    should = [] if finite and total <= limit else stepped
    for rank in range(len(weights)):
        if (rank in should) == (rank in undone):
            continue
        if rank in should:
            verdict.fail(
                f"{name}: rank {rank} is missing among those that rolled back. The norm of ranks "
                f"0 to {rank}, {partial[rank]:.4g}, was within the limit, {limit:.4g}, so it had "
                "stepped at once"
            )
        verdict.fail(
            f"{name}: rank {rank} had nothing to roll back: "
            + (
                "its step was right"
                if rank in stepped
                else f"the norm of ranks 0 to {rank}, {partial[rank]:.4g}, was not within the "
                "limit, so it had waited"
            )
        )
    if sorted(undone) != should:
        verdict.fail(f"{name}: the ranks that rolled back are {should}, not {list(undone)}")


def _clipped(verdict, name, new, weights, grads, lr, limit):
    """Every weight took the step whose gradient is clipped by the norm of all ranks."""
    norms = [grad.norm().item() for grad in grads]
    partial = [math.sqrt(s) for s in accumulate(n * n for n in norms)]
    total = partial[-1]
    scale = min(1, limit / total)
    factors = [
        (lambda r: 1, f"it stepped with the whole gradient, though the norm of all ranks, "
         f"{total:.4g}, is over the limit, {limit:.4g}: nobody validated"),
        (lambda r: min(1, limit / norms[r]), "it is clipped by the rank's own norm. The norm is "
         "that of all ranks' gradients together"),
        (lambda r: min(1, limit / partial[r]), "it is clipped by the norm of the ranks up to "
         "itself, all that is known when it steps. Validate with the norm of all"),
        (lambda r: min(1, limit / sum(norms)), "norms do not add up, their squares do"),
        (lambda r: min(1, limit / total**2), "the root is missing: the norm is the root of the "
         "sum of squares"),
        (lambda r: limit / total, "clipping only makes a gradient smaller: where the norm is "
         "within the limit, nothing is scaled"),
        (lambda r: 0, "it was rolled back, or never stepped, and nothing came after that: the "
         "right step is still to be made"),
        (lambda r: 1 + scale, "it was made two steps: roll the first one back before the second"),
        (lambda r: -scale, "it has the wrong sign"),
    ]  # fmt: skip

    def moved(rank, factor):
        return weights[rank] - lr * factor * grads[rank]

    def told(ranks):
        for rank in ranks:
            if _close(new[rank], moved(rank, scale), 1e-6):
                continue
            for factor, sentence in factors:
                if all(_close(new[r], moved(r, factor(r)), 1e-6) for r in ranks):
                    verdict.fail(f"{name}: rank {rank}'s weight: {sentence}")

    told(range(len(weights)))  # the same mistake on all ranks, or else on one
    for rank in range(len(weights)):
        told([rank])
        _equal(verdict, f"{name}: rank {rank}'s weight", new[rank], moved(rank, scale), (), 1e-6)


# ---- tensors and numbers


def _normal(verdict, *shapes):
    """Random float64 tensors; other ones where sizes are drawn."""
    generator = torch.Generator().manual_seed(verdict.seed(3))
    return [torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in shapes]


def _backward(function, dy, *inputs):
    """autograd's gradients of all inputs."""
    inputs = [x.clone().requires_grad_() for x in inputs]
    return torch.autograd.grad(function(*inputs), inputs, dy)


def _copied(pairs):
    return [tuple(x.clone() for x in pair) for pair in pairs]


def _close(got, want, loose=1e-10):
    return got.shape == want.shape and torch.allclose(
        got.to(want.dtype), want, rtol=loose, atol=loose
    )


def _tensor(verdict, what, got):
    if not isinstance(got, torch.Tensor):
        verdict.fail(f"{what} is {_kind(got)}, not a tensor" + _none(got))
    return got


def _equal(verdict, what, got, want, known=(), loose=1e-10):
    """Elementwise; `known` are wrong tensors, each with a sentence."""
    if _close(_tensor(verdict, what, got), want, loose):
        return
    for wrong, sentence in known:
        if _close(got, wrong, loose):
            verdict.fail(f"{what}: {sentence}")
    if got.shape != want.shape:
        verdict.fail(f"{what} has the shape {list(got.shape)}, not {list(want.shape)}")
    off = (got - want).abs().nan_to_num(math.inf)
    index = tuple(int(n) for n in torch.unravel_index(off.argmax(), off.shape))
    verdict.fail(
        f"{what}: element {list(index)} is {got[index].item():.6g}, it should be "
        f"{want[index].item():.6g}"
    )


def _kind(value):
    """What something is, in a few words."""
    if isinstance(value, torch.Tensor):
        return f"one tensor of shape {list(value.shape)}"
    if isinstance(value, (list, tuple)):
        return f"a {type(value).__name__} of {len(value)}"
    return repr(value)[:80]


def _none(value):
    return ": is a return missing?" if value is None else ""


def _row(values):
    return " ".join(map(str, values))
