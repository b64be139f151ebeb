"""The checks of labs/10_choose.ipynb."""

from functools import cache, partial
from numbers import Integral, Real

from ..plan import Cluster, Config, Estimate, Network, configurations, ranked
from ..plan.network import GIB
from ..schedule import Cost, schedules, simulate
from .exercise import exercise
from .forms import recognised
from .words import call, missing, short

# ---- what no other beats


@exercise(points=2)
def undominated(verdict, answer):
    """`undominated(points)`: the numbers of the points that no other point dominates."""
    cases = [
        [(3, 3, 3), (2, 4, 3), (4, 3, 3), (3, 3, 2)],
        [(1, 1), (1, 1), (2, 0), (2, 2)],
        [(0.27, 4, 56), (0.16, 5.5, 120), (0.11, 4, 56), (0.09, 4.75, 248), (0.11, 6, 56)],
        [(5, 5, 5)],
        [(4, 1), (3, 2), (2, 3), (1, 4), (3, 3), (2, 4)],
    ]
    if draw := verdict.random:
        cases += [[tuple(draw.randint(0, 4) for _ in range(3)) for _ in range(8)] for _ in range(4)]
    given = [((points,), _indices(verdict, answer(list(points)), points)) for points in cases]
    for (points,), kept in given:
        right = _undominated(points)
        if kept != right:
            verdict.fail(
                f"undominated({points}) keeps {kept}, not {right}: "
                + (recognised(given, DOMINATED) or _why_not(points, kept, right))
            )
    verdict.expect(
        True, f"{len(cases)} sets of points: what is kept is what nothing beats", "", points=2
    )


def _indices(verdict, got, points):
    called = f"undominated({points})"
    if not isinstance(got, (list, tuple, set)):
        verdict.fail(f"{called} gives {short(got)}, not a list of whole numbers{missing(got)}")
    if any(tuple(k) in points for k in got if isinstance(k, (list, tuple))):
        verdict.fail(f"{called} gives the points themselves: return their numbers, counted from 0")
    if not all(isinstance(k, Integral) and not isinstance(k, bool) for k in got):
        verdict.fail(f"{called} gives {short(got)}: return whole numbers, counted from 0")
    if bad := [k for k in got if not 0 <= k < len(points)]:
        verdict.fail(
            f"{called}: there is no point {bad[0]}; they count from 0 to {len(points) - 1}"
        )
    return sorted(got)


def _beats(a, b):
    return a != b and all(x <= y for x, y in zip(a, b, strict=True))


def _undominated(points):
    return [k for k, b in enumerate(points) if not any(_beats(a, b) for a in points)]


DOMINATED = [
    (
        lambda points: sorted({min(range(len(points)), key=lambda k: points[k][c])
                               for c in range(len(points[0]))}),
        "that is the best of each column. A point that is best in none may still be a trade that "
        "nothing beats",
    ),
    (
        lambda points: [k for k, b in enumerate(points)
                        if not any(all(x < y for x, y in zip(a, b, strict=True)) for a in points)],
        "a point dominates already if it is better in one figure and no worse in the others",
    ),
    (
        lambda points: [k for k, b in enumerate(points) if not any(
            j != k and all(x <= y for x, y in zip(a, b, strict=True))
            for j, a in enumerate(points))],
        "two equal points do not beat each other: keep both",
    ),
    (
        lambda points: [k for k, b in enumerate(points) if any(_beats(a, b) for a in points)],
        "those are the points that are dominated: return the others",
    ),
    (
        lambda points: [min(range(len(points)), key=lambda k: sum(points[k]))],
        "a sum of a share, activations and messages has no unit: do not add the figures up",
    ),
    (
        lambda points: [k for k, p in enumerate(points) if p[0] == min(q[0] for q in points)],
        "that looks at the first figure only",
    ),
]  # fmt: skip


def _why_not(points, kept, right):
    if extra := [k for k in kept if k not in right]:
        b = points[extra[0]]
        a = next(a for a in points if _beats(a, b))
        return f"{b} is beaten by {a}, which is nowhere worse"
    if lost := [k for k in right if k not in kept]:
        return f"nothing beats {points[lost[0]]}"
    return "some numbers are there twice"


# ---- bytes of parameters and optimizer


@exercise(points=3)
def state_bytes(verdict, answer):
    """`state_bytes(layers, hidden, vocab, tp, pp, dp)`: for each pipeline rank, per GPU."""
    cases = [(96, 12288, 51200, 8, 8, 16), (8, 1024, 32000, 1, 4, 1), (24, 2048, 50304, 2, 1, 4),
             (48, 8192, 51200, 4, 6, 2), (6, 512, 1000, 1, 2, 8)]  # fmt: skip
    if draw := verdict.random:
        cases = [
            (pp * draw.randint(1, 9), 128 * draw.randint(4, 80), 1000 * draw.randint(5, 99),
             2 ** draw.randint(0, 3), pp, dp)
            for pp, dp in ((draw.randint(2, 9), draw.randint(2, 9)), (1, 4), (4, 1), (3, 2))
        ]  # fmt: skip
    called = partial(call, "state_bytes", "layers hidden vocab tp pp dp")
    given = {case: _bytes(verdict, called(case), answer(*case), case[4]) for case in cases}
    for case, row in given.items():
        for rank, (value, wanted) in enumerate(zip(row, _state(*case), strict=True)):
            if abs(value - wanted) > 1e-3 * wanted:
                known = recognised(given, STATES)
                verdict.fail(
                    f"{called(case)}: rank {rank} has {value / GIB:.4g} GiB, expected "
                    f"{wanted / GIB:.4g}: "
                    + (known or "go through it: 12h² per layer, the embedding at both ends, "
                    "divided by tp, times 6 + 12/dp bytes")
                )  # fmt: skip
    verdict.expect(True, f"{len(cases)} sizes: each rank's bytes are right", "", points=3)


def _bytes(verdict, called, got, length):
    if not isinstance(got, (list, tuple)):
        verdict.fail(
            f"{called} gives {short(got)}, not a list with one number for each pipeline rank"
            f"{missing(got)}"
        )
    if len(got) != length:
        verdict.fail(f"{called} gives {len(got)} numbers, not {length}: one for each pipeline rank")
    for x in got:
        if not isinstance(x, Real):
            verdict.fail(f"{called}: {short(x)} is not a number of bytes")
    return [verdict.number(called, x) for x in got]


def _state(layers, h, vocab, tp, pp, dp, *, each=6, spread=12, square=12, ends=(1, 1), once=True,
           split=True):  # fmt: skip
    rows = [layers / pp * square * h * h] * pp
    rows[0] += ends[0] * vocab * h
    if not (once and pp == 1):
        rows[-1] += ends[1] * vocab * h
    return [n / (tp if split else 1) * (each + spread / dp) for n in rows]


def _state_but(**change):
    return lambda *case: _state(*case, **change)


STATES = [
    (_state_but(each=18, spread=0),
     "that is 18 bytes for each parameter: the optimizer's 12 are spread over the dp ranks"),
    (_state_but(each=0, spread=18),
     "only the optimizer's 12 bytes are spread over dp. Every rank has all of its parameters, and "
     "their gradients"),
    (_state_but(each=2), "the gradients are missing: 4 bytes each, in fp32"),
    (_state_but(each=4), "that is bf16 gradients: Megatron's main gradients are fp32, 4 bytes"),
    (_state_but(each=6, spread=8), "Adam has two moments, and there is the fp32 copy: 12 bytes"),
    (_state_but(each=16, spread=0), "that is 16 bytes everywhere: use 2 + 4 + 12/dp"),
    (_state_but(split=False), "each tensor-parallel rank holds 1/tp of every matrix"),
    (_state_but(ends=(1, 0)),
     "the last rank needs the embedding's matrix too, for its logits: tied or not, it holds one"),
    (_state_but(ends=(0, 0)), "the embedding is missing: vocab × hidden, on the first rank and on "
     "the last"),
    (_state_but(once=False), "with pp=1 the tied embedding is there once"),
    (_state_but(square=4), "4h² is the attention alone: the MLP has 8h² more"),
    (_state_but(square=8), "8h² is the MLP alone: the attention has 4h² more"),
    (lambda L, h, V, tp, pp, dp: [(12 * L * h * h + V * h) / tp / pp * (6 + 12 / dp)] * pp,
     "that is the mean. Which ranks hold an embedding?"),
    (lambda L, h, V, tp, pp, dp: [x * pp for x in _state(L, h, V, tp, pp, dp, ends=(0, 0))],
     "a rank holds layers / pp of the layers"),
    (lambda L, h, V, tp, pp, dp: [x / dp for x in _state(L, h, V, tp, pp, dp, each=18, spread=0)],
     "data-parallel ranks each hold all of their stage's parameters"),
]  # fmt: skip


# ---- the fullest rank


@exercise(points=1)
def fullest(verdict, answer):
    """`fullest(state, peaks, activation)`: the fullest rank, and its bytes."""
    cases = [([10, 8, 8, 12], [4, 3, 2, 1], 3), ([10, 8, 8, 30], [4, 3, 2, 1], 3),
             ([5], [1], 2), ([20, 30, 20], [5, 5, 8], 4), ([9, 7, 8], [3, 2, 2], 1)]  # fmt: skip
    if draw := verdict.random:
        for p in (2, 4, 6):
            peaks = [p - r for r in range(p)]
            cases.append(([draw.randint(5, 40) for _ in range(p)], peaks, draw.randint(2, 9)))
    called, names = "fullest({}, {}, {})".format, ("rank", "bytes")
    given = [(case, _pair(verdict, called(*case), answer(*case), names)) for case in cases]
    for case, (rank, most) in given:
        needs = _needs(*case)
        if most != max(needs) or rank != needs.index(most):
            verdict.fail(
                f"{called(*case)} gives rank {rank} with {most} bytes, but the ranks need {needs}: "
                + (recognised(given, FULLEST) or "which is the largest?")
            )
    verdict.expect(True, f"{len(cases)} cases: rank and bytes are right", "", points=1)


def _pair(verdict, called, got, names):
    """What an answer gave, if that is two numbers; they have names."""
    if not isinstance(got, (list, tuple)) or len(got) != 2:
        verdict.fail(
            f"{called} gives {short(got)}: return two numbers, ({', '.join(names)})"
            + (". Is a return missing?" if got is None else "")
        )
    pairs = zip(names, got, strict=True)
    return tuple(verdict.number(f"the {name} of {called}", x) for name, x in pairs)


def _needs(state, peaks, activation):
    return [s + n * activation for s, n in zip(state, peaks, strict=True)]


FULLEST = [
    (lambda s, n, a: (n.index(max(n)), max(s) + max(n) * a),
     "the most state and the most activations may be on different ranks: add first, then take "
     "the largest"),
    (lambda s, n, a: (s.index(max(s)), max(s) + max(n) * a),
     "the most state and the most activations may be on different ranks: add first, then take "
     "the largest"),
    (lambda s, n, a: (n.index(max(n)), s[n.index(max(n))] + max(n) * a),
     "that is the rank with the most activations. With its embedding, another may be fuller"),
    (lambda s, n, a: (s.index(max(s)), _needs(s, n, a)[s.index(max(s))]),
     "that is the rank with the most state. Another may hold more activations"),
    (lambda s, n, a: (n.index(max(n)), max(n) * a), "the state is missing"),
    (lambda s, n, a: (0, _needs(s, n, a)[0]), "it is not always rank 0"),
    (lambda s, n, a: (_needs(s, n, a).index(max(_needs(s, n, a))), sum(_needs(s, n, a))),
     "that is the sum over ranks: each has a memory of its own"),
    (lambda s, n, a: (_needs(s, n, a).index(min(_needs(s, n, a))), min(_needs(s, n, a))),
     "that is the emptiest"),
    (lambda s, n, a: (_needs(s, n, a).index(max(_needs(s, n, a))) + 1, max(_needs(s, n, a))),
     "ranks count from 0"),
    (lambda s, n, a: (max(_needs(s, n, a)), _needs(s, n, a).index(max(_needs(s, n, a)))),
     "the other way round: the rank first, then the bytes"),
]  # fmt: skip


# ---- seconds of a stage


@exercise(points=3)
def stage_seconds(verdict, answer):
    """`stage_seconds(layers, hidden, sequence, b, tp, flops, link)`: (forward, backward)."""
    cases = [(12, 12288, 2048, 1, 8, 2e14, 240e9), (2, 1024, 512, 4, 1, 1e13, 1e10),
             (10, 8192, 4096, 2, 4, 2e14, 25e9), (3, 2048, 2048, 1, 2, 5e14, 160e9)]  # fmt: skip
    if draw := verdict.random:
        cases = [
            (draw.randint(1, 12), 512 * draw.randint(2, 32), 512 * draw.randint(1, 8),
             draw.randint(1, 4), tp, 1e13 * draw.randint(5, 50), 1e10 * draw.randint(2, 30))
            for tp in (8, 1, 4, 2)
        ]  # fmt: skip
    called = ("stage_seconds(layers={}, hidden={}, sequence={}, b={}, tp={}, flops={:g}, "
              "link={:g})").format  # fmt: skip
    names = ("forward", "backward")
    given = {case: _pair(verdict, called(*case), answer(*case), names) for case in cases}
    for case, got in given.items():
        for name, value, wanted in zip(names, got, _stage(*case), strict=True):
            if abs(value - wanted) > 1e-6 * wanted:
                verdict.fail(
                    f"{called(*case)}: the {name} is {value:.4g} s, expected {wanted:.4g}: "
                    + (recognised(given, STAGES)
                       or "FLOPs / tp / flops, and two all-reduces for each layer")
                )  # fmt: skip
    verdict.expect(True, f"{len(cases)} stages: forward and backward are right", "", points=3)


def _stage(layers, h, s, b, tp, flops, link, *, square=24, core=4, reduces=2, ways=2, size=2,
           share=None, split=True, back=2, again=1):  # fmt: skip
    tokens = s * b
    work = layers * tokens * (square * h * h + core * s * h) / (tp if split else 1) / flops
    share = (tp - 1) / tp if share is None else share(tp)
    comm = layers * reduces * ways * share * size * tokens * h / link
    return work + comm, back * work + again * comm


def _stage_but(**change):
    return lambda *case: _stage(*case, **change)


STAGES = [
    (_stage_but(square=12, core=2), "a multiplication and an addition are two operations: 2 FLOPs "
     "for each parameter and token"),
    (_stage_but(square=12), "the matrix products take 2 FLOPs for each parameter and token: 24h²"),
    (_stage_but(core=0), "the attention's own products are missing: 4sh for each token"),
    (_stage_but(core=2), "there are two products with s × s: queries with keys, and weights with "
     "values. 4sh for each token"),
    (_stage_but(split=False), "each tensor-parallel rank does 1/tp of the work"),
    (_stage_but(reduces=0), "the all-reduces are missing"),
    (
        _stage_but(reduces=1),
        "that is half of the bytes. A bf16 number takes 2; an all-reduce moves everything twice "
        "(reduce-scatter, all-gather); and a layer has two of them, after attention and MLP",
    ),
    (_stage_but(share=lambda tp: 1), "a rank sends nothing of its own part: (tp-1)/tp of it all"),
    (_stage_but(share=lambda tp: tp - 1), "a ring sends tp-1 parts of 1/tp each"),
    (_stage_but(again=2), "the backward computes twice as much, but its all-reduces are as large "
     "as the forward's"),
    (_stage_but(again=0), "the backward has two all-reduces for each layer as well"),
    (_stage_but(back=1), "the backward has two products for each of the forward: for the input "
     "and for the weight"),
    (lambda *c: tuple(x / c[0] for x in _stage(*c)), "that is one layer of the stage"),
    (lambda *c: tuple(x / c[3] for x in _stage(*c)), "a micro-batch has s × b tokens"),
    (lambda *c: _stage(*c)[::-1], "the other way round: forward first"),
]  # fmt: skip


# ---- seconds of a step


@exercise(points=3)
def step_seconds(verdict, answer):
    """`step_seconds(p, m, F, B, comm, sync)`: of 1F1B, with each rank's gradient sync."""
    cases = [(4, 8, 1, 2, 0, [1, 1, 1, 1]), (4, 8, 1, 2, 0.25, [3, 3, 9, 12]),
             (2, 4, 1, 3, 0, [5, 2]), (1, 3, 2, 4, 0, [6]), (8, 16, 1, 2, 0.5, [2.5] * 8),
             (4, 2, 1, 2, 0, [0, 0, 0, 8]), (2, 1, 1, 2, 0, [12, 1])]  # fmt: skip
    if draw := verdict.random:
        cases = [
            (*verdict.size(p, m), f, 2 * f, c, sync)
            for (p, m, *_, sync), f, c in zip(
                cases, (1, 2, 1, 3, 1, 2, 1), (0, 0.5, 0, 0, 0.25, 0, 0), strict=True
            )
        ]
        cases = [
            (p, m, f, b, c, [draw.randint(0, 5 * b) for _ in range(p)])
            for p, m, f, b, c, _ in cases
        ]
        cases.append((3, 6, 1, 2, 0.5, [1, 7, 9]))
    called = partial(call, "step_seconds", "p m F B comm sync")
    given = [(case, verdict.number(called(case), answer(*case))) for case in cases]
    for case, value in given:
        right = _step(*case)
        if abs(value - right) > 1e-9 * right:
            known = recognised(given, STEPS)
            verdict.fail(
                f"{called(case)} is {value:g}, but simulated it is {right:g}: "
                + (known or "each rank ends at the start of its last backward, plus the longer of "
                "that backward and its sync")
            )  # fmt: skip
    verdict.expect(True, f"{len(cases)} steps: equal to the simulation", "", points=3)


def _ranks(p, m, F, B, comm):
    return simulate(schedules.one_f_one_b(p, m), Cost(F=F, B=B, comm=comm)).ranks


def _step(p, m, F, B, comm, sync):
    ends = [
        max(row[-1].end, row[-1].start + s)
        for row, s in zip(_ranks(p, m, F, B, comm), sync, strict=True)
    ]
    return max(ends)


def _makespan(p, m, F, B, comm):
    return max(row[-1].end for row in _ranks(p, m, F, B, comm))


STEPS = [
    (lambda p, m, F, B, c, sync: _makespan(p, m, F, B, c), "the sync is missing"),
    (lambda p, m, F, B, c, sync: _makespan(p, m, F, B, c) + max(sync),
     "that syncs after the step. A rank starts with its last backward, and later ranks are done "
     "early: some of it hides in the bubble"),
    (lambda p, m, F, B, c, sync: _makespan(p, m, F, B, c) + sync[0],
     "that adds all of rank 0's sync: it begins with rank 0's last backward, not after it"),
    (lambda p, m, F, B, c, sync: _makespan(p, m, F, B, c) + sum(sync),
     "ranks sync at the same time: do not add them up"),
    (lambda p, m, F, B, c, sync: max(_makespan(p, m, F, B, c), *sync, 0),
     "the sync cannot begin with the step: the gradients are not there before the last backward"),
    (lambda p, m, F, B, c, sync: max(
        row[-1].end + s for row, s in zip(_ranks(p, m, F, B, c), sync, strict=True)),
     "that begins when the last backward has ended. It begins when the last backward begins: "
     "layer by layer gradients are ready"),
    (lambda p, m, F, B, c, sync: _step(p, m, F, B, 0, sync), "the messages' latency is missing"),
    (lambda p, m, F, B, c, sync: (m + p - 1) * (F + B), "the sync and the latency are missing"),
    (lambda p, m, F, B, c, sync: (m + p - 1) * (F + B) + max(sync),
     "that is the formula without latency, with all of the sync after it"),
    (lambda p, m, F, B, c, sync: _makespan(p, m, F, B, c) + max(0, max(sync) - B),
     "right for rank 0. Later ranks end early, so more of their sync is hidden: take each rank's "
     "own last backward"),
    (lambda p, m, F, B, c, sync: _makespan(p, m, F, B, c) + max(0, sync[0] - B),
     "that looks at rank 0 only: a late rank with a long sync may end after it"),
    (lambda p, m, F, B, c, sync: _step(p, m, F, 2 * F, c, sync), "use B, not twice F"),
]  # fmt: skip


# ---- the search

FIELDS = ("tp", "pp", "dp", "m", "b", "schedule", "v", "recompute")


def _case(layers, hidden, gpus, batch, memory, across=25e9, per_node=4, sequence=1024):
    """(network, cluster, batch) as plain numbers; memory in GiB."""
    network = dict(layers=layers, hidden=hidden, heads=hidden // 128, sequence=sequence,
                   vocab=32000)  # fmt: skip
    cluster = dict(gpus=gpus, per_node=per_node, memory=memory * GIB, flops=2e14, inside=200e9,
                   across=across)  # fmt: skip
    return network, cluster, batch


def _cases(verdict):
    if draw := verdict.random:
        shapes = [(16, 4096, 16, (5, 6, 7)), (8, 4096, 8, (4, 5, 6)), (12, 2048, 8, (2, 3, 4))]
        return [
            _case(layers, hidden, gpus, gpus * draw.choice((2, 4)), draw.choice(memory),
                  across=1e9 * draw.randint(4, 40))
            for layers, hidden, gpus, memory in shapes
        ]  # fmt: skip
    return [_case(16, 4096, 16, 32, 6), _case(8, 4096, 8, 16, 4), _case(12, 2048, 8, 32, 72)]


def _objects(network, cluster):
    return Network(**network), Cluster(**cluster)


def _fastest(network, cluster, batch):
    return _ranked(*_objects(network, cluster), batch)


@cache
def _ranked(network, cluster, batch):
    return ranked(network, cluster, configurations(network, cluster, batch), count=1)[0]


@exercise(points=4)
def search(verdict, answer):
    """`search(network, cluster, batch)`: the fastest configuration that fits, as a dict."""
    for network, cluster, batch in _cases(verdict):
        got = _estimate(
            verdict, answer(dict(network), dict(cluster), batch), network, cluster, batch
        )
        best = _fastest(network, cluster, batch)
        where = _where(network, cluster, batch)
        if not got.fits:
            verdict.fail(f"{where}: {got.config} {_unfit(got)}")
        if got.step > best.step * (1 + 1e-9):
            verdict.fail(
                f"{where}: {got.config} takes {got.step:.4g} s, and {best.step:.4g} s is possible: "
                + _missed(got, best, network, cluster, batch)
            )
        verdict.reasons.append(("yes", f"{where}: {got.config}, {got.step:.4g} s, is the fastest"))
    verdict.points += 4


def _where(network, cluster, batch):
    return (
        f"{network['layers']} layers, hidden {network['hidden']}, {cluster['gpus']} GPUs, "
        f"{cluster['memory'] / GIB:g} GiB, batch {batch}"
    )


def _unfit(got):
    return (
        f"{got.why}. Ask each estimate whether it fits before you compare it"
        if got.problem is None
        else f"cannot run: {got.problem}"
    )


def _estimate(verdict, got, network, cluster, batch):
    """The answer as an `Estimate`; ends the check where it is no configuration."""
    where = _where(network, cluster, batch)
    if not isinstance(got, dict):
        verdict.fail(
            f"{where}: search gives {short(got)}, not a dict of a configuration"
            + (": is a return missing, or did nothing fit?" if got is None else "")
        )
    if wrong := [key for key in got if key not in (*FIELDS, "ep")]:
        verdict.fail(f"{where}: a configuration has no {short(wrong[0])}, but {', '.join(FIELDS)}")
    if lost := [key for key in ("tp", "pp", "dp", "m") if key not in got]:
        verdict.fail(f"{where}: the configuration does not say {', '.join(lost)}")
    for key, value in got.items():
        if key in ("schedule", "recompute"):
            if not isinstance(value, str):
                verdict.fail(f"{where}: {key}={short(value)} is not a name")
        elif not isinstance(value, Integral) or isinstance(value, bool) or value < 1:
            verdict.fail(f"{where}: {key}={short(value)}: give a whole number, 1 at least")
    config = Config(**got)
    if config.schedule not in ("1F1B", "interleaved", "ZB-H1", "ZB-V"):
        verdict.fail(f"{where}: {config.schedule!r}: take 1F1B or interleaved")
    if config.recompute not in ("none", "selective", "full"):
        verdict.fail(f"{where}: recompute={config.recompute!r}: take selective or full")
    used = config.tp * config.pp * config.dp
    if used != cluster["gpus"]:
        verdict.fail(
            f"{where}: {config} uses tp × pp × dp = {used} GPUs, and there are {cluster['gpus']}"
        )
    if config.dp * config.m * config.b != batch:
        verdict.fail(
            f"{where}: {config} trains on dp × m × b = {config.dp * config.m * config.b} sequences "
            f"a step, not on {batch}: another batch is another training"
        )
    return Estimate(*_objects(network, cluster), config)


def _missed(got, best, network, cluster, batch):
    network, cluster = _objects(network, cluster)
    fitting = [
        e for k in configurations(network, cluster, batch)
        if (e := Estimate(network, cluster, k)).fits
    ]  # fmt: skip
    if got.memory <= min(e.memory for e in fitting) * (1 + 1e-9):
        return "that is the one with the least memory. Memory only has to fit"
    if got.bubble <= min(e.bubble for e in fitting) + 1e-12:
        return (
            "that is the one with the least bubble. A bubble is a share: recompute and all-reduces "
            "lengthen the step and may even shrink it"
        )
    if got.step >= max(e.step for e in fitting) * (1 - 1e-9):
        return "that is the slowest that fits"
    differ = [k for k in FIELDS if getattr(got.config, k) != getattr(best.config, k)]
    return f"it has another {', '.join(differ)}. Do your loops reach all of their values?"


# ---- what would you buy?


@exercise(points=3)
def worth(verdict, answer):
    """`worth(network, cluster, batch)`: how much faster the best step is with twice of each."""
    for network, cluster, batch in _cases(verdict):
        where, got = _where(network, cluster, batch), answer(dict(network), dict(cluster), batch)
        if not isinstance(got, dict):
            verdict.fail(
                f"{where}: worth gives {short(got)}, not a dict with memory, inside and across"
                f"{missing(got)}"
            )
        if set(got) != {"memory", "inside", "across"}:
            verdict.fail(
                f"{where}: the dict has {sorted(map(str, got))}, not memory, inside, across"
            )
        before = _fastest(network, cluster, batch)
        for name in ("memory", "inside", "across"):
            value = verdict.number(f"{where}: worth(…)[{name!r}]", got[name])
            more = cluster | {name: 2 * cluster[name]}
            after = _fastest(network, more, batch)
            right = before.step / after.step
            if abs(value - right) > 1e-6:
                kept = before.step / Estimate(*_objects(network, more), before.config).step
                verdict.fail(
                    f"{where}: twice the {name} makes the step {right:.4f} times as fast, you say "
                    f"{value:.4f}: " + _unworthy(value, right, kept, before, after)
                )
        figures = ", ".join(f"{name} {got[name]:.3f}" for name in ("memory", "inside", "across"))
        verdict.reasons.append(("yes", f"{where}: {figures}"))
    verdict.points += 3


def _unworthy(value, right, kept, before, after):
    if abs(value - 1 / right) < 1e-6:
        return "the other way round: the old step over the new one"
    if abs(value - kept) < 1e-6:
        return "that keeps the old configuration. With the new cluster another may be the fastest"
    if abs(value - (before.step - after.step)) < 1e-6:
        return "those are the seconds that are saved: return old over new"
    if abs(value - (right - 1)) < 1e-6:
        return "that is the gain: add 1, or divide old by new"
    if abs(value - after.step) < 1e-6:
        return "that is the new step in seconds: return old over new"
    if abs(value - 1) < 1e-6:
        return "did you search again, in the changed cluster?"
    return "change this one number, search again, and divide the old step by the new one"
