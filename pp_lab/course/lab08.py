"""The checks of labs/08_combined_1f1b.ipynb. Each takes the learner's function, gives a `Score`."""

import functools
import itertools

import torch

from ..run import Lab
from ..run.moe import MoELayer
from ..schedule import Cost, Layers, Pair, Schedule, ScheduleError, schedules, simulate, verify
from ..schedule.constraints import Megatron
from ..schedule.schedule import loop
from ..show import timeline
from .exercise import exercise

HIDES = Cost(F=1, B=2, pair=2)  # of a rank's share: the forward of a pair is hidden
PLAIN = Cost(F=1, B=2, pair=3)  # a pair that hides nothing


def pairs(p, m, v, warmup):
    """1F1B in pairs, with `warmup(r)` forwards before rank r's first pair, whatever comes of it."""
    rows = []
    for r, row in enumerate(schedules.combined_1f1b(p, m, v).ranks):
        ops = [op for item in row for op in item.parts]
        forwards, backwards = ([op for op in ops if op.kind == kind] for kind in "FB")
        rows.append(schedules.alternate(forwards, backwards, warmup(r), pair=True))
    return Schedule(f"1F1B in pairs v={v}", rows, loop(p, v), m)


def expert_lab(p, m, v=1, layers=1, ep=2, seed=0):
    """A lab of expert layers, `layers` in each of p*v stages, for m micro-batches per EP rank."""
    random = torch.Generator().manual_seed(seed)
    data = torch.randn(2, 4 * m * ep, 8, generator=random, dtype=torch.float64)
    blocks = [MoELayer(8, 4, seed=seed + k) for k in range(p * v * layers)]
    return Lab(p * v, m * ep, blocks=blocks, inputs=data[0], targets=data[1])


# ---- schedules


@exercise(points=3)
def combined_one(verdict, answer):
    """`combined_one(m)`: combined 1F1B of a single rank, its list of `Op` and `Pair`."""
    sizes = [m if verdict.random is None else max(1, m + verdict.random.randint(0, 4) * (m > 2))
             for m in (4, 1, 2, 7)]  # fmt: skip
    for m in sizes:
        row = answer(m)
        if not isinstance(row, (list, tuple)):
            verdict.fail(
                f"m={m}: {_short(row)} is not a list of ops"
                + (": is a return missing?" if row is None else "")
            )
        if any(isinstance(item, list) for item in row):
            verdict.fail(f"m={m}: there is one rank: give its list, not a list with a list in it")
        _good(verdict, [row], 1, m, 1)
    m = sizes[0]
    verdict.figure = None
    said = f"legal, as fast as pairs allow and with two activations for m={_list(sizes)}"
    verdict.expect(True, said, "", points=2)
    _experts(verdict, [answer(m)], 1, m, 1, points=1)


@exercise(points=2)
def pair_warmup(verdict, answer):
    """`pair_warmup(p, r)`: the forwards before the first pair of rank r, without interleaving."""
    sizes = [4, 2, 1, 6]
    if verdict.random:
        sizes = [verdict.random.choice((4, 5)), 2, 1, verdict.random.choice((3, 6, 7, 8))]
    found = {}
    for p in sizes:
        found[p] = [_count(verdict, f"pair_warmup({p}, {r})", answer(p, r)) for r in range(p)]
    mistakes = [
        (lambda p, r: p - 1 - r, "that is the warm-up of 1F1B without pairs"),
        (
            lambda p, r: p - 1 - r + (r == p - 1),
            "one more on the last rank alone frees the last rank, and the rank before it then "
            "waits for a gradient that comes out of a step which waits for its own forward",
        ),
        (
            lambda p, r: p - r,
            "one more than 1F1B on every rank runs. But two neighbours are one forward apart, and "
            "a pair needs the neighbour's pair to have ended: each rank waits half of the time",
        ),
        (
            lambda p, r: 2 * (p - 1 - r),
            "that is the eager warm-up, and nobody pairs on the last rank with it but a forward "
            "with its own backward: one more",
        ),
        (
            lambda p, r: 2 * (p - r),
            "one forward more than needed: on the last rank one is enough",
        ),
        (
            lambda p, r: 2 * r + 1,
            "that is upside down: the first rank needs most, the last rank one",
        ),
        (
            lambda p, r: 2 * (p - 1) + 1,
            "every rank does what only the first one needs",
        ),
        (
            lambda p, r: 2 * (p - 1 - r) + p + 1,
            "the p more are for a second chunk, and there is none here: v=1",
        ),
    ]
    known = next(
        (text for f, text in mistakes
         if all(found[p] == [f(p, r) for r in range(p)] for p in sizes)), None
    )  # fmt: skip
    for p in sizes:
        m = 4 * p
        call = f"p={p}, m={m}: with the warm-ups {_row(found[p])}"
        try:
            trace = simulate(pairs(p, m, 1, lambda r, p=p: found[p][r]), PLAIN)
        except ScheduleError as error:
            verdict.fail(f"{call} nothing runs" + _because(known) + f"\n{error}")
        target = simulate(schedules.combined_1f1b(p, m, 1), PLAIN)
        if trace.makespan > target.makespan:
            verdict.fail(
                f"{call} a step takes {trace.makespan}, but {target.makespan} is possible"
                + _because(known)
            )
        _in_memory(verdict, trace, target, p, m, known)
    verdict.expect(
        True, f"legal, at full speed and no forward too many for p={_list(sizes)}", "", points=2
    )


@exercise(points=4)
def combined(verdict, answer):
    """`combined(p, m, v)`: for each rank its list of `Op` and `Pair`; m a multiple of p."""
    sizes = [(2, 4, 2), (4, 8, 2), (3, 6, 3), (3, 9, 1), (1, 5, 1)]
    if verdict.random:
        draw = verdict.random.randint
        sizes = [(p, p * draw(2, 3), draw(2, 3)) for p in (2, 4, 3)] + [(3, 3 * draw(2, 4), 1)]
        sizes += [(1, draw(3, 7), 1)]
    for p, m, v in sizes:
        rows = answer(p, m, v)
        if not isinstance(rows, (list, tuple)) or not all(
            isinstance(row, (list, tuple)) and not isinstance(row, Pair) for row in rows
        ):
            verdict.fail(
                f"p={p}, m={m}, v={v}: {_short(rows)} is not a list of ops for each rank"
                + (": is a return missing?" if rows is None else "")
            )
        if len(rows) != p:
            verdict.fail(f"p={p}, m={m}, v={v}: there are lists for {len(rows)} ranks, not for {p}")
        _good(verdict, rows, p, m, v)
    verdict.figure = None
    said = _list(f"p={p} m={m} v={v}" for p, m, v in sizes)
    verdict.expect(True, f"legal, at full speed and within memory for {said}", "", points=2)
    p, m, v = sizes[0]
    schedule = Schedule("yours", answer(p, m, v), loop(p, v), m)
    lab = Lab(p * v, m, seed=verdict.seed(p))
    target = simulate(schedules.combined_1f1b(p, m, v), HIDES.split(v))
    run = lab.run(schedule, cost=HIDES.split(v))
    verdict.agree(lab, run, 1, makespan=target.makespan, peak=target.peak_activations)
    _experts(verdict, answer(p, m, v), p, m, v, points=1)


def _good(verdict, rows, p, m, v):
    """The rows are a legal schedule, as fast as combined 1F1B, in no more memory."""
    where = f"p={p}, m={m}" + (f", v={v}" if v > 1 else "")
    schedule = Schedule("yours", rows, loop(p, v), m)
    try:
        verify(schedule)
    except ScheduleError as error:
        hint = _why_refused(error, p, v)
        verdict.fail(f"{where}: {hint}. In detail: {error}" if hint else f"{where}: {error}")
    cost = HIDES.split(v)
    trace, target = (simulate(s, cost) for s in (schedule, schedules.combined_1f1b(p, m, v)))
    if trace != target:
        verdict.figure = timeline(trace, predicted=target)
    if trace.makespan > target.makespan:
        verdict.fail(
            f"{where}: with {cost} it takes {trace.makespan}, but {target.makespan} is possible: "
            + _why_slow(trace, target)
        )
    _in_memory(verdict, trace, target, p, m)


def _why_refused(error, p, v):
    text = error.reason
    if "needs itself" in text:
        return (
            "a pair starts as one step, and this one holds a forward and the backward of the same "
            "micro-batch: one more forward of warm-up"
        )
    if "are no pair" in text:
        return "the forward goes first: Pair(forward, backward)"
    if "is not an op" in text and "(Op(" in text:
        return "two ops in a bracket are no step: write Pair(forward, backward)"
    if "there are only stages" in text or "belongs to rank" in text:
        return f"chunk c of rank r is stage c*p + r, here {p * v} stages in all"
    if "never runs" in text:
        return "after the last pair, the backwards that are left still have to run"
    return None


def _why_slow(trace, target):
    """What costs the time, as far as it can be seen."""
    found, wanted = (
        sum(isinstance(item, Pair) for row in t.schedule.ranks for item in row)
        for t in (trace, target)
    )
    if not found:
        return (
            "there is no Pair in it. A forward and a backward that stand beside each other hide "
            "nothing: Pair(f, b) is one step"
        )
    if found < wanted:
        return (
            f"it has {found} pairs, and {wanted} are possible: each forward of warm-up too many "
            "is a forward that nothing hides"
        )
    for rank, rows in enumerate(zip(trace.schedule.ranks, target.schedule.ranks, strict=True)):
        had, needed = (sum(not isinstance(item, Pair) for item in row) // 2 for row in rows)
        if had < needed:
            return (
                f"rank {rank} runs {had} forwards before its first pair, and needs {needed}. A "
                "pair waits for the neighbour's whole pair: the one more is for every rank"
            )
    return "look at the order of the chunks"


def _in_memory(verdict, trace, target, p, m, known=None):
    for r, (held, most) in enumerate(
        zip(trace.peak_activations, target.peak_activations, strict=True)
    ):
        if held > most:
            verdict.fail(
                f"p={p}, m={m}: rank {r} holds {held} activations, but {most} are enough"
                + _because(known or "it runs more forwards ahead than it has to")
            )


def _experts(verdict, rows, p, m, v, points):
    """The schedule on p x 2 processes, with expert layers and their all-to-alls."""
    schedule, model = Schedule("yours", rows, loop(p, v), m), Layers(1, ep=2)
    target = simulate(schedules.combined_1f1b(p, m, v), model).makespan
    lab = expert_lab(p, m, v, seed=verdict.seed(p))
    run = lab.run(schedule, cost=model)
    score = lab.check(run, makespan=target)
    where = f"{p} x 2 processes of expert layers, two streams: "
    verdict.reasons += [(kind, where + text) for kind, text in score.reasons]
    if score.passed:
        verdict.points += points


# ---- what is hidden


@exercise(points=2)
def total_time(verdict, answer):
    """`total_time(p, m, v, F, B, FB)`: how long a step of combined 1F1B takes; m multiple of p."""
    cases = [
        (4, 8, 2, 1, 2, 3), (4, 8, 2, 1, 2, 2.5), (4, 8, 2, 1, 2, 2), (2, 4, 2, 1, 2, 2),
        (8, 32, 2, 1, 2, 2), (1, 8, 1, 1, 2, 2), (4, 16, 4, 1, 3, 3.5), (3, 9, 3, 2, 2, 3),
    ]  # fmt: skip
    if verdict.random:
        draw = verdict.random.choice
        cases = [
            (p, p * draw((2, 3, 5)), 1 if p == 1 else draw((2, 3, 4)), F, B, B + draw((0, 0.5)) * F)
            for p, F, B in ((4, 1, 2), (2, 2, 3), (3, 1, 1), (6, 1, 2), (1, 1, 2), (8, 2, 4))
        ]

    def single(p, v):
        return p * (v - 1) + 1

    def of(n, p, m, v, F, B, FB):
        return (p - 1 + n) * (F + B) / v + (m * v - n) * FB / v

    mistakes = [
        (
            lambda p, m, v, F, B, FB: (m + (p - 1) / v) * (F + B),
            "that is interleaved 1F1B without pairs",
        ),
        (
            lambda p, m, v, F, B, FB: (p - 1) * (F + B) / v + m * FB,
            "that takes every forward for paired. The last rank's warm-up has p(v-1)+1 that have "
            "no partner, and as many backwards are left at its end",
        ),
        (
            lambda p, m, v, F, B, FB: of(p * (v - 1), p, m, v, F, B, FB),
            "the one more forward of warm-up, which has no partner either, is missing in n",
        ),
        (
            lambda p, m, v, F, B, FB: of(single(p, v), p, m, v, F, B, FB) * v,
            "those are whole ranks' times. Each of the m*v ops of a rank costs 1/v of that",
        ),
        (
            lambda p, m, v, F, B, FB: of(single(p, v), p, m, v, F, B, FB) - (p - 1) * (F + B) / v,
            "that is what the last rank works. Its first micro-batch has to come to it, and its "
            "last gradient has to go back to rank 0: (p-1)(F+B)/v",
        ),
        (
            lambda p, m, v, F, B, FB: (
                (p - 1 + single(p, v)) * (F + B) / v + (m - single(p, v)) * FB / v
            ),
            "a rank runs m*v chunk-forwards, not m",
        ),
        (
            lambda p, m, v, F, B, FB: of(
                min(m * v, 2 * (p - 1) + p * (v - 1) + 1), p, m, v, F, B, FB
            ),
            "n is that of rank 0. But rank 0 waits while it has no partner, in any case: count on "
            "the last rank, which never waits between its first op and its last",
        ),
        (
            lambda p, m, v, F, B, FB: (
                (p - 1) * FB / v + single(p, v) * (F + B) / v + (m * v - single(p, v)) * FB / v
            ),
            "on the way there and back nothing is paired: (p-1)(F+B)/v, not FB",
        ),
    ]
    values = [verdict.number(f"total_time({', '.join(map(str, c))})", answer(*c)) for c in cases]
    known = _known(values, mistakes, cases)
    for (p, m, v, F, B, FB), value in zip(cases, values, strict=True):
        cost = Cost(F=F, B=B, pair=FB).split(v)
        right = simulate(schedules.combined_1f1b(p, m, v), cost).makespan
        if abs(value - right) > 1e-6:
            verdict.fail(
                f"total_time(p={p}, m={m}, v={v}, F={F}, B={B}, FB={FB}) is {float(value):.6g}, "
                f"but the simulation takes {float(right):.6g}"
                + _because(known or "check each of the three terms on the picture of p=2, m=4, v=2")
            )
    verdict.expect(True, f"as simulated in all of {len(cases)} cases", "", points=2)


@exercise(points=2)
def paired_share(verdict, answer):
    """`paired_share(p, m, v, r)`: which part of rank r's forwards run in a pair."""
    sizes = [(8, 32, 2), (4, 8, 2), (2, 4, 2), (4, 4, 2), (1, 8, 1), (4, 16, 4)]
    if verdict.random:
        draw = verdict.random.randint
        sizes = [(p, p * draw(2, 5), draw(2, 4)) for p in (8, 4, 2)]
        sizes += [(4, 4, draw(2, 3)), (1, draw(3, 9), 1)]
    cases = [(p, m, v, r) for p, m, v in sizes for r in range(p)]

    def share(w, p, m, v):
        return 1 - min(w, m * v) / (m * v)

    def ahead(p, v, r):
        return 2 * (p - 1 - r) + (v - 1) * p + 1

    mistakes = [
        (
            lambda p, m, v, r: 1 - share(ahead(p, v, r), p, m, v),
            "that is the share that has no partner",
        ),
        (
            lambda p, m, v, r: share(ahead(p, v, r) - 1, p, m, v),
            "the extra forward of warm-up is missing: it has no partner either",
        ),
        (
            lambda p, m, v, r: 1 - ahead(p, v, r) / (m * v),
            "with few micro-batches the warm-up is all there is: a rank has m*v forwards, and a "
            "share is never negative",
        ),
        (
            lambda p, m, v, r: share(ahead(p, v, p - 1 - r), p, m, v),
            "that is the rank at the other end. Rank 0 is the one that runs ahead most",
        ),
        (
            lambda p, m, v, r: max(0, 1 - ahead(p, v, r) / m),
            "a rank runs m*v chunk-forwards, not m",
        ),
        (
            lambda p, m, v, r: share(2 * (p - 1 - r) + 1, p, m, v),
            "the (v-1)p forwards of the chunks before the last one are missing",
        ),
        (
            lambda p, m, v, r: share(p - 1 - r + (v - 1) * p + 1, p, m, v),
            "the warm-up of rank r is 2(p-1-r) + (v-1)p + 1",
        ),
        (
            lambda p, m, v, r: share(p * (v - 1) + 1, p, m, v),
            "that is right for the last rank. The others run ahead by two forwards per rank",
        ),
        (
            lambda p, m, v, r: 100 * share(ahead(p, v, r), p, m, v),
            "that is a percentage. Give a part of 1",
        ),
    ]
    values = [verdict.number(f"paired_share({', '.join(map(str, c))})", answer(*c)) for c in cases]
    known = _known(values, mistakes, cases)
    for (p, m, v, r), value in zip(cases, values, strict=True):
        row = schedules.combined_1f1b(p, m, v).ranks[r]
        paired = sum(isinstance(item, Pair) for item in row)
        if abs(value - paired / (m * v)) > 1e-9:
            verdict.fail(
                f"paired_share(p={p}, m={m}, v={v}, r={r}) is {float(value):.4g}, but {paired} of "
                f"rank {r}'s {m * v} forwards are in a pair"
                + _because(known or "what is not in the warm-up is paired")
            )
    verdict.expect(True, f"as counted on every rank of {len(sizes)} schedules", "", points=2)


# ---- what is allowed, and what to choose

BASE = dict(
    pipeline_model_parallel_size=4, virtual_pipeline_model_parallel_size=2,
    expert_model_parallel_size=8, moe_token_dispatcher_type="alltoall",
    overlap_moe_expert_parallel_comm=True, delay_wgrad_compute=True,
    moe_shared_expert_overlap=False, recompute_granularity=None, mtp_num_layers=None,
    bf16=True, fp16=False,
)  # fmt: skip
OFF = dict(overlap_moe_expert_parallel_comm=False, delay_wgrad_compute=False)
ONE = dict(pipeline_model_parallel_size=1, virtual_pipeline_model_parallel_size=None)
CHANGES = [
    {},
    dict(virtual_pipeline_model_parallel_size=None),
    dict(virtual_pipeline_model_parallel_size=1),
    ONE,
    dict(pipeline_model_parallel_size=1),
    dict(delay_wgrad_compute=False),
    dict(overlap_moe_expert_parallel_comm=False),
    OFF,
    dict(expert_model_parallel_size=1),
    dict(moe_token_dispatcher_type="allgather"),
    dict(moe_token_dispatcher_type="flex"),
    dict(recompute_granularity="full"),
    dict(recompute_granularity="selective"),
    dict(moe_shared_expert_overlap=True),
    dict(mtp_num_layers=1),
    dict(mtp_num_layers=2),
    dict(bf16=False),
    dict(bf16=False, fp16=True),
    OFF | dict(expert_model_parallel_size=1, virtual_pipeline_model_parallel_size=None),
    OFF | dict(moe_shared_expert_overlap=True),
    OFF | dict(pipeline_model_parallel_size=1),
    OFF | dict(recompute_granularity="full", bf16=False),
    OFF | ONE | dict(moe_token_dispatcher_type="allgather", mtp_num_layers=2),
    ONE | dict(expert_model_parallel_size=1),
    ONE | dict(recompute_granularity="full"),
]
WIDE = "without the overlap, its conditions do not count"
FINE = {  # why Megatron accepts a change that looks forbidden
    "delay_wgrad_compute": "the overlap does not need delay_wgrad_compute; that needs the overlap",
    "moe_token_dispatcher_type": "the flex dispatcher has an all-to-all too",
    "recompute_granularity": "selective recompute leaves a layer's nodes apart",
    "mtp_num_layers": "one multi-token-prediction layer is allowed",
    "fp16": "fp16 will do as well as bf16",
    "pipeline_model_parallel_size": "with one pipeline rank the overlap needs no chunks",
}


@exercise(points=2)
def accepted(verdict, answer):
    """`accepted(config)`: does Megatron accept this configuration? True or False."""
    configs = [BASE | change for change in CHANGES]
    if verdict.random:
        choose = verdict.random.choice
        values = {name: list(dict.fromkeys(c[name] for c in configs)) for name in BASE} | dict(
            virtual_pipeline_model_parallel_size=[None, 2, 3], expert_model_parallel_size=[4]
        )
        configs += [
            BASE | {name: choose(values[name]) for name in verdict.random.sample(list(BASE), 3)}
            for _ in range(40)
        ]
    for config in configs:
        said, broken = answer(dict(config)), Megatron(**config).broken()
        call = f"accepted({_changed(config)})"
        if not isinstance(said, bool):
            verdict.fail(
                f"{call} gives {_short(said)}: return True or False"
                + (": is a return missing?" if said is None else "")
            )
        if said and broken:
            verdict.fail(f"{call} is True, but Megatron refuses it: {broken[0]}")
        if not said and not broken:
            off = not config["overlap_moe_expert_parallel_comm"]
            odd = next((FINE[n] for n in FINE if config[n] != BASE[n]), "no rule forbids this")
            verdict.fail(f"{call} is False, but Megatron accepts it: {WIDE if off else odd}")
    verdict.expect(True, f"right for all of {len(configs)} configurations", "", points=2)


def _changed(config):
    """A configuration as what it changes in `BASE`."""
    changes = [f"{n}={config[n]!r}" for n in BASE if config[n] != BASE[n]]
    return "BASE" + (f" with {', '.join(changes)}" if changes else "")


@exercise(points=2)
def choose(verdict, answer):
    """`choose(p, m, v, weights, cap)`: the fastest of three schedules that fits, or None."""
    sizes = [(4, 8, 2), (4, 16, 4), (8, 32, 2), (8, 32, 4), (6, 24, 3)]
    if verdict.random:
        sizes = [(p, p * verdict.random.randint(2, 5), v)
                 for p, v in ((4, 2), (4, 4), (8, 4), (6, 3), (8, 2))]  # fmt: skip
    cases = []
    for (p, m, v), weights in itertools.product(sizes, (1, 5, 20)):
        times, held = _rivals(p, m, v)
        needs = {n: x + weights * (2 if n == "DualPipe" else 1) for n, x in held.items()}
        for cap in sorted({*needs.values(), *(x - 0.25 for x in needs.values()), 100}):
            cases.append(((p, m, v, weights, cap), times, needs))
    names = [answer(*case) for case, _, _ in cases]
    known = _chosen_by_mistake(names, cases)
    for name, (case, times, needs) in zip(names, cases, strict=True):
        p, m, v, weights, cap = case
        call = f"choose(p={p}, m={m}, v={v}, weights={weights}, cap={cap:g})"
        table = ", ".join(f"{n} takes {float(times[n]):g} and needs {needs[n]:g}" for n in times)
        table += f". {known}" if known else ""
        best = _fastest(times, needs, cap)
        if not (name is None or isinstance(name, str) and name in times):
            verdict.fail(f"{call} gives {_short(name)}: the answer is {_list(times)}, or None")
        if name is None and best is not None:
            verdict.fail(f"{call} gives None, but {best} fits: {table}")
        if name is not None and needs[name] > cap:
            verdict.fail(f"{call} gives {name}, which does not fit: {table}")
        if name is not None and times[name] > times[best]:
            verdict.fail(f"{call} gives {name}, but {best} fits too, and is faster: {table}")
    verdict.expect(True, f"the fastest that fits, in all of {len(cases)} cases", "", points=2)


@functools.lru_cache
def _rivals(p, m, v):
    """Of each schedule to choose from: the makespan, and the activations of the fullest rank in
    shares of a rank."""
    traces = {
        "1F1B": (simulate(schedules.one_f_one_b(p, m), HIDES), 1),
        "combined": (simulate(schedules.combined_1f1b(p, m, v), HIDES.split(v)), v),
        "DualPipe": (simulate(schedules.dualpipe(p, m), HIDES), 1),
    }
    times = {name: trace.makespan for name, (trace, _) in traces.items()}
    return times, {name: max(t.peak_activations) / chunks for name, (t, chunks) in traces.items()}


def _fastest(times, needs, cap):
    return min((n for n in times if needs[n] <= cap), key=times.get, default=None)


def _chosen_by_mistake(names, cases):
    """The sentence for the first known mistake that chooses what the answer chose."""

    def held(name, what):
        return lambda p, v, weights, needs: needs | {name: what(p, v, weights)}

    mistakes = [
        (
            held("DualPipe", lambda p, v, w: w + p + 1),
            "DualPipe holds the weights of two stages per rank",
        ),
        (
            held("combined", lambda p, v, w: w + p + (p - 1) / v),
            "p + (p-1)/v is what interleaved 1F1B holds: the extra forward is missing",
        ),
        (
            held("combined", lambda p, v, w: w + p * (v + 1)),
            "A chunk's activation is 1/v of a share's",
        ),
        (
            held("combined", lambda p, v, w: 2 * w + p + p / v),
            "Combined 1F1B has one copy of the model, in v parts",
        ),
        (
            lambda p, v, w, needs: {n: x - w * (1 + (n == "DualPipe")) for n, x in needs.items()},
            "The cap is for weights and activations together",
        ),
    ]
    for wrong, sentence in mistakes:
        if all(
            name == _fastest(times, wrong(p, v, weights, needs), cap)
            for name, ((p, _, v, weights, cap), times, needs) in zip(names, cases, strict=True)
        ):
            return sentence
    if all(
        name == _fastest(times, {n: x + 1e-9 for n, x in needs.items()}, case[-1])
        for name, (case, times, needs) in zip(names, cases, strict=True)
    ):
        return "Exactly at the cap fits too"
    return None


# ---- words


def _count(verdict, call, value):
    """A number of forwards."""
    value = verdict.number(call, value)
    if value != int(value) or value < 0:
        verdict.fail(f"{call} gives {value}: a number of forwards is a whole number, 0 at least")
    return int(value)


def _known(values, mistakes, cases):
    """The sentence for the first known mistake that gives these values."""
    for wrong, sentence in mistakes:
        if all(abs(value - wrong(*c)) < 1e-9 for value, c in zip(values, cases, strict=True)):
            return sentence
    return None


def _because(known):
    return f": {known}" if known else ""


def _short(value):
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:59]}…"


def _row(values):
    return " ".join(map(str, values))


def _list(words):
    *most, last = map(str, words)
    return f"{', '.join(most)} and {last}" if most else last
