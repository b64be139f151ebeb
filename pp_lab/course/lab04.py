"""The checks of labs/04_dualpipe.ipynb. Each takes the learner's functions and gives a `Score`."""

import torch

from ..run import Lab
from ..run.execute import Plan
from ..run.rank import StepError
from ..schedule import Cost, Op, Pair, Schedule, ScheduleError, lower, schedules, simulate, verify
from ..schedule.blocks import PERIOD, repeated
from ..schedule.schedule import Placement, bidirectional, vshape
from ..show import timeline
from .exercise import exercise

SHARE = Cost(F=1, B=2, pair=3)  # of a rank's whole share of the model
HIDDEN = Cost(F=1, B=2, pair=2)  # the forward of a pair is hidden behind its backward
FOLD = Cost(F=1, B=2).split(2)  # of one of the two stages on a V


# ---- placements


@exercise(points=2)
def placements(verdict, v_placement, two_way_placement):
    """`v_placement(p)`: the rank of each of 2p stages; `two_way_placement(p)`: of two copies."""
    mistakes = [
        (
            lambda p: [s % p for s in range(2 * p)],
            "that is the loop of interleaved 1F1B: it jumps from the last rank to rank 0. On a V "
            "the way back goes up the same ranks, and stage p is where stage p-1 is",
        ),
        (
            lambda p: [s // 2 for s in range(2 * p)],
            "neighbouring stages share a rank there: that is a pipeline without a fold, with two "
            "small stages in place of one",
        ),
        (
            lambda p: [*range(p), *range(p - 2, -1, -1), 0],
            "at the fold, stage p-1 and stage p are both on the last rank",
        ),
        (
            lambda p: [(r, 2 * p - 1 - r) for r in range(p)],
            "that lists the stages of each rank. Turn it round: the rank of each stage",
        ),
        (
            lambda p: [[r, 2 * p - 1 - r] for r in range(p)],
            "that lists the stages of each rank. Turn it round: the rank of each stage",
        ),
        (lambda p: [*range(p)], "that places the way down only. There are 2p stages"),
    ]
    sizes = [_size(verdict, p) for p in (3, 4, 2, 1)]
    for p in sizes:
        _owners(verdict, f"v_placement({p})", v_placement(p), p, 2 * p)
        got, right = list(v_placement(p)), list(vshape(p).copies[0])
        if got != right:
            known = next((text for f, text in mistakes if f(p) == got), None)
            s = next(s for s in range(2 * p) if got[s] != right[s])
            verdict.fail(
                f"v_placement({p}) is {got}: "
                + (known or f"stage {s} belongs on rank {right[s]}, not on {got[s]}")
            )
        m = 2 * p
        rows = schedules.zb_v(p, m).ranks
        verify(Schedule("ZB-V", rows, Placement("V", (tuple(got),)), m))
    verdict.expect(True, f"v_placement: ZB-V runs on it for p = {_list(sizes)}", "", points=1)

    for p in [_size(verdict, p, even=True) for p in (4, 2, 6)]:
        call, copies = f"two_way_placement({p})", two_way_placement(p)
        if not isinstance(copies, (list, tuple)):
            verdict.fail(f"{call} gives {copies!r}: return two lists, one for each copy")
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
        verdict.fail(f"{call} gives {owners!r}: return a list with a rank for each stage")
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
            f"{call} gives {list(owners)!r}: that lists the stages of each rank. Turn it round: "
            "the rank of each stage, one number per stage"
        )
    else:
        verdict.fail(f"{call} gives {list(owners)!r}: ranks are whole numbers")


# ---- schedules


@exercise(points=4)
def zb_v(verdict, answer):
    """`zb_v(p, m)`: ZB-V as a list of `Op` for each rank, for m >= 2p-1."""
    sizes = [_v_size(verdict, p, m) for p, m in ((4, 8), (3, 5), (2, 6), (1, 2))]
    for p, m in sizes:
        target = simulate(schedules.zb_v(p, m), FOLD)
        trace = _timed(verdict, answer, p, m, vshape(p), FOLD, _zb_v_hint)
        if trace != target and verdict.figure is None:
            verdict.figure = timeline(trace, predicted=target)
        _as_fast(verdict, trace, target, p, m, _slow_on_a_v)
        span = "the longest rank's own span is"
        if trace.span > target.span:
            verdict.fail(
                f"p={p}, m={m}: {span} {trace.span}, but {target.span} is possible: " + _gap(trace)
            )
        _in_memory(verdict, trace, target, p, m)
    p, m = sizes[0]
    verdict.figure = None
    verdict.expect(
        True, f"legal, without a gap and within p activations for {_sizes(sizes)}", "", points=3
    )
    _real(verdict, answer, p, m, vshape(p), FOLD, 2 * p)


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


def _slow_on_a_v(trace, m):
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
    _two_ways(verdict, answer, sizes, schedules.dualpipe, bidirectional, 1, _dualpipe_hint)
    p, m = sizes[0]
    verdict.expect(True, f"legal, as fast as DualPipe and in p+1 activations for {_sizes(sizes)}",
                   "", points=2)  # fmt: skip
    _real(verdict, answer, p, m, bidirectional(p), SHARE, p + 1)


@exercise(points=2)
def dualpipe_v(verdict, answer):
    """`dualpipe_v(p, m)`: the same on a V of 2p stages; any p, m >= 2p."""
    sizes = [_v_size(verdict, p, m) for p, m in ((4, 10), (2, 4), (3, 6), (1, 2))]
    _two_ways(verdict, answer, sizes, schedules.dualpipe_v, vshape, 2, _dualpipe_v_hint)
    p, m = sizes[0]
    verdict.expect(True, f"legal, as fast as DualPipeV and in its memory for {_sizes(sizes)}",
                   "", points=1)  # fmt: skip
    _real(verdict, answer, p, m, vshape(p), SHARE.split(2), 2 * p + 1)


def _two_ways(verdict, answer, sizes, schedule, placement, v, hint):
    """Legal, and as good as `schedule`: with pairs that gain nothing, and with free ones."""
    for p, m in sizes:
        for cost in (SHARE.split(v), HIDDEN.split(v)):
            target = simulate(schedule(p, m), cost)
            trace = _timed(verdict, answer, p, m, placement(p), cost, hint)
            if trace != target and verdict.figure is None:
                verdict.figure = timeline(trace, predicted=target)
            _as_fast(verdict, trace, target, p, m, _slow_two_ways)
            _in_memory(verdict, trace, target, p, m)
    verdict.figure = None


def _slow_two_ways(trace, m):
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


def _timed(verdict, answer, p, m, placement, cost, hint):
    """The learner's schedule, if it is one and is legal, simulated."""
    rows = answer(p, m)
    if not isinstance(rows, (list, tuple)) or not all(isinstance(r, (list, tuple)) for r in rows):
        shown = repr(rows)
        verdict.fail(
            f"p={p}, m={m}: {shown[:60]}{' …' * (len(shown) > 60)} is not a list of ops for each "
            "rank" + (": is a return missing?" if rows is None else "")
        )
    if len(rows) != p:
        verdict.fail(f"p={p}, m={m}: there are lists for {len(rows)} ranks, not for {p}")
    schedule = Schedule("yours", rows, placement, m)
    try:
        verify(schedule)
    except ScheduleError as error:
        more = hint(error, p, m)
        verdict.fail(
            f"p={p}, m={m}: {more}. In detail: {error}" if more else f"p={p}, m={m}: {error}"
        )
    return simulate(schedule, cost)


def _as_fast(verdict, trace, target, p, m, why):
    if trace.makespan > target.makespan:
        verdict.fail(
            f"p={p}, m={m}: with {trace.cost} it takes {trace.makespan}, but {target.makespan} is "
            f"possible: {why(trace, m)}"
        )


def _in_memory(verdict, trace, target, p, m):
    most = max(target.peak_activations)
    over = [r for r, held in enumerate(trace.peak_activations) if held > most]
    if over:
        r = over[0]
        verdict.fail(
            f"p={p}, m={m}: rank {r} holds {trace.peak_activations[r]} activations, but {most} are "
            "enough: it runs forwards, or puts off weight gradients, longer than it has to"
        )


def _real(verdict, answer, p, m, placement, cost, peak):
    """The schedule on real processes."""
    schedule = Schedule("yours", answer(p, m), placement, m)
    lab = Lab(placement.stages, m, seed=verdict.seed(p))
    verdict.agree(lab, lab.run(schedule, cost=cost), points=1, peak=peak)


# ---- the building block


@exercise(points=3)
def v_min_block(verdict, answer):
    """`v_min_block(p)`: for each rank the steps of micro-batch 0's F, F, I and I on a V."""
    sizes = [
        _size(verdict, p, of=ps) for p, ps in ((4, (4, 5, 7)), (8, (8, 10, 11)), (3, (3, 6, 9)))
    ]
    for p in sizes:
        block = _block(verdict, answer, p)
        cap = 2 * ((p + 4) // 3)
        held = [_lifespans(row) for row in block]
        worst = max(range(p), key=lambda r: held[r])
        peak = _peak(block, 2 * p)
        if max(peak) > cap:
            r = peak.index(max(peak))
            verdict.fail(
                f"p={p}: rank {r} would hold {max(peak)} activations, and the cap is {cap}. Its "
                f"two stages keep theirs for {held[r]} steps together, from F to W, and a new "
                f"micro-batch comes every {PERIOD}: {held[r] / PERIOD:.1f} at a time, on average. "
                "Shorten what is longest"
            )
        m = 2 * p
        schedule = Schedule("yours", repeated(block, m, cap), vshape(p), m)
        trace, target = simulate(schedule, FOLD), simulate(schedules.v_min(p, m), FOLD)
        verdict.expect(
            trace.makespan <= target.makespan,
            f"p={p}: at most {max(peak)} activations (cap {cap}; lifespans of {held[worst]} steps "
            f"over {PERIOD}), makespan {trace.makespan} for m={m}",
            f"p={p}: within the cap of {cap}, but for m={m} it takes {trace.makespan}, and "
            f"{target.makespan} is possible: some steps of the block only wait",
        )
    verdict.points += 2
    p = sizes[0]
    m = 2 * p
    schedule = Schedule("yours", repeated(_block(verdict, answer, p), m, 2 * ((p + 4) // 3)),
                        vshape(p), m)  # fmt: skip
    lab = Lab(2 * p, m, seed=verdict.seed(p))
    verdict.agree(lab, lab.run(schedule, cost=FOLD), points=1, peak=2 * ((p + 4) // 3))


NAMES = ("F down", "F up", "I up", "I down")


def _block(verdict, answer, p):
    """The learner's block, if each step comes after what it needs and none meets another."""
    block = answer(p)
    if not isinstance(block, (list, tuple)) or len(block) != p:
        verdict.fail(
            f"v_min_block({p}) gives "
            + (f"{len(block)} rows" if isinstance(block, (list, tuple)) else repr(block))
            + f": return a list with four steps for each of the {p} ranks"
        )
    for r, row in enumerate(block):
        if not isinstance(row, (list, tuple)) or len(row) != 4 or not all(
            isinstance(x, int) and not isinstance(x, bool) and x >= 0 for x in row
        ):  # fmt: skip
            verdict.fail(
                f"v_min_block({p}), rank {r}: {row!r} is not four steps, whole numbers from 0: "
                "F and I of the two stages, in the order F down, F up, I up, I down"
            )
    down, up, back, home = zip(*block, strict=True)
    # One micro-batch's way, op by op: what, on which rank, in which step.
    way = [("F", r, r, down[r]) for r in range(p)]
    way += [("F", 2 * p - 1 - r, r, up[r]) for r in reversed(range(p))]
    way += [("I", 2 * p - 1 - r, r, back[r]) for r in range(p)]
    way += [("I", r, r, home[r]) for r in reversed(range(p))]
    for (kind, stage, rank, step), (k, s, r, then) in zip(way, way[1:], strict=False):
        if then <= step:
            verdict.fail(
                f"p={p}: {s}{k}0 on rank {r} stands in step {then}, but it needs {stage}{kind}0, "
                f"which rank {rank} runs in step {step}: the earliest is step {step + 1}"
            )
    for r, row in enumerate(block):
        for a in range(4):
            for b in range(a + 1, 4):
                if (row[b] - row[a]) % PERIOD == 0:
                    verdict.fail(
                        f"p={p}, rank {r}: {NAMES[a]} in step {row[a]} and {NAMES[b]} in step "
                        f"{row[b]} meet: {PERIOD} steps make a period, so some micro-batch's one "
                        f"and another's other want the same step. Let {NAMES[b]} wait"
                    )
    return [tuple(row) for row in block]


def _weights(row):
    """The steps of the two W: the next free one of the period after each I."""
    taken, steps = {x % PERIOD for x in row}, []
    for start in (row[2], row[3]):
        step = start + 1
        while step % PERIOD in taken:
            step += 1
        taken.add(step % PERIOD)
        steps.append(step)
    return steps


def _lifespans(row):
    """How many steps the two stages of a rank keep one micro-batch's activation, F to W."""
    up, down = _weights(row)
    return (down + 1 - row[0]) + (up + 1 - row[1])


def _peak(block, m):
    """For each rank, how many activations it holds if the block is repeated m times as it is."""
    peaks = []
    for row in block:
        once = [(step, 1) for step in row[:2]] + [(step, -1) for step in _weights(row)]
        changes = [(step + PERIOD * i, change) for i in range(m) for step, change in once]
        held = most = 0
        for _, change in sorted(changes):
            held += change
            most = max(most, held)
        peaks.append(most)
    return peaks


FAMILY = {"ZB-V": schedules.zb_v, "V-Half": schedules.v_half, "V-Min": schedules.v_min}


@exercise(points=2)
def fits(verdict, answer):
    """`fits(p, cap)`: the fastest of ZB-V, V-Half and V-Min that holds `cap` at most, or None."""
    sizes = [_size(verdict, p, of=range(3, 13)) for p in (4, 6, 8, 3, 7)]
    known = None
    for p in sizes:
        got = [answer(p, cap) for cap in range(p + 2)]
        traces = {name: simulate(make(p, 4 * p), FOLD) for name, make in FAMILY.items()}
        peaks = {name: max(trace.peak_activations) / 2 for name, trace in traces.items()}
        table = f"at p={p} " + ", ".join(f"{n} holds {peak:g}" for n, peak in peaks.items())
        if got == [_fastest(traces, peaks, cap - 0.5) for cap in range(p + 2)]:
            known = "Exactly at the cap fits too"
        if got == [_fastest(traces, peaks, cap / 2) for cap in range(p + 2)]:
            known = "The cap counts a rank's whole share, of which a stage is half"
        for cap, name in enumerate(got):
            call = f"fits(p={p}, cap={cap})"
            best = _fastest(traces, peaks, cap)
            if name is not None and name not in FAMILY:
                verdict.fail(f"{call} gives {name!r}: the answer is {_list(FAMILY)}, or None")
            if name is None and best is not None:
                verdict.fail(
                    f"{call} gives None, but {best} fits: {table}"
                    + f". {known}" * (known is not None)
                )
            if name is not None and peaks[name] > cap:
                verdict.fail(f"{call} gives {name}, which does not fit: {table}")
            if name is not None and traces[name].makespan > traces[best].makespan:
                verdict.fail(
                    f"{call} gives {name}. {best} fits too, and it is faster: "
                    f"{traces[best].makespan} against {traces[name].makespan} for m={4 * p}"
                    + f". {known}"
                    * (known is not None)
                )
        verdict.reasons.append(("yes", f"p={p}: right for every cap from 0 to {p + 1}"))
    verdict.points += 2


def _fastest(traces, peaks, cap):
    """The name of the fastest trace among those that fit under the cap, or None."""
    names = [name for name in traces if peaks[name] <= cap]
    return min(names, key=lambda name: traces[name].makespan, default=None)


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
        Plan(rank, rows[rank.index]).run()
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
    for candidate, text in (
        (
            lambda n: mine[n],
            "this is what the rank's own copy has. It has seen only half of the micro-batches, so "
            "half of the sum is missing: add what the other copy has",
        ),
        (
            lambda n: theirs[n],
            "this is what the other copy has, without the rank's own: add them",
        ),
        (
            lambda n: right[n] / 2,
            "this is the mean of the two copies, half of the gradient. Each micro-batch's loss is "
            "divided by m already, m being all of them: add, and do not divide",
        ),
        (
            lambda n: 2 * mine[n],
            "the rank's own copy is in there twice: receive into a tensor of its own",
        ),
        (
            lambda n: mine[n] - theirs[n],
            "the two copies are subtracted",
        ),
    ):
        if is_(candidate):
            return where + text
    return where + "this is not the sum over the two copies"


# ---- DualPipe's steps

STEPS = ("F0", "F0 F1", "I1 W F1", "F0&B1 F1&B0", "B1 F1&B0", "B1 B0", "W I0", "W")


@exercise(points=2)
def step_counts(verdict, answer):
    """`step_counts(half, depth, n)`: how often each of DualPipe's eight steps is repeated."""
    mistakes = [
        (
            lambda q, h, n: _counts(q, q - 1 - h, n),
            "that is the right list for a rank at the other depth: it is the ranks at the ends, "
            "depth 0, that run ahead most",
        ),
        (lambda q, h, n: _counts(q, 0, n), "ranks at every depth would do the same. Use depth"),
        (
            lambda q, h, n: [*_counts(q, h, n)[:3], n - q + h + 1, *_counts(q, h, n)[4:]],
            "step 4: count the forwards of direction 0. What step 1 and step 2 have run, "
            "2(half-depth-1) + depth+1, is no longer there for step 4",
        ),
        (
            lambda q, h, n: [*_counts(q, h, n)[:3], 2 * n - 2 * q + h + 1, *_counts(q, h, n)[4:]],
            "step 4: n are the micro-batches of one direction, m/2. Is that m?",
        ),
        (
            lambda q, h, n: [*_counts(q, h, n)[:3], 2 * _counts(q, h, n)[3], *_counts(q, h, n)[4:]],
            "step 4: one repetition is two pairs, F0&B1 and F1&B0. Count it once",
        ),
        (
            lambda q, h, n: [q - h - 1, *_counts(q, h, n)[1:]],
            "step 1: there and back to the middle makes two forwards per rank on the way",
        ),
        (
            lambda q, h, n: [2 * (q - h), *_counts(q, h, n)[1:]],
            "step 1: the rank next to the middle, depth half-1, has nothing to do in step 1",
        ),
        (
            lambda q, h, n: [c - (k in (1, 5, 7)) for k, c in enumerate(_counts(q, h, n))],
            "steps 2, 6 and 8: also the rank at the end, depth 0, runs them once",
        ),
    ]
    sizes = [(2, 4), (4, 8), (1, 2), (4, 11)]
    if verdict.random:
        sizes = [(q, 2 * q + verdict.random.randint(0, 5)) for q in (2, 3, 5)]
    cases = [(q, h, n) for q, n in sizes for h in range(q)]
    known = next(
        (text for f, text in mistakes if all(_same(answer(*c), f(*c)) for c in cases)), None
    )
    for q, h, n in cases:
        call, counts = f"step_counts(half={q}, depth={h}, n={n})", answer(q, h, n)
        if not isinstance(counts, (list, tuple)):
            verdict.fail(f"{call} gives {counts!r}: return a list of eight numbers")
        counts = list(counts)
        if len(counts) != 8:
            verdict.fail(f"{call} gives {len(counts)} numbers: there are eight steps")
        if not all(isinstance(c, int) and not isinstance(c, bool) for c in counts):
            verdict.fail(f"{call} gives {counts}: counts are whole numbers, from 0")
        if min(counts) < 0 and not known:
            step = counts.index(min(counts)) + 1
            verdict.fail(f"{call} gives {counts}: step {step} runs less than 0 times")
        wrong = _unbalanced(counts, n)
        if known and not _same(counts, _counts(q, h, n)) or wrong:
            verdict.fail(f"{call} gives {counts}: {known or wrong}")
    for q, n in sizes:
        rows = [list(_from_counts(q, h, n, answer(q, h, n))) for h in range(q)]
        call = f"with half={q} and n={n}"
        try:
            trace = simulate(Schedule("yours", rows, vshape(q), n), FOLD)
        except ScheduleError as error:
            verdict.fail(f"{call}, all forwards and backwards are there, but cannot run: {error}")
        target = simulate(schedules.dualpipe_v(q, n), FOLD)
        if trace.makespan > target.makespan:
            verdict.fail(
                f"{call}, all ops are there, but take {trace.makespan}, and {target.makespan} is "
                f"possible. {_gap(trace)}"
            )
        _in_memory(verdict, trace, target, q, n)
    said = f"every rank's ops are there and run at full speed, in all of {len(cases)} cases"
    verdict.expect(True, said, "", points=2)


def _counts(half, depth, n):
    rest = half - depth - 1
    return [2 * rest, depth + 1, rest, n - 2 * half + depth + 1, rest, depth + 1, rest, depth + 1]


def _same(got, want):
    return isinstance(got, (list, tuple)) and list(got) == want


def _unbalanced(counts, n):
    """Which ops are too many, or too few, if the eight steps are repeated so often."""
    for name in ("F0", "F1", "backwards of direction 0", "backwards of direction 1"):
        way = name[-1]
        kinds = ("F" + way,) if name[0] == "F" else ("B" + way, "I" + way)
        per = [sum(word in kinds for word in step.replace("&", " ").split()) for step in STEPS]
        total = sum(c * k for c, k in zip(counts, per, strict=True))
        if total != n:
            what = f"forwards of direction {way}" if name[0] == "F" else name
            used = [f"step {k + 1}: {c * per[k]}" for k, c in enumerate(counts) if c * per[k]]
            return f"that makes {total} {what} ({', '.join(used)}), and there are {n}"
    split = counts[2] + counts[5] + counts[6]  # the second half of step 6 leaves its W
    late = counts[2] + counts[6] + counts[7]
    if split != late:
        return (
            f"that makes {split} input gradients (steps 3, 6 and 7) whose weight gradients are "
            f"left, but {late} W (steps 3, 7 and 8)"
        )
    return None


def _from_counts(half, depth, n, counts):
    """One rank's ops, on a V of `half` ranks, from the counts of its eight steps."""
    stages = (depth, 2 * half - 1 - depth)
    made = {kind + str(way): iter([Op(kind, stage, i) for i in range(n)])
            for kind in "FB" for way, stage in enumerate(stages)}  # fmt: skip
    waiting = []
    for number, (step, count) in enumerate(zip(STEPS, counts, strict=True), 1):
        for k in range(count):
            for j, word in enumerate(step.split()):
                if word == "W":
                    yield from waiting[:1]
                    del waiting[:1]
                elif "&" in word:
                    f, b = (next(made[part]) for part in word.split("&"))
                    yield Pair(f, b)
                elif word[0] == "I" or (number == 6 and 2 * k + j >= count):
                    b = next(made["B" + word[1]])
                    waiting.append(b._replace(kind="W"))
                    yield b._replace(kind="I")
                else:
                    yield next(made[word])


# ---- what it is worth


@exercise(points=2)
def crossing(verdict, answer):
    """`crossing(p, pair)`: from which v on 1F1B with overlap idles no longer than DualPipe."""
    cases = [(4, 2), (8, 2), (16, 2), (4, 3), (8, 3), (8, 2.5)]
    if verdict.random:
        cases = [(verdict.random.choice((4, 6, 8, 10, 12)), 2 + k / 4) for k in (0, 0, 1, 2, 4)]
    mistakes = [
        (
            lambda p, pair: 6 * (p - 1) / (p - 2),
            "that is right for a pair that takes 2, no longer than its backward. DualPipe's idle "
            "time grows with the pair: (p/2-1)(pair + B - 3W)",
        ),
        (
            lambda p, pair: (p / 2 - 1) * (pair - 1) / (3 * (p - 1)),
            "that is the quotient upside down: v is what 3(p-1) has to be divided by",
        ),
        (
            lambda p, pair: (p / 2 - 1) * (pair - 1),
            "that is DualPipe's idle time. For which v is 3(p-1)/v the same?",
        ),
        (
            lambda p, pair: 3 * (p - 1),
            "that is the idle time of 1F1B with v=1. Divide it by what DualPipe idles",
        ),
        (
            lambda p, pair: 3 * (p - 1) / ((p - 1) * (pair - 1)),
            "DualPipe has p/2-1 ranks between an end and the middle, where 1F1B has p-1",
        ),
        (
            lambda p, pair: 3 * (p - 1) / ((p / 2 - 1) * (pair + 2)),
            "DualPipe's three weight gradients are missing: (p/2-1)(pair + B - 3W), and W is 1",
        ),
        (
            lambda p, pair: (p - 1) * (1 + pair) / ((p / 2 - 1) * (pair - 1)),
            "1F1B's idle time is outside of its pairs: (p-1)(F+B)/v, whatever a pair takes",
        ),
        (lambda p, pair: 8, "a rule of thumb. It depends on p, and on the pair even more"),
    ]
    for p, pair in cases:
        call = f"crossing(p={p}, pair={pair})"
        value = verdict.number(call, answer(p, pair))
        cost = Cost(F=1, B=2, pair=pair)
        idle = max(simulate(schedules.dualpipe(p, 2 * p), cost).idle)
        plain = max(simulate(schedules.combined_1f1b(p, 2 * p, 1), cost).idle)
        if abs(value * idle - plain) > 1e-6 * plain:
            known = next((text for f, text in mistakes
                          if all(abs(answer(*c) - f(*c)) < 1e-9 for c in cases)), None)  # fmt: skip
            verdict.fail(
                f"{call} is {float(value):.4g}. With F=1 B=2, DualPipe's worst rank idles for "
                f"{float(idle):g}, and that of 1F1B with overlap for {float(plain):g}/v"
                + (f": {known}" if known else ": set them equal")
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
    return _list(f"p={p} m={m}" for p, m in sizes)


def _list(words):
    *most, last = map(str, words)
    return f"{', '.join(most)} and {last}" if most else last
