"""The checks of labs/09_with_tp_dp_cp_ep.ipynb. Each takes the learner's functions and gives a
`Score`."""

from fractions import Fraction
from functools import partial

from ..run import Lab
from ..run.late import Late
from ..schedule import Cost, Grid, Op, Placement, Schedule, schedules, simulate
from ..show import timeline
from .exercise import exercise
from .forms import numbers, recognised
from .words import call, missing, short, show

problems = Late("pp_lab.course.grid_problems")
torch = Late("torch")

COST = Cost(F=1, B=2, sync=3)

# ---- a place on every axis


@exercise(points=3)
def layout(verdict, coordinates, members):
    """`coordinates(rank, sizes, order)` and `members(rank, axis, sizes, order)`."""
    cases = [
        ({"tp": 2, "dp": 2, "pp": 2}, "tp-dp-pp"),
        ({"tp": 8, "dp": 2, "pp": 4}, "tp-dp-pp"),
        ({"tp": 8, "dp": 2, "pp": 4}, "tp-pp-dp"),
        ({"tp": 2, "dp": 3, "pp": 4}, "pp-dp-tp"),
        ({"tp": 2, "cp": 3, "ep": 1, "dp": 2, "pp": 3}, "tp-cp-ep-dp-pp"),
        ({"pp": 5}, "pp"),
    ]
    if draw := verdict.random:
        for k, (sizes, order) in enumerate(cases):
            axes = order.split("-")
            if k > 2:
                draw.shuffle(axes)
            low, high = (1, 2) if len(axes) == 5 else (2, 4)
            cases[k] = {axis: draw.randint(low, high) for axis in sizes}, "-".join(axes)
    ranks = [(rank, *case) for case in cases for rank in range(_grid(*case).size)]
    given = [(case, _place(verdict, coordinates, *case)) for case in ranks]
    for (rank, sizes, order), got in given:
        found = _grid(sizes, order).coordinates(rank)
        right = {axis: found[axis] for axis in sizes}
        if got != right:
            known = recognised(given, PLACES)
            over = [axis for axis in sizes if not 0 <= got[axis] < sizes[axis]]
            if over and not known:
                known = f"{over[0]} has places 0 to {sizes[over[0]] - 1}"
            verdict.fail(
                f"coordinates({rank}, {sizes}, {order!r}) is {got}, and it should be {right}: "
                + (known or "the axis on the left varies fastest, the others when it is through")
            )
    verdict.expect(True, f"coordinates: right for every rank of {len(cases)} layouts", "", points=1)
    groups = [
        (rank, axis, sizes, order)
        for sizes, order in cases
        for axis in sizes
        for rank in range(_grid(sizes, order).size)
    ]
    given = [(case, _group(verdict, members, *case)) for case in groups]
    for (rank, axis, sizes, order), got in given:
        right = [*_grid(sizes, order).group(axis, rank)]
        if list(got) == right:
            continue
        called = f"members({rank}, {axis!r}, {sizes}, {order!r}) "
        if rank not in got:
            verdict.fail(f"{called}is {short(got)}: rank {rank} is in its own group")
        if len(got) != sizes[axis]:
            verdict.fail(f"{called}has {len(got)} ranks, and a group of {axis} has {sizes[axis]}")
        if sorted(got) == right:
            verdict.fail(f"{called}is {short(got)}: name the ranks in ascending order")
        verdict.fail(
            f"{called}is {short(got)}, and it should be {right}: "
            + (recognised(given, GROUPS) or f"its members differ in {axis}, and in nothing else")
        )
    verdict.expect(True, f"members: right for {len(groups)} groups", "", points=2)


def _place(verdict, coordinates, rank, sizes, order):
    """What `coordinates` gives, if that is a number for each axis."""
    called, got = f"coordinates({rank}, {sizes}, {order!r})", coordinates(rank, dict(sizes), order)
    if not isinstance(got, dict) or set(got) != set(sizes):
        verdict.fail(
            f"{called} gives {short(got)}: return a dict with a place for each of "
            f"{', '.join(sizes)}" + (". Is a return missing?" if got is None else "")
        )
    for axis in sizes:
        verdict.number(f"{axis} in {called}", got[axis])
    return dict(got)


def _group(verdict, members, rank, axis, sizes, order):
    """What `members` gives, if that is a list."""
    got = members(rank, axis, dict(sizes), order)
    if not isinstance(got, (list, tuple)):
        verdict.fail(
            f"members({rank}, {axis!r}, {sizes}, {order!r}) gives {short(got)}: return a list of "
            "ranks" + (". Is a return missing?" if got is None else "")
        )
    return got[:]


def _grid(sizes, order):
    """With the axes that are not named at the end, one place on each."""
    rest = [axis for axis in ("tp", "cp", "ep", "dp", "pp") if axis not in sizes]
    return Grid(**sizes, order="-".join([order, *rest]))


def _places(rank, sizes, axes):
    found = {}
    for axis in axes:
        rank, found[axis] = divmod(rank, sizes[axis])
    return found


def _strided(wrong):
    """A mistake in rank // stride % size."""

    def places(rank, sizes, order):
        found, stride = {}, 1
        for axis in order.split("-"):
            found[axis] = wrong(rank, stride, sizes[axis])
            stride *= sizes[axis]
        return found

    return places


PLACES = [
    (lambda r, s, o: _places(r, s, o.split("-")[::-1]),
     "the axis on the left of the order varies fastest, not the one on the right"),
    (lambda r, s, o: _places(r, s, s),
     "that takes the axes as they stand in sizes. The order says which varies fastest"),
    (_strided(lambda rank, stride, size: rank // stride),
     "after the division the rest counts: take it modulo the size of the axis"),
    (_strided(lambda rank, stride, size: rank % size),
     "each axis looks at what the axes before it left over: divide by their sizes"),
    (lambda r, s, o: {a: place + 1 for a, place in _places(r, s, o.split("-")).items()},
     "places are counted from 0"),
]  # fmt: skip
GROUPS = [
    (lambda r, a, s, o: [*range(r // s[a] * s[a], (r // s[a] + 1) * s[a])],
     "those are neighbours in number. Only the fastest axis has its groups side by side"),
    (lambda r, a, s, o: [*_grid(s, "-".join(o.split("-")[::-1])).group(a, r)],
     "the axis on the left of the order varies fastest, not the one on the right"),
    (lambda r, a, s, o: [*_grid(s, o).group(a, 0)],
     "that is rank 0's group. The others' have other ranks"),
]  # fmt: skip

# ---- gradients, once


@exercise(points=4)
def train(verdict, answer):
    """A rank program: its copy's micro-batches, then the gradients averaged over the copies."""
    cases = [(2, 2, 4, 2), (2, 1, 2, 1), (1, 2, 3, 1)]  # dp, pp, micro-batches of a copy, points
    if draw := verdict.random:
        cases = [
            (draw.choice([2, 3]), 2, draw.randint(2, 5), 2),
            (draw.choice([2, 3]), 1, draw.randint(2, 4), 1),
            (1, draw.choice([2, 3]), draw.randint(2, 5), 1),
        ]
    for dp, pp, m, points in cases:
        grid, lab = Grid(dp=dp, pp=pp), Lab(pp, dp * m, seed=verdict.seed(dp + pp))
        target = simulate(grid.spread(schedules.one_f_one_b(pp, m)), COST)
        run = lab.run(answer, grid=grid, cost=COST)
        where = f"dp={dp}, pp={pp}"
        if verdict.figure is None:
            verdict.figure = timeline(run.trace)
        _averaged(verdict, where, run, dp)
        _once(verdict, where, run, m, _held(lab, grid, run))
        if run.trace.makespan > target.makespan:
            verdict.fail(
                f"{where}: it takes {show(run.trace.makespan)}, and "
                f"{show(target.makespan)} is possible{_slow(run, grid)}"
            )
        verdict.expect(
            True,
            f"{where}: equal to the single process with all {dp * m} micro-batches, in "
            f"{show(run.trace.makespan)}"
            + (", each gradient summed once" if dp > 1 else ", where there is one copy only"),
            "",
            points=points,
        )


def _held(lab, grid, run):
    """Bytes of the parameters on each rank of a grid of pp and dp."""
    places = [grid.coordinates(rank)["pp"] for rank in range(grid.size)]
    return [
        sum(run.grads[n].numel() * run.grads[n].element_size() for n in lab.problem.names(place))
        for place in places
    ]


def _averaged(verdict, where, run, dp):
    """Gradients right; if not, say what they are."""
    kind, text = run.compare()
    if kind == "yes":
        return
    right = run.lab.reference.grads
    got = torch.cat([run.grads[n].flatten() for n in right if run.grads[n] is not None])
    want = torch.cat([right[n].flatten() for n in right if run.grads[n] is not None])
    factor = got.norm() / want.norm()
    if "times too" not in text and torch.allclose(got, factor * want) and abs(factor - 1) > 1e-6:
        many = f"{show(max(factor, 1 / factor))} times too {'large' if factor > 1 else 'small'}"
        text = (
            f"all gradients are {many}. The loss is divided by the copy's own "
            f"micro-batches already; what is left is the mean over the {dp} copies"
        )
    elif any("all" in moved for moved in run.traffic):
        text += '. all_reduce without a group sums over all ranks, whatever their stage: "dp"'
    verdict.fail(f"{where}: {text}")


def _once(verdict, where, run, m, held):
    """Each rank has reduced its gradients once: what a ring of dp ranks sends for that."""
    dp = run.grid.dp
    for rank, (moved, size) in enumerate(zip(run.traffic, held, strict=True)):
        if "all" in moved:
            verdict.fail(f'{where}: rank {rank} sums over all ranks, too. Name the group, "dp"')
        got = sum(amount for name, (_, amount) in moved.items() if name in ("dp", "dp-cp"))
        least = 2 * (dp - 1) * size / dp
        if dp > 1 and got > 1.001 * least:
            times = got / least
            verdict.fail(
                f"{where}: right numbers, but rank {rank} sends {show(times)} times what is "
                "needed"
                + (
                    ": it reduces after every micro-batch. Gradients add up on their own rank "
                    "first; one sum at the end is enough"
                    if abs(times - m) < 0.01
                    else ": each gradient is to be summed once"
                )
            )


def _slow(run, grid):
    """Why a program may be slower than it could be."""
    sums = [e for e in run.trace.events if e.op.kind == "R"]
    for rank in range(grid.size):
        here = grid.coordinates(rank)
        mine = [e.end for e in sums if e.rank == rank]
        if here["pp"] and mine:
            before = run.trace.ranks[grid.rank(**here | {"pp": here["pp"] - 1})]
            if min(mine) <= before[-1].start:
                return (
                    f". Rank {rank} sums its gradients while the stage before still waits for its "
                    "last message: send first, then sum"
                )
    return ": look at the picture for who waits for whom"


# ---- when the sum is made


def in_buckets(p, m, buckets):
    """1F1B whose ops are cut into the layers of a rank, a bucket of gradients each."""
    rows = [
        [
            Op(op.kind, op.stage * buckets + k, op.microbatch)
            for op in row
            for k in (range(buckets) if op.kind == "F" else reversed(range(buckets)))
        ]
        for row in schedules.one_f_one_b(p, m).ranks
    ]
    owners = tuple(stage // buckets for stage in range(p * buckets))
    return Schedule(f"1F1B, {buckets} buckets", rows, Placement("loop", (owners,)), m)


@exercise(points=2)
def exposed(verdict, answer):
    """`exposed(r, B, sync, buckets)`: how long rank r reduces after the last backward of all."""
    # p, B, sync, buckets
    cases = [(4, 2, 3, 1), (4, 2, 5, 1), (4, 2, 3, 2), (3, 2, 1, 4), (3, 2, 8, 4), (2, 3, 3, 3),
             (4, 1, 6, 2)]  # fmt: skip
    if draw := verdict.random:
        cases = [(p, draw.randint(1, 4), 0, n) for p, _, _, n in cases]
        cases = [
            (p, B, draw.randint(B + 1, 4 * B) if k % 2 == 0 else draw.randint(1, B), n)
            for k, (p, B, _, n) in enumerate(cases)
        ]
    called = partial(call, "exposed", "r B sync buckets")
    asked = [(r, *case) for p, *case in cases for r in range(p)]
    given = {case: verdict.number(called(case), answer(*case)) for case in asked}
    for p, *case in cases:
        right = _exposed(p, *case)
        for r in range(p):
            value = given[(r, *case)]
            if value < 0:
                verdict.fail(
                    f"{called((r, *case))} is {show(value)}: if it ends before the pipeline does, "
                    "nothing is exposed, 0"
                )
            if abs(value - right[r]) > 1e-9:
                known = recognised(given, EXPOSED)
                verdict.fail(
                    f"{called((r, *case))} is {show(value)}, but simulated with p={p} it is "
                    f"{show(right[r])}: {known or READY}"
                )
        B, sync, n = case
        verdict.reasons.append(
            ("yes", f"B={B}, sync={sync}, buckets={n}: {' '.join(map(show, right))}")
        )
    verdict.points += 2


def _exposed(p, B, sync, buckets):
    """For each rank, simulated."""
    grid = Grid(dp=2, pp=p)
    trace = simulate(
        grid.spread(in_buckets(p, p, buckets)), Cost(F=1, B=B, sync=sync).split(buckets)
    )
    drained = max(e.end for e in trace.events if e.op.kind == "B")
    return [
        max(0, *(e.end - drained for e in trace.events if e.rank == grid.rank(pp=r)))
        for r in range(p)
    ]


READY = "when is a bucket's gradient there, and when is the bucket before it sent?"


def _bucketed(end):
    return lambda r, B, sync, n: max(0, end(B, sync, n) - r * B)


EXPOSED = [
    (lambda r, B, sync, n: sync,
     "that is after a barrier at the end. A rank need not wait for the others' backwards: "
     "those of the stages before it give it time"),
    (lambda r, B, sync, n: max(0, sync - r * B),
     "that is one bucket. With more, a part is on its way while the last backward still runs"),
    (_bucketed(lambda B, sync, n: Fraction(sync, n)),
     "the last bucket alone counts only as long as each is through before the next is ready. "
     "If sync is longer than B, they queue"),
    (_bucketed(lambda B, sync, n: max(0, sync - B)),
     "the first bucket starts when its own gradient is there, after B/buckets, not when the "
     "backward starts. And the last one starts when the backward has ended"),
    (_bucketed(lambda B, sync, n: sync - B + Fraction(B, n)),
     "that is right if the buckets queue. If they do not, the last one still has to be sent"),
    (_bucketed(lambda B, sync, n: max(sync - B, Fraction(sync, n))),
     "the first bucket starts when its own gradient is there, after B/buckets"),
    (lambda r, B, sync, n: max(sync - B + Fraction(B, n), Fraction(sync, n)),
     "that is rank 0. A later rank is done r backwards earlier"),
]  # fmt: skip

# ---- one layer on several ranks


@exercise(points=3)
def mlp(verdict, forward, backward, to_sum):
    """Forward and backward of tanh(x Aᵀ) Bᵀ on one rank's part of A and B; what is summed."""
    cases = [(2, 3, 4, 12), (1, 5, 3, 6), (4, 2, 6, 8)]  # ranks, rows, hidden, inner
    if draw := verdict.random:
        cases = [
            (t, draw.randint(2, 6), draw.randint(3, 7), t * draw.randint(2, 4)) for t, *_ in cases
        ]
    seed = torch.Generator().manual_seed(verdict.seed(9))
    problems = [_layer(seed, *case) for case in cases]
    for (t, *_), (x, A, B, _, right) in zip(cases, problems, strict=True):
        parts = [forward(x.clone(), a.clone(), b.clone()) for a, b in _parts(A, B, t)]
        for part in parts:
            _tensor(verdict, f"mlp_forward with {t} ranks", part, right["y"].shape)
        if not _close(sum(parts), right["y"]):
            known = _meant(parts[0], FORWARDS, x, *_parts(A, B, t)[0], t)
            verdict.fail(
                f"mlp_forward, summed over {t} rank{'s' * (t > 1)}, is not y: "
                + (known or "tanh(x @ A.T) @ B.T")
            )
    verdict.expect(True, "forward: the terms of all ranks add up to y", "", points=1)
    for (t, *_), (x, A, B, dy, right) in zip(cases, problems, strict=True):
        found = []
        for a, b in _parts(A, B, t):
            got = backward(x.clone(), a.clone(), b.clone(), dy.clone())
            if not isinstance(got, (list, tuple)) or len(got) != 3:
                verdict.fail(f"mlp_backward gives {short(got)}: return dx, dA, dB")
            for name, value, like in zip(("dx", "dA", "dB"), got, (x, a, b), strict=True):
                _tensor(verdict, f"{name} of mlp_backward with {t} ranks", value, like.shape)
            found.append(got)
        dx, dA, dB = zip(*found, strict=True)
        got = {"dB": torch.cat(dB, 1), "dA": torch.cat(dA, 0), "dx": sum(dx)}
        for name, value in got.items():
            if not _close(value, right[name]):
                part = _parts(A, B, t)[0]
                mine = dict(zip(("dx", "dA", "dB"), found[0], strict=True))[name]
                known = _meant(mine, BACKWARDS[name], x, *part, dy, t)
                whole = "summed over" if name == "dx" else "put together from"
                verdict.fail(
                    f"{name}, {whole} {t} rank{'s' * (t > 1)}, is not autograd's: "
                    + (known or "start from dy and go backwards, one product at a time")
                )
    verdict.expect(
        True, "backward: dx, summed, and dA, dB, side by side, are autograd's", "", points=1
    )
    names = to_sum()
    if not isinstance(names, (list, tuple, set)) or not all(n in right for n in names):
        verdict.fail(f"to_sum gives {short(names)}: return a list with names of y, dx, dA, dB")
    for name in ("y", "dx"):
        if name not in names:
            verdict.fail(
                f"to_sum leaves out {name}: a rank has one term of it, and what comes "
                f"{'next' if name == 'y' else 'before'} needs the whole"
            )
    for name in ("dA", "dB"):
        if name in names:
            verdict.fail(
                f"to_sum has {name}: ranks hold different parts of {name[1]}, and each has found "
                "the whole gradient of its own. A sum would mix them up"
            )
    verdict.expect(True, "summed are y in the forward, and dx in the backward", "", points=1)


def _layer(seed, t, rows, hidden, inner):
    """x, A, B, dy, and what autograd finds."""
    shapes = ((rows, hidden), (inner, hidden), (hidden, inner), (rows, hidden))
    x, A, B, dy = (torch.randn(s, generator=seed, dtype=torch.float64) for s in shapes)
    leaves = [tensor.clone().requires_grad_() for tensor in (x, A, B)]
    y = torch.tanh(leaves[0] @ leaves[1].T) @ leaves[2].T
    y.backward(dy)
    found = {f"d{name}": leaf.grad for name, leaf in zip("xAB", leaves, strict=True)}
    return x, A, B, dy, {"y": y.detach(), **found}


def _parts(A, B, t):
    return list(zip(A.chunk(t, 0), B.chunk(t, 1), strict=True))


def _tensor(verdict, what, value, shape):
    if not isinstance(value, torch.Tensor):
        verdict.fail(f"{what} gives {short(value)}, not a tensor{missing(value)}")
    if value.shape != shape:
        verdict.fail(f"{what} has shape {list(value.shape)}, and it should be {list(shape)}")


def _close(a, b):
    return a.shape == b.shape and bool(torch.isclose(a, b, rtol=1e-9, atol=1e-9).all())


def _meant(tensor, mistakes, *given):
    """The sentence for the known mistake that makes this tensor, or None."""
    return next((text for wrong, text in mistakes if _close(tensor, wrong(*given))), None)


FORWARDS = [
    (lambda x, a, b, t: x @ a.T @ b.T, "the tanh between the two products is missing"),
    (lambda x, a, b, t: torch.tanh(x @ a.T @ b.T),
     "tanh comes after the first product. There a rank has whole numbers; after the second "
     "it has terms of sums, and tanh of a sum is not the sum of tanh"),
    (lambda x, a, b, t: torch.tanh(torch.tanh(x @ a.T) @ b.T),
     "there is one tanh, after the first product"),
    (lambda x, a, b, t: torch.tanh(x @ a.T) @ b.T / t,
     "the terms are added up, not averaged: do not divide"),
    (lambda x, a, b, t: x + torch.tanh(x @ a.T) @ b.T,
     "x is added once, after the sum: if every rank adds it, it counts once for each"),
]  # fmt: skip


def _slope(x, a):
    return 1 - torch.tanh(x @ a.T) ** 2


BACKWARDS = {
    "dB": [
        (lambda x, a, b, dy, t: dy.T @ (x @ a.T), "B multiplies tanh(x @ A.T), not x @ A.T"),
        (lambda x, a, b, dy, t: dy.T @ torch.tanh(x @ a.T) / t,
         "do not divide: dy is whole on every rank"),
    ],
    "dA": [
        (lambda x, a, b, dy, t: (dy @ b).T @ x,
         "the slope of tanh, 1 - tanh², is missing between the two products"),
        (lambda x, a, b, dy, t: (dy @ b * (1 - (x @ a.T) ** 2)).T @ x,
         "the slope is 1 - tanh(x @ A.T)², and not of x @ A.T itself"),
        (lambda x, a, b, dy, t: (dy @ b * torch.tanh(x @ a.T)).T @ x,
         "the slope of tanh is 1 - tanh²"),
    ],
    "dx": [
        (lambda x, a, b, dy, t: dy @ b @ a, "the slope of tanh is missing on the way to x"),
        (lambda x, a, b, dy, t: (dy @ b * _slope(x, a)) @ a / t,
         "the terms are added up, not averaged: do not divide"),
        (lambda x, a, b, dy, t: dy + (dy @ b * _slope(x, a)) @ a,
         "the layer is without the residual path: dy is not added"),
    ],
}  # fmt: skip

# ---- what crosses a stage boundary


@exercise(points=2)
def crossing(verdict, answer):
    """`crossing(s, b, h, tp, cp, sequence_parallel, size)`: bytes that a rank sends."""
    runs = [(8, 1, 6, 2, 1, False, 8), (8, 1, 6, 2, 1, True, 8), (4, 2, 5, 1, 2, False, 8)]
    more = [(2048, 1, 12288, 8, 1, True, 2), (2048, 4, 1024, 8, 2, True, 2),
            (4096, 2, 512, 4, 4, False, 2), (16, 3, 8, 1, 1, False, 4),
            (64, 2, 8, 4, 2, True, 4)]  # fmt: skip
    if draw := verdict.random:
        runs = [
            (4 * draw.randint(1, 3), draw.randint(1, 2), 2 * draw.randint(2, 4), *rest)
            for _, _, _, *rest in runs
        ]
        more = [
            (s * draw.randint(1, 3), draw.randint(1, 4), h * draw.randint(1, 3), *rest)
            for s, _, h, *rest in more
        ]
    names, cases = "s b h tp cp sequence_parallel size", [*runs, *more]
    otherwise = ": count the numbers in the tensor that a rank holds, then their bytes"
    given = _formula(verdict, "crossing", names, answer, cases, _crossing, CROSSINGS, otherwise)
    verdict.expect(True, f"[s/(TP·CP), b, h] or [s/CP, b, h], for {len(cases)} sizes", "", points=1)

    def count():
        for case in runs:
            s, b, h, tp, cp, sequence_parallel, _ = case
            grid = Grid(tp=tp, cp=cp, pp=2, sequence_parallel=sequence_parallel)
            lab = problems.rows_lab(2, 2, s * b, h, 2)
            run = lab.run(schedules.one_f_one_b(2, 2), grid=grid)
            sent = run.message_bytes[0] / run.messages[0]
            verdict.expect(
                sent == given[case],
                f"{grid}{', sequence parallel' * sequence_parallel}: {show(sent)} bytes, as "
                "counted",
                f"{grid}: the ranks counted {show(sent)} bytes",
            )
        verdict.points += 1

    verdict.on_ranks(1, count)


def _formula(verdict, name, names, answer, cases, right, mistakes, otherwise):
    """`numbers`, of a formula for bytes."""

    def called(*case):
        return call(name, names, case)

    def wrong(case, value, wanted):
        return f"{called(*case)} is {show(value)}, and it should be {show(wanted)}"

    return numbers(verdict, answer, cases, call=called, right=right, wrong=wrong,
                   mistakes=mistakes, otherwise=otherwise)  # fmt: skip


def _crossing(s, b, h, tp, cp, sequence_parallel, size):
    return s * b * h * size / (cp * (tp if sequence_parallel else 1))


CROSSINGS = [
    (lambda s, b, h, tp, cp, sp, size: s * b * h * size / (tp * cp),
     "without sequence parallelism every tensor-parallel rank holds all rows after its sum, "
     "and sends them"),
    (lambda s, b, h, tp, cp, sp, size: s * b * h * size / cp,
     "with sequence parallelism a rank holds 1/tp of the rows outside the products"),
    (lambda s, b, h, tp, cp, sp, size: s * b * h * size / (tp if sp else 1),
     "context parallelism cuts the sequence too: each rank has s/cp of it"),
    (lambda s, b, h, tp, cp, sp, size: _crossing(s, b, h, tp, cp, sp, 1),
     "that counts numbers. Each has `size` bytes"),
    (lambda s, b, h, tp, cp, sp, size: _crossing(s, 1, h, tp, cp, sp, size),
     "the micro-batch has b sequences"),
    (lambda *case: 2 * _crossing(*case), "that is forward and backward. Asked is one message"),
    (lambda s, b, h, tp, cp, sp, size: s * b * h * size,
     "that is the whole tensor. A rank sends the part that it holds"),
    (lambda s, b, h, tp, cp, sp, size: _crossing(s, b, h, tp, cp, not sp, size),
     "the other way round: it is sequence parallelism that cuts the rows between tp ranks"),
]  # fmt: skip

# ---- a weight on two stages


@exercise(points=3)
def tied(verdict, answer):
    """A rank program that also adds up the two gradients of the tied embedding."""
    cases = [(2, 2, 2, 2), (1, 3, 3, 1)]  # dp, pp, micro-batches of a copy, points
    if draw := verdict.random:
        cases = [(dp, pp, draw.randint(2, 4), points) for dp, pp, _, points in cases]
    for dp, pp, m, points in cases:
        grid, where = Grid(dp=dp, pp=pp), f"dp={dp}, pp={pp}"
        lab = problems.words_lab(pp, dp * m, hidden=6, seed=verdict.seed(dp))
        run = lab.run(answer, grid=grid, cost=COST)
        kind, text = run.compare()
        if kind == "no":
            verdict.fail(f"{where}: {text}{_tie(run)}")
        held, size = _held(lab, grid, run), run.grads["block0.weight"].numel() * 8
        _once(verdict, where, run, m, held)
        for rank, moved in enumerate(run.traffic):
            if moved.get("embedding", (0, 0))[1] > size:
                verdict.fail(
                    f"{where}: right numbers, but rank {rank} sends more over "
                    '"embedding" than the one tied gradient'
                )
        verdict.expect(
            True,
            f"{where}: equal to the single process, both ends with the same gradient",
            "",
            points=points,
        )


def _tie(run):
    """What a wrong gradient of the tied weight is, if it is a multiple of the right one."""
    right = run.lab.reference.grads
    for name in ("block0.weight", "block3.weight"):
        got, want = run.grads[name], right[name]
        if got is None:
            continue
        factor = got.norm() / want.norm()
        if abs(factor - 1) > 1e-6 and torch.allclose(got, factor * want):
            return (
                f". {name} is {show(factor)} times what it should be: the parts of the two "
                "ends are added up, not averaged, and once"
            )
    return ""


# ---- how much, how often


@exercise(points=3)
def volumes(verdict, tp_bytes, pp_bytes, dp_bytes):
    """Bytes that a rank of a middle stage sends per step, on each axis."""
    sizes = [(8, 6, 2, 4, 2), (12, 4, 3, 3, 2)]  # rows, hidden, layers of a stage, m, tp or dp
    if draw := verdict.random:
        sizes = [
            (2 * draw.randint(2, 6), 2 * draw.randint(2, 4), draw.randint(1, 3),
             draw.randint(2, 5), 2)
            for _ in sizes
        ]  # fmt: skip
    more = [(2048, 12288, 2, 12, 4, 64, 8), (64, 512, 4, 3, 2, 5, 4), (32, 64, 2, 5, 4, 8, 1)]
    if draw:
        more = [
            (n * draw.randint(1, 3), h, size, layers, sums, draw.randint(2, 40), t)
            for n, h, size, layers, sums, _, t in more
        ]
    cases = [(n, h, 8, layers, 2, m, t) for n, h, layers, m, t in sizes] + more
    tp = _volume(verdict, "tp_bytes", "n h size layers sums m t", tp_bytes, cases, _tp, TP)
    cases = [(n, h, size, m) for n, h, size, _, _, m, _ in cases]
    pp = _volume(verdict, "pp_bytes", "n h size m", pp_bytes, cases, _pp, PP)
    cases = [(n * h * layers, size, d) for n, h, size, layers, _, _, d in more]
    cases += [(1200, 4, 2), (900, 8, 3)]
    _volume(verdict, "dp_bytes", "params size d", dp_bytes, cases, _dp, DP)
    verdict.points += 2
    (n, h, layers, m, t), (rows, width, deep, few, d) = sizes

    def count():
        lab = problems.rows_lab(3, m, n, h, 3 * layers)
        run = lab.run(schedules.one_f_one_b(3, m), grid=Grid(tp=t, pp=3))
        counted = run.traffic[t]["tp"][1]
        _counted(verdict, "tp_bytes", counted, tp[n, h, 8, layers, 2, m, t])
        _counted(verdict, "pp_bytes", run.message_bytes[t], pp[n, h, 8, m])
        lab = problems.rows_lab(3, d * few, rows, width, 3 * deep)
        run = lab.run(schedules.one_f_one_b(3, few), grid=Grid(dp=d, pp=3))
        held = _held(lab, run.grid, run)[d] // 8
        _counted(verdict, "dp_bytes", run.traffic[d]["dp-cp"][1], dp_bytes(held, 8, d))
        verdict.points += 1

    verdict.on_ranks(1, count)


def _volume(verdict, name, names, answer, cases, right, mistakes):
    otherwise = ": how often is something sent, and how much each time?"
    given = _formula(verdict, name, names, answer, cases, right, mistakes, otherwise)
    verdict.reasons.append(("yes", f"{name}: right for {len(cases)} sizes"))
    return given


def _counted(verdict, name, counted, value):
    verdict.expect(
        abs(value - counted) < 1e-6,
        f"{name}: {show(counted)}, as counted on the middle stage of a real run",
        f"{name} says {show(value)}, but a rank of the middle stage counted {show(counted)}",
    )


def _tp(n, h, size, layers, sums, m, t):
    return Fraction(2 * (t - 1), t) * n * h * size * layers * sums * m


def _pp(n, h, size, m):
    return 2 * n * h * size * m


def _dp(params, size, d):
    return Fraction(2 * (d - 1), d) * params * size


TP = [
    (lambda n, h, z, L, k, m, t: _tp(n, h, z, L, k, 1, t),
     "that is one micro-batch, and a step has m"),
    (lambda n, h, z, L, k, m, t: _tp(n, h, z, 1, k, m, t),
     "every layer of the stage has its sums"),
    (lambda n, h, z, L, k, m, t: _tp(n, h, z, L, 1, m, t), "a layer has several sums"),
    (lambda n, h, z, L, k, m, t: _tp(n, h, 1, L, k, m, t), "that counts numbers, not bytes"),
    (lambda *case: _tp(*case) / 2,
     "a ring goes round twice in an all-reduce: once to add up, once to hand out, (t-1)/t of the "
     "tensor each time"),
    (lambda n, h, z, L, k, m, t: n * h * z * L * k * m,
     "a ring of t ranks sends 2(t-1)/t of the tensor from each"),
    (lambda n, h, z, L, k, m, t: 2 * n * h * z * L * k * m,
     "that is for very many ranks: a ring of t sends 2(t-1)/t of the tensor from each"),
    (lambda n, h, z, L, k, m, t: 2 * (t - 1) * n * h * z * L * k * m,
     "that is all t ranks together: one of them sends 1/t of it"),
]  # fmt: skip
PP = [
    (lambda n, h, z, m: n * h * z * m,
     "a middle stage sends twice for each micro-batch: the output forward and the gradient "
     "backward"),
    (lambda n, h, z, m: 2 * n * h * z, "that is one micro-batch, and a step has m"),
    (lambda n, h, z, m: n * h * z, "that is one message: there are two for each micro-batch"),
    (lambda n, h, z, m: 2 * n * h * m, "that counts numbers, not bytes"),
    (lambda n, h, z, m: 4 * n * h * z * m, "count what a rank sends, not what it receives too"),
]  # fmt: skip
DP = [
    (lambda P, z, d: P * z, "a ring of d ranks sends 2(d-1)/d of the tensor from each"),
    (lambda P, z, d: 2 * P * z, "that is for very many copies: with d it is 2(d-1)/d"),
    (lambda P, z, d: _dp(P, z, d) / 2,
     "a ring goes round twice in an all-reduce: once to add up, once to hand out"),
    (lambda P, z, d: _dp(P, 1, d), "that counts numbers, not bytes"),
    (lambda P, z, d: 2 * (d - 1) * P * z, "that is all d ranks together: one of them sends 1/d"),
    (lambda P, z, d: _dp(P, z, d) / d,
     "each copy has all of the stage's gradients: the tensor is not a d-th of them"),
]  # fmt: skip


def step(n, h, size, layers, params, m, t, d):
    """{axis: bytes that a rank of a middle stage sends in a step} of a transformer, which sums
    twice in the forward and twice in the backward of a layer."""
    return {
        "TP": float(_tp(n, h, size, layers, 4, m, t)),
        "PP": float(_pp(n, h, size, m)),
        "DP": float(_dp(params, size, d)),
    }
