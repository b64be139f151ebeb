"""The checks of labs/03_zero_bubble.ipynb. Each takes the learner's functions, gives a `Score`."""

import math
from itertools import accumulate

from ..run import Lab
from ..run.late import Late
from ..schedule import Cost, Op, Schedule, loop, schedules, simulate, verify
from . import forms, words
from . import tensor_checks as tensors
from .exercise import exercise, over
from .post_validation import validated
from .zero_bubble import gaps, lagging, overfull, repeated, slow

torch = Late("torch")

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


# ---- the two halves of a backward


@exercise(points=2)
def split_linear(verdict, linear_input_grad, linear_weight_grad):
    """`linear_input_grad(dy, weight)` and `linear_weight_grad(x, dy)`, against autograd."""
    shapes = [((5,), 3, 4), ((2, 5), 4, 3), ((2, 3, 2), 5, 5), ((1,), 2, 6)]
    if verdict.random:
        draw = verdict.random.randint
        shapes = [(tuple(draw(2, 5) for _ in lead), draw(2, 5), draw(6, 9)) for lead, *_ in shapes]
    for lead, width, out in shapes:
        x, weight, bias, dy = tensors.normal(
            verdict.seed(3), (*lead, width), (out, width), (out,), (*lead, out)
        )  # x @ weight.T + bias has the shape of dy
        dx, dw, db = tensors.gradients(lambda x, w, b: x @ w.T + b, dy, x, weight, bias)
        rows, where = math.prod(lead), f"x of shape {list(x.shape)}"
        known = [(-dx, "it has the wrong sign"), (dx / rows, _MEAN)]
        if width == out:
            known.append((dy @ weight.T, "weight is [out, in]: multiply by it, not by weight.T"))
        given = linear_input_grad(dy.clone(), weight.clone())
        tensors.equal(verdict, f"{where}: dx", given, dx, known)
        both = linear_weight_grad(x.clone(), dy.clone())
        wanted = "two tensors, the gradients of weight and of bias"
        tensors.parts(verdict, f"{where}: linear_weight_grad", both, 2, wanted)
        each = torch.einsum("...ro,...ri->...oi", dy, x)
        known = [
            (dw.T, "it is transposed: weight is [out, in], and so is its gradient"),
            (-dw, "it has the wrong sign"),
            (dw / rows, _MEAN),
            (each, "one weight serves all rows: add up over every leading dimension"),
        ]
        tensors.equal(verdict, f"{where}: the gradient of weight", both[0], dw, known)
        known = [
            (dy, "one bias serves all rows: add dy up over them"),
            (dy.sum(-2), "one bias serves all rows: add up over every leading dimension"),
            (dy.sum(-1), "you added up over the outputs: add up over the rows"),
            (dy.sum(), "that is one number for all outputs: add up over the rows only"),
            (db / rows, _MEAN),
        ]
        tensors.equal(verdict, f"{where}: the gradient of bias", both[1], db, known)
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
    flat = tensors.normal(verdict.seed(3), *[s for a, b in pairs for s in ((b, a), (b,))])
    layers = list(zip(flat[::2], flat[1::2], strict=True))
    ends = tensors.normal(verdict.seed(3), *[(*lead, n) for n in (widths[0], widths[-1])] * 2)
    steps = []
    for i, (x, dy) in enumerate(zip(ends[::2], ends[1::2], strict=True)):
        saved = [(x, x)]
        for weight, bias in layers:
            saved.append((saved[-1][1], torch.tanh(saved[-1][1] @ weight.T + bias)))
        dx, *grads = tensors.gradients(_stage, dy, x, *flat)
        result = stage_input(dy.clone(), tensors.copied(layers), tensors.copied(saved[1:]))
        wanted = "two things: dx, and what stage_weight will need"
        tensors.parts(verdict, "stage_input", result, 2, wanted)
        known = [
            (_chain(layers, saved[1:], dy, slope), sentence)
            for slope, sentence in (
                (lambda x, y: 1, "it does not go through tanh: its slope is 1 - y², y its output"),
                (lambda x, y: 1 - torch.tanh(y) ** 2, "y is what tanh gave: its slope is 1 - y²"),
                (lambda x, y: y, "the slope of tanh is 1 - y², not y"),
            )
        ]
        tensors.equal(verdict, f"micro-batch {i}: dx", result[0], dx, known)
        _kept(verdict, result[1], grads, sum(lead[0] * (a + b) for a, b in pairs))
        steps.append((result[1], dy, saved[1:], grads))
    verdict.expect(True, "dx equals autograd's, and no more is kept than x and dz of a block", "")
    of = [grads for *_, grads in steps]
    for i, (kept, dy, saved, grads) in enumerate(steps):  # both micro-batches are on their way
        result = stage_weight(kept)
        pair = "(gradient of weight, gradient of bias)"
        wanted = f"a list with {pair} for each of the {len(layers)} blocks"
        tensors.parts(verdict, "stage_weight", result, len(layers), wanted)
        for k, got in enumerate(result):
            tensors.parts(verdict, f"block {k}: stage_weight", got, 2, pair)
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
                tensors.equal(verdict, what, got[which], grads[n], known)
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
        verdict.fail(
            f"kept holds {tensors.kind(strange[0])}: keep tensors in lists, tuples or dicts only"
        )
    held = {id(x): x for x in leaves if isinstance(x, torch.Tensor)}.values()
    if any(tensors.close(x, grad) for x in held for grad in grads if grad.dim() == 2):
        verdict.fail(
            "kept holds a finished weight gradient: stage_input has then done W's work too, and "
            "there is nothing left to put off. Keep what it is the product of"
        )
    numbers = sum(x.numel() for x in held)
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

    def call(*case):
        return words.call("held", "m warmup lag", case)

    forms.numbers(
        verdict,
        answer,
        measured,
        call=call,
        right=lambda *case: measured[case],
        wrong=lambda case, value, peak: (
            f"{call(*case)} is {words.show(value)}, but a rank holds {peak}"
        ),
        mistakes=mistakes,
        otherwise=". Follow the strip below a row, op by op",
        near=0,
    )
    verdict.expect(True, f"equal to the simulated peak in {len(measured)} cases", "", points=1)
    p, m = verdict.size(4, 8)
    lags = [rank % 3 for rank in range(p)]
    where = f"p={p}, m={m}, lags {words.row(lags)}"
    said = [answer(m, p - 1 - rank, lag) for rank, lag in enumerate(lags)]
    schedule = lagging(p, m, lags)
    peaks = simulate(schedule, COST).peak_activations
    if said != peaks:
        verdict.fail(f"{where}: you say {said}, but the ranks hold {peaks}")

    def counted():
        peaks = Lab(p, m).run(schedule).peak_activations
        verdict.expect(
            said == peaks,
            f"{where}: {words.row(peaks)}, as counted on real ranks",
            f"{where}: you say {said}, the ranks counted {peaks}",
            points=1,
        )

    verdict.on_ranks(1, counted)


FIRST = (4, 8)  # with its picture
H1_SIZES = [FIRST, (1, 1), (2, 2), (3, 4), (4, 2), (5, 5), (4, 13)]
FEW = (5, 2)  # m < p - 1, so that rank 0 cannot fill its warm-up
H2_SIZES = [FIRST, (1, 2), (2, 3), (3, 6), (4, 2), (4, 12), (5, 14)]


@exercise(points=4)
def zb_h1(verdict, answer):
    """`zb_h1(p, m)`: F, I and W by rank, within 1F1B's p activations."""
    sizes, size = _sizes(verdict, H1_SIZES)
    judged = {}
    for p, m in sizes:
        trace, target = judged[p, m] = _split(verdict, answer, p, m, schedules.zb_h1)
        if too_much := overfull(trace, target.peak_activations, per_hop=1):
            verdict.fail(too_much)
        if trace.makespan > target.makespan:
            verdict.fail(
                f"makespan {trace.makespan}, but {target.makespan} is possible"
                + slow(trace.schedule)
            )
        verdict.reasons.pop()
    verdict.expect(
        True,
        f"legal, and within the makespan and the memory of ZB-H1, for {len(sizes)} sizes",
        "",
        points=3,
    )
    trace, target = judged[size]
    verdict.on_ranks(
        1, lambda: _run(verdict, trace, makespan=target.makespan, peak=target.peak_activations)
    )


@exercise(points=3)
def zb_h2(verdict, answer):
    """`zb_h2(p, m)`: no gap in any rank's work, within 2p activations."""
    sizes, size = _sizes(verdict, H2_SIZES)
    judged = {}
    for p, m in sizes:
        trace, target = judged[p, m] = _split(verdict, answer, p, m, schedules.zb_h2)
        if too_much := overfull(trace, [min(m, 2 * p)] * p, per_hop=2):
            verdict.fail(too_much)
        if trace.span > target.span:
            verdict.fail(
                f"a rank takes {trace.span} from its first op to its last, but {target.span} is "
                "possible" + gaps(trace.schedule)
            )
        if trace.makespan > target.makespan:
            verdict.fail(
                f"no rank has a gap, but the makespan is {trace.makespan}, and {target.makespan} "
                "is possible: do ranks start later than they have to?"
            )
        verdict.reasons.pop()
    verdict.expect(
        True,
        f"legal, and within the span of ZB-H2 and 2p activations, for {len(sizes)} sizes",
        "",
        points=2,
    )
    trace, target = judged[size]
    verdict.on_ranks(1, lambda: _run(verdict, trace, makespan=target.makespan))


def _sizes(verdict, visible):
    """The sizes that an answer is judged for, and the one of them that is run on real ranks."""
    sizes = [*verdict.sizes(visible), FEW]
    size = verdict.size(*FIRST)
    return list(dict.fromkeys([*sizes, size])), size


def _split(verdict, answer, p, m, make):
    """The answer, if it is a legal schedule of F, I and W, and `make`'s schedule: both simulated.

    The last reason is a note for which size this is, until the size is passed.
    """
    verdict.reasons.append(("note", f"p={p}, m={m}"))
    ranks = forms.rows(verdict, "", answer(p, m), p)
    whole = [op for row in ranks for op in row if isinstance(op, Op) and op.kind == "B"]
    if whole:
        verdict.fail(
            f"{whole[0]} is a whole backward. Split each one: an I, and later a W of the same "
            "micro-batch"
        )
    schedule = Schedule("yours", ranks, loop(p), m)
    verify(schedule)
    trace, target = simulate(schedule, COST), simulate(make(p, m), COST)
    if (p, m) == FIRST and trace != target:
        verdict.figure = over(trace, target)
    return trace, target


def _run(verdict, trace, **targets):
    """A simulated schedule on real ranks: gradients right, targets met."""
    schedule = trace.schedule
    lab = Lab(schedule.p, schedule.microbatches, seed=verdict.seed(0))
    verdict.agree(lab, lab.run(schedule, cost=COST), points=1, **targets)


# ---- span and makespan


@exercise(points=2)
def bubble_rate(verdict, answer):
    """`bubble_rate(starts, ends, work)`: the paper's bubble, from the longest rank's own time."""
    cases, paper = _spans(verdict)

    def spans(s, e):
        return [b - a for a, b in zip(s, e, strict=True)]

    def from_cost(cost):
        return lambda s, e, work: (cost(s, e) - work) / cost(s, e)

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
    given = forms.numbers(
        verdict,
        lambda s, e, work: answer(list(s), list(e), work),
        cases,
        call=lambda *times: f"bubble_rate({cases[times]})",
        right=from_cost(lambda s, e: max(spans(s, e))),
        wrong=lambda times, value, right: (
            f"{cases[times]}: your bubble rate is {float(value):.4f}, and it should be "
            f"{float(right):.4f}"
        ),
        mistakes=mistakes,
    )
    for times, rate in paper.items():
        if round(float(given[times]), 4) != rate:
            verdict.fail(f"{cases[times]}: {float(given[times]):.4f}, but the paper has {rate:.4f}")
    verdict.expect(
        True, f"all {len(paper)} numbers of the paper's Table 5, and times made up", "", points=2
    )


def _spans(verdict):
    """What `bubble_rate` is asked for: {(starts, ends, work of a rank): name}; and what the paper
    has: {the same: its rate}."""
    cases, paper = {}, {}

    def ask(name, starts, ends, work):
        times = tuple(starts), tuple(ends), work
        cases.setdefault(times, name)
        return times

    def simulated(name, schedule, cost):
        trace = simulate(schedule, cost)
        starts, ends = zip(*[(row[0].start, row[-1].end) for row in trace.ranks], strict=True)
        return ask(name, starts, ends, max(trace.busy))

    if verdict.random:
        starts = list(accumulate(verdict.random.randint(1, 4) for _ in range(4)))
        more = [0, 1, 2, 1]
        more[verdict.random.randint(1, 2)] = 4  # neither the first rank nor the last is longest
        ask("times made up", starts, [a + 24 + n for a, n in zip(starts, more, strict=True)], 24)
    else:
        ask("four ranks, the second one longest", [0, 1, 2, 3], [24, 27, 25, 28], 24)
    for p, m in verdict.sizes([(4, 8), (3, 6), (1, 3)]):
        for make in TABLE_5_SCHEDULES:
            simulated(f"{make.__name__}, p={p} m={m}", make(p, m), COST)
    for (model, p, m), cost, rates in TABLE_5:
        for make, rate in zip(TABLE_5_SCHEDULES, rates, strict=True):
            paper[simulated(f"{make.__name__}, {model} m={m}", make(p, m), cost)] = rate
    return cases, paper


@exercise(points=2)
def in_a_row(verdict, answer):
    """`in_a_row(ranks, m, steps)`: several training steps as one list for each rank."""
    for (p, m), steps in zip(verdict.sizes([(4, 8), (3, 6), (1, 2), (4, 2)]), (3, 2, 4, 1),
                             strict=True):  # fmt: skip
        for make in (schedules.zb_h2, schedules.one_f_one_b):
            one = make(p, m)
            where = f"{one.name}, p={p} m={m}, {steps} steps"
            given = answer([list(row) for row in one.ranks], m, steps)
            ranks = forms.rows(verdict, f"{where}: in_a_row", given, p)
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
            f"{where} names the micro-batches {words.row(numbers)}. They should be 0 to "
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
        weight, velocity, grad = tensors.normal(verdict.seed(3), shape, shape, shape)
        new_velocity = momentum * velocity + grad
        new = (1 - lr * decay) * weight - lr * new_velocity
        result = answer(new.clone(), new_velocity.clone(), grad.clone(), lr, momentum, decay)
        tensors.parts(verdict, "undo", result, 2, "two tensors, weight and velocity")
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
        tensors.equal(verdict, f"{where}: the weight", result[0], weight, known, loose=1e-9)
        known = [
            (new_velocity, "that is the velocity after the step, as it was given"),
            (new_velocity - grad, "it is still multiplied by the momentum: divide by it"),
            (new_velocity / momentum - grad, "the gradient was added last, so it goes first; then "
             "divide"),
            ((new_velocity - grad) * momentum, "you multiplied by the momentum once more. Divide"),
            ((new_velocity + grad) / momentum, "you added the gradient a second time"),
        ]  # fmt: skip
        tensors.equal(verdict, f"{where}: the velocity", result[1], velocity, known, loose=1e-9)
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
    random = tensors.normal(verdict.seed(3), *[shape] * 2 * p)
    weights, unit = random[:p], [g / g.norm() for g in random[p:]]
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
    wanted = "two lists: every rank's weight, and the ranks that rolled back"
    for name, given, limit in cases:
        given_weights = [w.clone() for w in weights[: len(given)]]
        result = answer(given_weights, [g.clone() for g in given], lr, limit)
        call = f"{name}: post_validate"
        tensors.parts(verdict, call, result, 2, wanted)
        strange = [part for part in result if not isinstance(part, (list, tuple))]
        if strange:
            verdict.fail(
                f"{call} gives {tensors.kind(strange[0])} in place of a list. Return {wanted}"
            )
        validated(verdict, name, result, weights[: len(given)], given, lr, limit)
        ranks = words.row(result[1]) or "no rank"
        verdict.reasons.append(("yes", f"{name}: rolled back on {ranks}"))
    verdict.points += 3
