"""The checks of labs/04_dualpipe.ipynb. Each takes the learner's functions and gives a `Score`."""

from ..run import Lab
from ..run.failures import StepError
from ..run.late import Late
from ..schedule import Cost, Pair, Schedule, ScheduleError, lower, schedules, simulate, verify
from ..schedule.blocks import PERIOD, repeated
from ..schedule.schedule import Placement, bidirectional, vshape
from . import building_block, dualpipe_steps, forms, words
from .exercise import exercise, over

torch, execute = Late("torch"), Late("pp_lab.run.execute")

SHARE = Cost(F=1, B=2, pair=3)  # of a rank's whole share of the model
HIDDEN = Cost(F=1, B=2, pair=2)  # the forward of a pair is hidden behind its backward
FOLD = Cost(F=1, B=2).split(2)  # of one of the two stages on a V


# ---- placements


@exercise(points=2)
def placements(verdict, v_placement, two_way_placement):
    """`v_placement(p)`: the rank of each of 2p stages; `two_way_placement(p)`: of two copies."""
    mistakes = [
        (lambda p: [s % p for s in range(2 * p)], "that is the loop of interleaved 1F1B: it jumps "
         "from the last rank to rank 0. On a V the way back goes up the same ranks, and stage p is "
         "where stage p-1 is"),
        (lambda p: [s // 2 for s in range(2 * p)], "neighbouring stages share a rank there: that "
         "is a pipeline without a fold, with two small stages in place of one"),
        (lambda p: [*range(p), *range(p - 2, -1, -1), 0], "at the fold, stage p-1 and stage p are "
         "both on the last rank"),
    ]  # fmt: skip
    sizes = [_size(verdict, p) for p in (3, 4, 2, 1)]
    for p in sizes:
        _owners(verdict, f"v_placement({p})", v_placement(p), p, 2 * p)
        got, right = list(v_placement(p)), list(vshape(p).copies[0])
        if got != right:
            known = forms.recognised({(p,): got}, mistakes)
            s = next(s for s in range(2 * p) if got[s] != right[s])
            verdict.fail(
                f"v_placement({p}) is {got}: "
                + (known or f"stage {s} belongs on rank {right[s]}, not on {got[s]}")
            )
        m = 2 * p
        rows = schedules.zb_v(p, m).ranks
        verify(Schedule("ZB-V", rows, Placement("V", (tuple(got),)), m))
    verdict.expect(
        True, f"v_placement: ZB-V runs on it for p = {words.listed(sizes)}", "", points=1
    )

    for p in [_size(verdict, p, even=True) for p in (4, 2, 6)]:
        call, copies = f"two_way_placement({p})", two_way_placement(p)
        if not isinstance(copies, (list, tuple)):
            verdict.fail(f"{call} gives {words.short(copies)}: return two lists, one for each copy")
        if len(copies) == p and all(isinstance(row, (list, tuple)) for row in copies) and p != 2:
            verdict.fail(
                f"{call} gives {p} lists, one for each rank. Give one list for each copy of the "
                "model: the rank of each of its stages"
            )
        if len(copies) != 2:
            verdict.fail(f"{call} gives {len(copies)} entries: there are two copies of the model")
        for copy, owners in enumerate(copies):
            _owners(verdict, f"{call}, copy {copy}", owners, p, p)
        first, second = map(list, copies)
        right = [list(copy) for copy in bidirectional(p).copies]
        if first == second:
            verdict.fail(
                f"{call}: both copies run down the ranks. Then rank 0 is first for both, and "
                "nothing enters at the other end: the second copy runs the other way"
            )
        if [second, first] == right:
            verdict.fail(f"{call}: copy 0 runs down the ranks and copy 1 up, not the other way")
        for copy, (got, want) in enumerate(zip((first, second), right, strict=True)):
            if got != want:
                s = next(s for s in range(p) if got[s] != want[s])
                verdict.fail(
                    f"{call}, copy {copy}: stage {s} belongs on rank {want[s]}, not on {got[s]}"
                )
    verdict.expect(True, "two_way_placement: one copy down, one copy up", "", points=1)


def _owners(verdict, call, owners, p, stages):
    """A list with a rank for each of so many stages, as a placement has to be."""
    if not isinstance(owners, (list, tuple)):
        verdict.fail(
            f"{call} gives {words.short(owners)}: return a list with a rank for each stage"
        )
    if all(isinstance(x, int) and not isinstance(x, bool) for x in owners):
        if len(owners) != stages:
            verdict.fail(
                f"{call} gives {len(owners)} ranks, {list(owners)}, but there are {stages} stages: "
                "one rank for each"
            )
        if not all(0 <= x < p for x in owners):
            wrong = next(x for x in owners if not 0 <= x < p)
            verdict.fail(f"{call} names rank {wrong}, but ranks are 0 to {p - 1}")
    elif any(isinstance(x, (list, tuple)) for x in owners):
        verdict.fail(
            f"{call} gives {words.short(list(owners))}: that lists the stages of each rank. Turn "
            "it round: the rank of each stage, one number per stage"
        )
    else:
        verdict.fail(f"{call} gives {words.short(list(owners))}: ranks are whole numbers")


# ---- schedules


@exercise(points=4)
def zb_v(verdict, answer):
    """`zb_v(p, m)`: ZB-V as a list of `Op` for each rank, for m >= 2p-1."""
    sizes = [_v_size(verdict, p, m) for p, m in ((4, 8), (3, 5), (2, 6), (1, 2))]
    judged = {}
    for p, m in sizes:
        make, costs = schedules.zb_v, [FOLD]
        trace, target = _as_good(verdict, answer, make, p, m, costs, _zb_v_hint, _slow_on_a_v)
        if trace.span > target.span:
            verdict.fail(
                f"p={p}, m={m}: the longest rank's own span is {trace.span}, but {target.span} is "
                "possible: " + _gap(trace)
            )
        judged[p, m] = trace
    verdict.figure = None
    verdict.expect(
        True, f"legal, without a gap and within p activations for {_sizes(sizes)}", "", points=3
    )
    p, m = sizes[0]
    _on_ranks(verdict, judged[p, m], 2 * p)


def _zb_v_hint(error, p, m):
    """What goes with the reason why a schedule on a V is refused."""
    text = error.reason
    if "belongs to rank" in text:
        return "rank r owns the stages r and 2p-1-r"
    if "there are only stages" in text:
        return "chunk 1 of rank r is stage 2p-1-r, 2p stages in all"
    if "never runs" in text:
        return "count: each of the six ops, m times on every rank. What is left goes to the tail"
    return None


def _slow_on_a_v(trace):
    ops = [op for row in trace.schedule.ranks for item in row for op in item.parts]
    if any(op.kind == "B" for op in ops):
        return "there are full backwards (B) in it: split them, I at once and W where there is room"
    rows = ["".join(op.kind for item in row for op in item.parts) for row in trace.schedule.ranks]
    if all("W" not in row.rstrip("W") for row in rows):
        return (
            "all W stand at the end. There they fill no gap, and each holds its activation until "
            "then: in the steady state a W follows its I"
        )
    return _gap(trace)


def _gap(trace):
    """Where the first gap inside a rank's work is."""
    for rank, row in enumerate(trace.ranks):
        for before, after in zip(row, row[1:], strict=False):
            if after.start > before.end:
                label = trace.schedule.label
                return (
                    f"rank {rank} has a gap before {label(after.op)}, from {before.end} to "
                    f"{after.start}: {trace.why_idle(rank, before.end)}"
                )
    return "look at where the last rank starts and where the first one ends"


@exercise(points=3)
def dualpipe(verdict, answer):
    """`dualpipe(p, m)`: DualPipe as a list of `Op` and `Pair` for each rank; p, m even, m >= 2p."""
    sizes = [_dual_size(verdict, p, m) for p, m in ((4, 8), (2, 4), (8, 16), (6, 14))]
    judged = _two_ways(verdict, answer, schedules.dualpipe, sizes, 1, _dualpipe_hint)
    p, m = sizes[0]
    verdict.expect(True, f"legal, as fast as DualPipe and in p+1 activations for {_sizes(sizes)}",
                   "", points=2)  # fmt: skip
    _on_ranks(verdict, judged[p, m], p + 1)


@exercise(points=2)
def dualpipe_v(verdict, answer):
    """`dualpipe_v(p, m)`: the same on a V of 2p stages; any p, m >= 2p."""
    sizes = [_v_size(verdict, p, m) for p, m in ((4, 10), (2, 4), (3, 6), (1, 2))]
    judged = _two_ways(verdict, answer, schedules.dualpipe_v, sizes, 2, _dualpipe_v_hint)
    p, m = sizes[0]
    verdict.expect(True, f"legal, as fast as DualPipeV and in its memory for {_sizes(sizes)}",
                   "", points=1)  # fmt: skip
    _on_ranks(verdict, judged[p, m], 2 * p + 1)


def _two_ways(verdict, answer, make, sizes, v, hint):
    """As good as `make`'s schedules, with pairs that gain nothing, and with free ones. Returns
    {(p, m): trace}, of the former."""
    costs, judged = [SHARE.split(v), HIDDEN.split(v)], {}
    for p, m in sizes:
        judged[p, m], _ = _as_good(verdict, answer, make, p, m, costs, hint, _slow_two_ways)
    verdict.figure = None
    return judged


def _slow_two_ways(trace):
    kinds = {type(item) for row in trace.schedule.ranks for item in row}
    ops = {op.kind for row in trace.schedule.ranks for item in row for op in item.parts}
    if Pair not in kinds:
        return (
            "there is no Pair in it. A forward and a backward that stand beside each other hide "
            "nothing: Pair(f, b) does"
        )
    if "W" not in ops:
        return (
            "no backward is split. In steps 3, 6 and 7 the input gradient goes first, so that "
            "the next rank need not wait for a weight gradient"
        )
    return _gap(trace)


LATE = "an I leaves its W for later: run at the end what is still waiting"


def _dualpipe_hint(error, p, m):
    text = error.reason
    if "weight gradient is missing" in text:
        return LATE
    if "belongs to rank" in text:
        return (
            f"micro-batches 0 to {m // 2 - 1} enter at rank 0, where stage s is on rank s; "
            f"{m // 2} to {m - 1} enter at rank {p - 1}, where stage s is on rank {p - 1}-s"
        )
    if "is there twice" in text or "does again" in text:
        return f"direction 1 has micro-batches of its own, {m // 2} to {m - 1}"
    if "names stage" in text:
        return f"each copy has p={p} stages: a rank holds r of one copy and p-1-r of the other"
    return None


def _dualpipe_v_hint(error, p, m):
    text = error.reason
    if "weight gradient is missing" in text:
        return LATE
    if "belongs to rank" in text:
        return "rank r owns the stages r and 2p-1-r"
    if "there are only micro-batches" in text or "is there twice" in text:
        return "both ways carry the same micro-batches, 0 to m-1: there is one copy of the model"
    if "never runs" in text:
        return "both ways carry all m micro-batches, and there are 2p stages"
    return None


def _as_good(verdict, answer, make, p, m, costs, hint, slow):
    """A legal schedule, under each cost as fast as `make`'s, and in its memory; or the check ends.

    hint: a function (error, p, m) -> what to say first of a schedule that is refused, or None;
    slow: a function (trace) -> where a schedule loses its time. Returns (trace, target) under the
    first cost.
    """
    where, best = f"p={p}, m={m}: ", make(p, m)
    ranks = forms.rows(verdict, words.call(make.__name__, "p m", (p, m)), answer(p, m), p)
    schedule = Schedule("yours", ranks, best.placement, m)
    try:
        verify(schedule)
    except ScheduleError as error:
        more = hint(error, p, m)
        verdict.fail(where + (f"{more}. In detail: {error}" if more else str(error)))
    traces = [(simulate(schedule, cost), simulate(best, cost)) for cost in costs]
    for trace, target in traces:
        if trace != target and verdict.figure is None:
            verdict.figure = over(trace, target)
        forms.within(
            verdict,
            trace,
            target,
            slow=lambda trace, target: (
                f"with {trace.cost} it takes {trace.makespan}, but {target.makespan} is possible: "
                + slow(trace)
            ),
            full=_full,
            where=where,
            caps=[max(target.peak_activations)] * p,
        )
    return traces[0]


def _full(rank, held, enough):
    """The sentence for a rank that holds too much."""
    return (
        f"rank {rank} holds {held} activations, but {enough} are enough: it runs forwards, or puts "
        "off weight gradients, longer than it has to"
    )


def _on_ranks(verdict, trace, most):
    """A schedule that a simulation has found good, on real processes: in no more memory."""
    schedule = trace.schedule

    def check():
        lab = Lab(schedule.stages, schedule.microbatches, seed=verdict.seed(schedule.p))
        verdict.agree(lab, lab.run(schedule, cost=trace.cost), points=1, peak=most)

    verdict.on_ranks(1, check)


# ---- the building block


@exercise(points=3)
def v_min_block(verdict, answer):
    """`v_min_block(p)`: for each rank the steps of micro-batch 0's F, F, I and I on a V."""
    sizes = [
        _size(verdict, p, of=ps) for p, ps in ((4, (4, 5, 7)), (8, (8, 10, 11)), (3, (3, 6, 9)))
    ]
    judged = {}
    for p in sizes:
        block = building_block.checked(verdict, f"v_min_block({p})", answer(p), p)
        held = [building_block.lifespans(row) for row in block]
        peak, cap, m = building_block.peaks(block, 2 * p), _cap(p), 2 * p
        if max(peak) > cap:
            r = peak.index(max(peak))
            verdict.fail(
                f"p={p}: rank {r} would hold {max(peak)} activations, and the cap is {cap}. Its "
                f"two stages keep theirs for {held[r]} steps together, from F to W, and a new "
                f"micro-batch comes every {PERIOD}: {held[r] / PERIOD:.1f} at a time, on average. "
                "Shorten what is longest"
            )
        schedule = Schedule("yours", repeated(block, m, cap), vshape(p), m)
        trace, target = simulate(schedule, FOLD), simulate(schedules.v_min(p, m), FOLD)
        verdict.expect(
            trace.makespan <= target.makespan,
            f"p={p}: at most {max(peak)} activations (cap {cap}; lifespans of {max(held)} steps "
            f"over {PERIOD}), makespan {trace.makespan} for m={m}",
            f"p={p}: within the cap of {cap}, but for m={m} it takes {trace.makespan}, and "
            f"{target.makespan} is possible: some steps of the block only wait",
        )
        judged[p] = trace  # which keeps to the cap, being made by `repeated`
    verdict.points += 2
    p = sizes[0]
    _on_ranks(verdict, judged[p], _cap(p))


def _cap(p):
    """Stage activations that a rank holds at most in V-Min."""
    return 2 * ((p + 4) // 3)


FAMILY = {"ZB-V": schedules.zb_v, "V-Half": schedules.v_half, "V-Min": schedules.v_min}


@exercise(points=2)
def fits(verdict, answer):
    """`fits(p, cap)`: the fastest of ZB-V, V-Half and V-Min that holds `cap` at most, or None."""
    sizes = [_size(verdict, p, of=range(3, 13)) for p in (4, 6, 8, 3, 7)]
    for p in sizes:
        _fits(verdict, p, {(cap,): answer(p, cap) for cap in range(p + 2)})
    verdict.points += 2


def _fits(verdict, p, given):
    """The names given for each cap are right. given: {(cap,): name}"""
    traces = {name: simulate(make(p, 4 * p), FOLD) for name, make in FAMILY.items()}
    peaks = {name: max(trace.peak_activations) / 2 for name, trace in traces.items()}
    table = f"at p={p} " + ", ".join(f"{name} holds {peak:g}" for name, peak in peaks.items())

    def fastest(cap):
        names = [name for name in traces if peaks[name] <= cap]
        return min(names, key=lambda name: traces[name].makespan, default=None)

    mistakes = [
        (lambda cap: fastest(cap / 2), ". The cap counts a rank's whole share, of which a stage is "
         "half"),
        (lambda cap: fastest(cap - 0.5), ". Exactly at the cap fits too"),
    ]  # fmt: skip
    known = forms.recognised(given, mistakes) or ""
    for (cap,), name in given.items():
        call, best = words.call("fits", "p cap", (p, cap)), fastest(cap)
        if name is None and best is not None:
            verdict.fail(f"{call} gives None, but {best} fits: {table}{known}")
        if name is None:
            continue
        if name not in list(FAMILY):  # it may be of any type
            names = words.listed(FAMILY)
            verdict.fail(f"{call} gives {words.short(name)}: the answer is {names}, or None")
        if peaks[name] > cap:
            verdict.fail(f"{call} gives {name}, which does not fit: {table}")
        if traces[name].makespan > traces[best].makespan:
            verdict.fail(
                f"{call} gives {name}. {best} fits too, and it is faster: "
                f"{traces[best].makespan} against {traces[name].makespan} for m={4 * p}{known}"
            )
    verdict.reasons.append(("yes", f"p={p}: right for every cap from 0 to {p + 1}"))


# ---- two copies


@exercise(points=2)
def sum_copies(verdict, answer):
    """`sum_copies(rank, near, far)`: both stages' gradients, summed over the two copies."""
    for p in [_size(verdict, p, even=True) for p in (2, 4)]:
        m = 2 * p
        lab = Lab(p, m, cut=[1 + s % 2 for s in range(p)], seed=verdict.seed(p))
        for side in (0, 1):
            run = _with_copies(lab, answer, side)
            if not lab.check(run).passed:
                own = [_with_copies(lab, _as_it_is, copy).grads for copy in (0, 1)]
                verdict.fail(_wrong_sum(lab, run.grads, own, side))
        verdict.agree(lab, run, points=1)


def _with_copies(lab, answer, side):
    """Run DualPipe, let `answer` add up the gradients, and take those of one of the sides.

    The package sums the copies by itself after a run; what it then adds is zero.
    """
    p, m = lab.stages, lab.microbatches
    rows = lower(schedules.dualpipe(p, m), SHARE).ranks

    def program(rank):
        execute.Plan(rank, rows[rank.index]).run()
        stages = [rank.modules[0, rank.index], rank.modules[1, p - 1 - rank.index]]
        held = [[w.grad for w in stage.parameters()] for stage in stages]
        near, far = (torch.cat([g.flatten() for g in grads]) for grads in held)
        sums = answer(rank, near.clone(), far.clone())
        rank.transport.at("after sum_copies")
        if not isinstance(sums, (list, tuple)) or len(sums) != 2 or not all(
            isinstance(x, torch.Tensor) for x in sums
        ):  # fmt: skip
            what = "None" if sums is None else type(sums).__name__
            raise StepError(
                f"sum_copies gives {what}: return two tensors, the sum for near and that for far"
            )
        for name, grads, total in zip(("near", "far"), held, sums, strict=True):
            if total.shape != (length := sum(g.numel() for g in grads),):
                raise StepError(
                    f"sum_copies gives {list(total.shape)} for {name}, whose gradient has the "
                    f"shape [{length}]: are near and far the other way round?"
                )
        for which, (grads, total) in enumerate(zip(held, sums, strict=True)):
            parts = total.split([g.numel() for g in grads])
            for g, part in zip(grads, parts, strict=True):
                g.copy_(part.view_as(g) if which == side else torch.zeros_like(g))

    return lab.run(program, placement=bidirectional(p), tags=True, cost=SHARE)


def _as_it_is(rank, near, far):
    return near, far


def _wrong_sum(lab, got, own, side):
    """What the learner did instead of adding the two copies' gradients."""
    right, name = lab.reference.grads, ("near", "far")[side]
    mine, theirs = own[side], own[1 - side]

    def is_(candidate):
        return all(torch.allclose(got[n], candidate(n), rtol=1e-9, atol=1e-12) for n in right)

    where = f"p={lab.stages}, the gradient returned for {name}: "
    for candidate, sentence in (
        (lambda n: mine[n], "this is what the rank's own copy has. It has seen only half of the "
         "micro-batches, so half of the sum is missing: add what the other copy has"),
        (lambda n: theirs[n], "this is what the other copy has, without the rank's own: add them"),
        (lambda n: right[n] / 2, "this is the mean of the two copies, half of the gradient. Each "
         "micro-batch's loss is divided by m already, m being all of them: add, and do not "
         "divide"),
        (lambda n: 2 * mine[n], "the rank's own copy is in there twice: receive into a tensor of "
         "its own"),
        (lambda n: mine[n] - theirs[n], "the two copies are subtracted"),
    ):  # fmt: skip
        if is_(candidate):
            return where + sentence
    return where + "this is not the sum over the two copies"


# ---- DualPipe's steps


@exercise(points=2)
def step_counts(verdict, answer):
    """`step_counts(half, depth, n)`: how often each of DualPipe's eight steps is repeated."""
    right = dualpipe_steps.counts

    def changed(step, change):
        """The right counts, but for one step."""

        def counts(q, h, n):
            counts = right(q, h, n)
            counts[step - 1] = change(q, h, n)
            return counts

        return counts

    mistakes = [
        (lambda q, h, n: right(q, q - 1 - h, n), "that is the right list for a rank at the other "
         "depth: it is the ranks at the ends, depth 0, that run ahead most"),
        (lambda q, h, n: right(q, 0, n), "ranks at every depth would do the same. Use depth"),
        (changed(4, lambda q, h, n: n - q + h + 1), "step 4: count the forwards of direction 0. "
         "What step 1 and step 2 have run, 2(half-depth-1) + depth+1, is no longer there for step "
         "4"),
        (changed(4, lambda q, h, n: 2 * n - 2 * q + h + 1), "step 4: n are the micro-batches of "
         "one direction, m/2. Is that m?"),
        (changed(4, lambda q, h, n: 2 * (n - 2 * q + h + 1)), "step 4: one repetition is two "
         "pairs, F0&B1 and F1&B0. Count it once"),
        (changed(1, lambda q, h, n: q - h - 1), "step 1: there and back to the middle makes two "
         "forwards per rank on the way"),
        (changed(1, lambda q, h, n: 2 * (q - h)), "step 1: the rank next to the middle, depth "
         "half-1, has nothing to do in step 1"),
        (lambda q, h, n: [c - (k in (1, 5, 7)) for k, c in enumerate(right(q, h, n))], "steps 2, 6 "
         "and 8: also the rank at the end, depth 0, runs them once"),
    ]  # fmt: skip
    sizes = [(2, 4), (4, 8), (1, 2), (4, 11)]
    if verdict.random:
        sizes = [(q, 2 * q + verdict.random.randint(0, 5)) for q in (2, 3, 5)]
    cases = [(q, h, n) for q, n in sizes for h in range(q)]
    calls = {case: words.call("step_counts", "half depth n", case) for case in cases}
    given = {case: _eight(verdict, calls[case], answer(*case)) for case in cases}
    known = forms.recognised(given, mistakes)
    for case, counts in given.items():
        if min(counts) < 0 and not known:
            step = counts.index(min(counts)) + 1
            verdict.fail(f"{calls[case]} gives {counts}: step {step} runs less than 0 times")
        wrong = dualpipe_steps.unbalanced(counts, case[-1])
        if known and counts != right(*case) or wrong:
            verdict.fail(f"{calls[case]} gives {counts}: {known or wrong}")
    for q, n in sizes:
        rows = [list(dualpipe_steps.ops(q, h, n, given[q, h, n])) for h in range(q)]
        where = f"with half={q} and n={n}, "
        try:
            trace = simulate(Schedule("yours", rows, vshape(q), n), FOLD)
        except ScheduleError as error:
            verdict.fail(f"{where}all forwards and backwards are there, but cannot run: {error}")
        target = simulate(schedules.dualpipe_v(q, n), FOLD)
        forms.within(
            verdict,
            trace,
            target,
            slow=lambda trace, target: (
                f"all ops are there, but take {trace.makespan}, and {target.makespan} is "
                f"possible. {_gap(trace)}"
            ),
            full=_full,
            where=where,
            caps=[max(target.peak_activations)] * q,
        )
    said = f"every rank's ops are there and run at full speed, in all of {len(cases)} cases"
    verdict.expect(True, said, "", points=2)


def _eight(verdict, call, counts):
    """What `step_counts` gave, if it is eight whole numbers."""
    if not isinstance(counts, (list, tuple)):
        verdict.fail(f"{call} gives {words.short(counts)}: return a list of eight numbers")
    if len(counts) != 8:
        verdict.fail(f"{call} gives {len(counts)} numbers: there are eight steps")
    if not all(isinstance(c, int) and not isinstance(c, bool) for c in counts):
        verdict.fail(f"{call} gives {words.short(list(counts))}: counts are whole numbers, from 0")
    return list(counts)


# ---- what it is worth


@exercise(points=2)
def crossing(verdict, answer):
    """`crossing(p, pair)`: from which v on 1F1B with overlap idles no longer than DualPipe."""
    cases = [(4, 2), (8, 2), (16, 2), (4, 3), (8, 3), (8, 2.5)]
    if verdict.random:
        cases = [(verdict.random.choice((4, 6, 8, 10, 12)), 2 + k / 4) for k in (0, 0, 1, 2, 4)]
    mistakes = [
        (lambda p, pair: 6 * (p - 1) / (p - 2), "that is right for a pair that takes 2, no longer "
         "than its backward. DualPipe's idle time grows with the pair: (p/2-1)(pair + B - 3W)"),
        (lambda p, pair: (p / 2 - 1) * (pair - 1) / (3 * (p - 1)), "that is the quotient upside "
         "down: v is what 3(p-1) has to be divided by"),
        (lambda p, pair: (p / 2 - 1) * (pair - 1), "that is DualPipe's idle time. For which v is "
         "3(p-1)/v the same?"),
        (lambda p, pair: 3 * (p - 1), "that is the idle time of 1F1B with v=1. Divide it by what "
         "DualPipe idles"),
        (lambda p, pair: 3 * (p - 1) / ((p - 1) * (pair - 1)), "DualPipe has p/2-1 ranks between "
         "an end and the middle, where 1F1B has p-1"),
        (lambda p, pair: 3 * (p - 1) / ((p / 2 - 1) * (pair + 2)), "DualPipe's three weight "
         "gradients are missing: (p/2-1)(pair + B - 3W), and W is 1"),
        (lambda p, pair: (p - 1) * (1 + pair) / ((p / 2 - 1) * (pair - 1)), "1F1B's idle time is "
         "outside of its pairs: (p-1)(F+B)/v, whatever a pair takes"),
        (lambda p, pair: 8, "a rule of thumb. It depends on p, and on the pair even more"),
    ]  # fmt: skip
    idle = {}  # of the worst rank: of DualPipe's, and of 1F1B's with v=1
    for p, pair in cases:
        both = schedules.dualpipe(p, 2 * p), schedules.combined_1f1b(p, 2 * p, 1)
        idle[p, pair] = [max(simulate(s, Cost(F=1, B=2, pair=pair)).idle) for s in both]

    def call(*case):
        return words.call("crossing", "p pair", case)

    forms.numbers(
        verdict,
        answer,
        cases,
        call=call,
        right=lambda *case: idle[case][1] / idle[case][0],
        wrong=lambda case, value, _: (
            f"{call(*case)} is {float(value):.4g}. With F=1 B=2, DualPipe's worst rank idles for "
            f"{float(idle[case][0]):g}, and that of 1F1B with overlap for "
            f"{float(idle[case][1]):g}/v"
        ),
        mistakes=mistakes,
        otherwise=": set them equal",
        near=1e-6,
    )
    verdict.expect(True, f"the idle times of the two meet there, in all of {len(cases)} cases", "",
                   points=2)  # fmt: skip


# ---- sizes


def _size(verdict, p, even=False, of=None):
    """p, or a hidden number of ranks of its kind."""
    if verdict.random is None or p == 1:
        return p
    return verdict.random.choice(list(of) if of else [2, 4, 6] if even else [2, 3, 4, 5, 6])


def _v_size(verdict, p, m):
    """(p, m) with m >= 2p-1 as it is here, or a hidden one that keeps the distance at least."""
    if verdict.random is None:
        return p, m
    more = m - 2 * p
    p = 1 if p == 1 else verdict.random.choice([2, 3, 4, 5])
    return p, 2 * p + more + verdict.random.randint(0, 3)


def _dual_size(verdict, p, m):
    """(p, m), or a hidden one with both even and m >= 2p."""
    if verdict.random is None:
        return p, m
    p = verdict.random.choice([2, 4, 6])
    return p, 2 * p + 2 * verdict.random.randint(0, 2)


def _sizes(sizes):
    return words.listed(f"p={p} m={m}" for p, m in sizes)
