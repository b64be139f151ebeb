"""The checks of labs/08_combined_1f1b.ipynb. Each takes the learner's function, gives a `Score`."""

import functools
import itertools

from ..plan import Megatron
from ..run import Lab
from ..run.late import Late
from ..schedule import Cost, Layers, Pair, Schedule, ScheduleError, schedules, simulate, verify
from ..schedule.schedule import loop
from .exercise import exercise, over
from .forms import numbers, recognised, rows, within
from .words import because, call, listed, missing, row, short

torch, moe = Late("torch"), Late("pp_lab.run.moe")

HIDES = Cost(F=1, B=2, pair=2)  # of a rank's share: the forward of a pair is hidden
PLAIN = Cost(F=1, B=2, pair=3)  # a pair that hides nothing


def pairs(p, m, v, warmup):
    """1F1B in pairs, with `warmup(r)` forwards before rank r's first pair, whatever comes of it."""
    ranks = []
    for r, items in enumerate(schedules.combined_1f1b(p, m, v).ranks):
        ops = [op for item in items for op in item.parts]
        forwards, backwards = ([op for op in ops if op.kind == kind] for kind in "FB")
        ranks.append(schedules.alternate(forwards, backwards, warmup(r), pair=True))
    return Schedule(f"1F1B in pairs v={v}", ranks, loop(p, v), m)


def expert_lab(p, m, v=1, layers=1, ep=2, seed=0):
    """A lab of expert layers, `layers` in each of p*v stages, for m micro-batches per EP rank."""
    random = torch.Generator().manual_seed(seed)
    data = torch.randn(2, 4 * m * ep, 8, generator=random, dtype=torch.float64)
    blocks = [moe.MoELayer(8, 4, seed=seed + k) for k in range(p * v * layers)]
    return Lab(p * v, m * ep, blocks=blocks, inputs=data[0], targets=data[1])


# ---- schedules


@exercise(points=3)
def combined_one(verdict, answer):
    """`combined_one(m)`: combined 1F1B of a single rank, its list of `Op` and `Pair`."""
    sizes = [m if verdict.random is None else max(1, m + verdict.random.randint(0, 4) * (m > 2))
             for m in (4, 1, 2, 7)]  # fmt: skip
    made = []
    for m in sizes:
        items = answer(m)
        if not isinstance(items, (list, tuple)):
            verdict.fail(f"m={m}: {short(items)} is not a list of ops{missing(items)}")
        if any(isinstance(item, list) for item in items):
            verdict.fail(f"m={m}: there is one rank: give its list, not a list with a list in it")
        made.append(_good(verdict, [items], 1, m, 1))
    verdict.figure = None
    said = f"legal, as fast as pairs allow and with two activations for m={listed(sizes)}"
    verdict.expect(True, said, "", points=2)
    _fast_with_experts(verdict, made[0])
    verdict.on_ranks(1, lambda: _experts(verdict, made[0], points=1))


@exercise(points=2)
def pair_warmup(verdict, answer):
    """`pair_warmup(p, r)`: the forwards before the first pair of rank r, without interleaving."""
    sizes = [4, 2, 1, 6]
    if verdict.random:
        sizes = [verdict.random.choice((4, 5)), 2, 1, verdict.random.choice((3, 6, 7, 8))]
    found = {
        (p, r): _count(verdict, f"pair_warmup({p}, {r})", answer(p, r))
        for p in sizes
        for r in range(p)
    }
    mistakes = [
        (lambda p, r: p - 1 - r, "that is the warm-up of 1F1B without pairs"),
        (lambda p, r: p - 1 - r + (r == p - 1),
         "one more on the last rank alone frees the last rank, and the rank before it then waits "
         "for a gradient that comes out of a step which waits for its own forward"),
        (lambda p, r: p - r,
         "one more than 1F1B on every rank runs. But two neighbours are one forward apart, and a "
         "pair needs the neighbour's pair to have ended: each rank waits half of the time"),
        (lambda p, r: 2 * (p - 1 - r),
         "that is the eager warm-up, and nobody pairs on the last rank with it but a forward with "
         "its own backward: one more"),
        (lambda p, r: 2 * (p - r),
         "one forward more than needed: on the last rank one is enough"),
        (lambda p, r: 2 * r + 1,
         "that is upside down: the first rank needs most, the last rank one"),
        (lambda p, r: 2 * (p - 1) + 1, "every rank does what only the first one needs"),
        (lambda p, r: 2 * (p - 1 - r) + p + 1,
         "the p more are for a second chunk, and there is none here: v=1"),
    ]  # fmt: skip
    known = recognised(found, mistakes)
    for p in sizes:
        m, ahead = 4 * p, [found[p, r] for r in range(p)]
        where, with_them = f"p={p}, m={m}: ", f"with the warm-ups {row(ahead)}"
        try:
            trace = simulate(pairs(p, m, 1, ahead.__getitem__), PLAIN)
        except ScheduleError as error:
            verdict.fail(f"{where}{with_them} nothing runs{because(known)}\n{error}")

        def slow(trace, target, said=with_them):
            return (
                f"{said} a step takes {trace.makespan}, but {target.makespan} is possible"
                + because(known)
            )

        target = simulate(schedules.combined_1f1b(p, m, 1), PLAIN)
        within(verdict, trace, target, where=where, slow=slow, full=_too_full(known))
    verdict.expect(
        True, f"legal, at full speed and no forward too many for p={listed(sizes)}", "", points=2
    )


@exercise(points=4)
def combined(verdict, answer):
    """`combined(p, m, v)`: for each rank its list of `Op` and `Pair`; m a multiple of p."""
    sizes = [(2, 4, 2), (4, 8, 2), (3, 6, 3), (3, 9, 1), (1, 5, 1)]
    if verdict.random:
        draw = verdict.random.randint
        sizes = [(p, p * draw(2, 3), draw(2, 3)) for p in (2, 4, 3)] + [(3, 3 * draw(2, 4), 1)]
        sizes += [(1, draw(3, 7), 1)]
    made = []
    for size in sizes:
        given = rows(verdict, call("combined", "p m v", size), answer(*size), p=size[0])
        made.append(_good(verdict, given, *size))
    verdict.figure = None
    said = listed(f"p={p} m={m} v={v}" for p, m, v in sizes)
    verdict.expect(True, f"legal, at full speed and within memory for {said}", "", points=2)
    _fast_with_experts(verdict, made[0])

    def run():
        p, m, v = sizes[0]
        lab, cost = Lab(p * v, m, seed=verdict.seed(p)), HIDES.split(v)
        target = simulate(schedules.combined_1f1b(p, m, v), cost)
        verdict.agree(
            lab, lab.run(made[0], cost=cost), 1,
            makespan=target.makespan, peak=target.peak_activations,
        )  # fmt: skip
        _experts(verdict, made[0], points=1)

    verdict.on_ranks(2, run)


def _good(verdict, ranks, p, m, v):
    """The schedule of these lists: legal, as fast as combined 1F1B, in no more memory."""
    where = f"p={p}, m={m}" + (f", v={v}" if v > 1 else "") + ": "
    schedule = Schedule("yours", ranks, loop(p, v), m)
    try:
        verify(schedule)
    except ScheduleError as error:
        hint = _why_refused(error, p, v)
        verdict.fail(f"{where}{hint}. In detail: {error}" if hint else f"{where}{error}")
    cost = HIDES.split(v)
    trace, target = (simulate(s, cost) for s in (schedule, schedules.combined_1f1b(p, m, v)))
    if trace != target:
        verdict.figure = over(trace, target)

    def slow(trace, target):
        return (
            f"with {cost} it takes {trace.makespan}, but {target.makespan} is possible: "
            + _why_slow(trace, target)
        )

    within(verdict, trace, target, where=where, slow=slow, full=_too_full())
    return schedule


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
        sum(isinstance(item, Pair) for items in t.schedule.ranks for item in items)
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
    for rank, both in enumerate(zip(trace.schedule.ranks, target.schedule.ranks, strict=True)):
        had, needed = (sum(not isinstance(item, Pair) for item in items) // 2 for items in both)
        if had < needed:
            return (
                f"rank {rank} runs {had} forwards before its first pair, and needs {needed}. A "
                "pair waits for the neighbour's whole pair: the one more is for every rank"
            )
    return "look at the order of the chunks"


def _too_full(known=None):
    """What `within` says of a rank that holds too much."""
    why = known or "it runs more forwards ahead than it has to"
    return lambda rank, held, enough: (
        f"rank {rank} holds {held} activations, but {enough} are enough: {why}"
    )


def _with_experts(schedule):
    """On p x 2 processes of expert layers: (where that is, the costs, the least makespan)."""
    p, m = schedule.p, schedule.microbatches
    model, best = Layers(1, ep=2), schedules.combined_1f1b(p, m, schedule.stages // p)
    where = f"{p} x 2 processes of expert layers, two streams: "
    return where, model, simulate(best, model).makespan


def _fast_with_experts(verdict, schedule):
    """The schedule takes no longer than combined 1F1B with expert layers, by simulation."""
    where, model, least = _with_experts(schedule)
    took = simulate(schedule, model).makespan
    if took > least:
        verdict.fail(f"{where}it takes {took}, but {least} is possible")


def _experts(verdict, schedule, points):
    """The schedule on p x 2 processes, with expert layers and their all-to-alls."""
    where, model, least = _with_experts(schedule)
    p, m = schedule.p, schedule.microbatches
    lab = expert_lab(p, m, schedule.stages // p, seed=verdict.seed(p))
    for kind, text in lab.check(lab.run(schedule, cost=model), makespan=least).reasons:
        verdict.expect(kind == "yes", where + text, where + text)
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

    def with_single(n, p, m, v, F, B, FB):
        """Where n of the last rank's forwards have no partner."""
        return (p - 1 + n) * (F + B) / v + (m * v - n) * FB / v

    def exact(p, m, v, F, B, FB):
        return with_single(p * (v - 1) + 1, p, m, v, F, B, FB)

    mistakes = [
        (lambda p, m, v, F, B, FB: (m + (p - 1) / v) * (F + B),
         "that is interleaved 1F1B without pairs"),
        (lambda p, m, v, F, B, FB: (p - 1) * (F + B) / v + m * FB,
         "that takes every forward for paired. The last rank's warm-up has p(v-1)+1 that have no "
         "partner, and as many backwards are left at its end"),
        (lambda p, m, v, F, B, FB: with_single(p * (v - 1), p, m, v, F, B, FB),
         "the one more forward of warm-up, which has no partner either, is missing in n"),
        (lambda p, m, v, F, B, FB: exact(p, m, v, F, B, FB) * v,
         "those are whole ranks' times. Each of the m*v ops of a rank costs 1/v of that"),
        (lambda p, m, v, F, B, FB: exact(p, m, v, F, B, FB) - (p - 1) * (F + B) / v,
         "that is what the last rank works. Its first micro-batch has to come to it, and its last "
         "gradient has to go back to rank 0: (p-1)(F+B)/v"),
        (lambda p, m, v, F, B, FB: exact(p, m, v, F, B, FB) - m * (v - 1) * FB / v,
         "a rank runs m*v chunk-forwards, not m"),
        (lambda p, m, v, F, B, FB: with_single(min(m * v, p * (v + 1) - 1), p, m, v, F, B, FB),
         "n is that of rank 0. But rank 0 waits while it has no partner, in any case: count on the "
         "last rank, which never waits between its first op and its last"),
        (lambda p, m, v, F, B, FB: exact(p, m, v, F, B, FB) - (p - 1) * (F + B - FB) / v,
         "on the way there and back nothing is paired: (p-1)(F+B)/v, not FB"),
    ]  # fmt: skip

    def called(*case):
        return call("total_time", "p m v F B FB", case)

    def right(p, m, v, F, B, FB):
        cost = Cost(F=F, B=B, pair=FB).split(v)
        return simulate(schedules.combined_1f1b(p, m, v), cost).makespan

    def wrong(case, value, wanted):
        return (
            f"{called(*case)} is {float(value):.6g}, but the simulation takes {float(wanted):.6g}"
        )

    numbers(
        verdict, answer, cases, call=called, right=right, wrong=wrong, mistakes=mistakes,
        otherwise=": check each of the three terms on the picture of p=2, m=4, v=2", near=1e-6,
    )  # fmt: skip
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
        (lambda p, m, v, r: 1 - share(ahead(p, v, r), p, m, v),
         "that is the share that has no partner"),
        (lambda p, m, v, r: share(ahead(p, v, r) - 1, p, m, v),
         "the extra forward of warm-up is missing: it has no partner either"),
        (lambda p, m, v, r: 1 - ahead(p, v, r) / (m * v),
         "with few micro-batches the warm-up is all there is: a rank has m*v forwards, and a share "
         "is never negative"),
        (lambda p, m, v, r: share(ahead(p, v, p - 1 - r), p, m, v),
         "that is the rank at the other end. Rank 0 is the one that runs ahead most"),
        (lambda p, m, v, r: max(0, 1 - ahead(p, v, r) / m),
         "a rank runs m*v chunk-forwards, not m"),
        (lambda p, m, v, r: share(2 * (p - 1 - r) + 1, p, m, v),
         "the (v-1)p forwards of the chunks before the last one are missing"),
        (lambda p, m, v, r: share(p - 1 - r + (v - 1) * p + 1, p, m, v),
         "the warm-up of rank r is 2(p-1-r) + (v-1)p + 1"),
        (lambda p, m, v, r: share(p * (v - 1) + 1, p, m, v),
         "that is right for the last rank. The others run ahead by two forwards per rank"),
        (lambda p, m, v, r: 100 * share(ahead(p, v, r), p, m, v),
         "that is a percentage. Give a part of 1"),
    ]  # fmt: skip

    def called(*case):
        return call("paired_share", "p m v r", case)

    def paired(p, m, v, r):
        items = schedules.combined_1f1b(p, m, v).ranks[r]
        return sum(isinstance(item, Pair) for item in items)

    def wrong(case, value, wanted):
        p, m, v, r = case
        return (
            f"{called(*case)} is {float(value):.4g}, but {paired(*case)} of rank {r}'s {m * v} "
            "forwards are in a pair"
        )

    numbers(
        verdict, answer, cases, call=called, wrong=wrong, mistakes=mistakes,
        right=lambda p, m, v, r: paired(p, m, v, r) / (m * v),
        otherwise=": what is not in the warm-up is paired",
    )  # fmt: skip
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
        asked = f"accepted({_changed(config)})"
        if not isinstance(said, bool):
            verdict.fail(f"{asked} gives {short(said)}: return True or False{missing(said)}")
        if said and broken:
            verdict.fail(f"{asked} is True, but Megatron refuses it: {broken[0]}")
        if not said and not broken:
            off = not config["overlap_moe_expert_parallel_comm"]
            odd = next((FINE[n] for n in FINE if config[n] != BASE[n]), "no rule forbids this")
            verdict.fail(f"{asked} is False, but Megatron accepts it: {WIDE if off else odd}")
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
        needs = _needs(p, m, v, weights)
        for cap in sorted({*needs.values(), *(x - 0.25 for x in needs.values()), 100}):
            cases.append((p, m, v, weights, cap))
    chosen = {case: answer(*case) for case in cases}
    known = _chosen_by_mistake(chosen)
    for case, name in chosen.items():
        p, m, v, weights, cap = case
        times, needs = _rivals(p, m, v)[0], _needs(p, m, v, weights)
        asked = f"choose(p={p}, m={m}, v={v}, weights={weights}, cap={cap:g})"
        table = ", ".join(f"{n} takes {float(times[n]):g} and needs {needs[n]:g}" for n in times)
        table += f". {known}" if known else ""
        best = _fastest(times, needs, cap)
        if not (name is None or isinstance(name, str) and name in times):
            verdict.fail(f"{asked} gives {short(name)}: the answer is {listed(times)}, or None")
        if name is None and best is not None:
            verdict.fail(f"{asked} gives None, but {best} fits: {table}")
        if name is not None and needs[name] > cap:
            verdict.fail(f"{asked} gives {name}, which does not fit: {table}")
        if name is not None and times[name] > times[best]:
            verdict.fail(f"{asked} gives {name}, but {best} fits too, and is faster: {table}")
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


def _needs(p, m, v, weights):
    """Of each schedule to choose from: activations and weights. DualPipe has two copies of them."""
    held = _rivals(p, m, v)[1]
    return {name: x + weights * (2 if name == "DualPipe" else 1) for name, x in held.items()}


def _fastest(times, needs, cap):
    return min((n for n in times if needs[n] <= cap), key=times.get, default=None)


def _chosen_by_mistake(chosen):
    """The sentence for the first known mistake that chooses what the answer chose."""

    def choosing(mistaken):
        """What is chosen when `mistaken` is what some of the schedules need."""

        def fastest(p, m, v, weights, cap):
            needs = _needs(p, m, v, weights)
            return _fastest(_rivals(p, m, v)[0], needs | mistaken(p, v, weights, needs), cap)

        return fastest

    mistakes = [
        (lambda p, v, w, needs: {"DualPipe": w + p + 1},
         "DualPipe holds the weights of two stages per rank"),
        (lambda p, v, w, needs: {"combined": w + p + (p - 1) / v},
         "p + (p-1)/v is what interleaved 1F1B holds: the extra forward is missing"),
        (lambda p, v, w, needs: {"combined": w + p * (v + 1)},
         "A chunk's activation is 1/v of a share's"),
        (lambda p, v, w, needs: {"combined": 2 * w + p + p / v},
         "Combined 1F1B has one copy of the model, in v parts"),
        (lambda p, v, w, needs: {n: x - w * (1 + (n == "DualPipe")) for n, x in needs.items()},
         "The cap is for weights and activations together"),
        (lambda p, v, w, needs: {n: x + 1e-9 for n, x in needs.items()},
         "Exactly at the cap fits too"),
    ]  # fmt: skip
    return recognised(chosen, [(choosing(mistaken), said) for mistaken, said in mistakes])


# ---- shared


def _count(verdict, asked, value):
    """A number of forwards."""
    value = verdict.number(asked, value)
    if value != int(value) or value < 0:
        verdict.fail(f"{asked} gives {value}: a number of forwards is a whole number, 0 at least")
    return int(value)
