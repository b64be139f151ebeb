"""The checks of labs/02_interleaved.ipynb. Each takes the learner's functions, gives a `Score`."""

from fractions import Fraction
from numbers import Integral, Real

from ..run import Lab
from ..schedule import Cost, Op, Schedule, ScheduleError, loop, schedules, simulate
from ..schedule.op import ops
from .exercise import exercise, over

COST = Cost(F=1, B=2)  # of a rank's whole share: a chunk costs COST.split(v)
# (p, m, v), with m a multiple of p
SIZES = [(2, 4, 2), (3, 6, 2), (4, 8, 2), (4, 8, 4), (4, 4, 2), (2, 6, 3), (8, 32, 2)]


def interleaved_with(p, m, v, k=2, group=None, rounds=None):
    """Interleaved 1F1B in Megatron's order, with nothing refused.

    k: warm-up forwards for each rank that comes after this one; group: micro-batches in a
    round (p unless given), and the last round takes what is left; or the rounds themselves,
    like [5, 5].
    """
    if rounds is None:
        group = p if group is None else group
        rounds = [min(group, m - first) for first in range(0, m, group)]
    warmups = [k * (p - 1 - r) + (v - 1) * rounds[0] for r in range(p)]
    name = f"interleaved v={v} k={k}, rounds of {' '.join(map(str, rounds))},"
    return _in_rounds(name, p, m, v, rounds, warmups)


def _in_rounds(name, p, m, v, rounds, warmups):
    rows = []
    for r in range(p):
        forwards, backwards, first = [], [], 0
        for size in rounds:
            for c in range(v):
                forwards += ops("F", c * p + r, range(first, first + size))
                backwards += ops("B", (v - 1 - c) * p + r, range(first, first + size))
            first += size
        rows.append(schedules.alternate(forwards, backwards, warmups[r]))
    return Schedule(name, rows, loop(p, v), m)


@exercise(points=1)
def place(verdict, answer):
    """`stages_of(p, v)`: for each rank its stages, chunk by chunk."""
    for p, v in _drawn(verdict, [(2, 2), (4, 2), (3, 3), (4, 1), (1, 3)]):
        call = f"stages_of(p={p}, v={v})"
        ranks = _rows(verdict, call, answer(p, v), p, "stages")
        for r, row in enumerate(ranks):
            for stage in row:
                if isinstance(stage, bool) or not isinstance(stage, Integral):
                    verdict.fail(f"{call} gives {stage!r} on rank {r}: a stage is a number")
        flat = sorted(stage for row in ranks for stage in row)
        if flat == list(range(1, p * v + 1)):
            verdict.fail(f"{call}: stages count from 0, like ranks and micro-batches")
        for stage in range(p * v):
            if flat.count(stage) != 1:
                verdict.fail(
                    f"{call}: stage {stage} is "
                    + ("on no rank" if stage not in flat else "there twice")
                    + f". There are {p * v} stages, 0 to {p * v - 1}"
                )
        if len(flat) > p * v:
            verdict.fail(f"{call} names a stage {flat[-1]}, but the last is {p * v - 1}")
        owner = {stage: r for r, row in enumerate(ranks) for stage in row}
        for stage in range(p * v):
            if owner[stage] == stage % p:
                continue
            text = f"{call}: stage {stage} is on rank {owner[stage]}, not on rank {stage % p}. "
            if all(owner[s] == s // v for s in owner):
                text += (
                    "With neighbouring stages on one rank a micro-batch comes by each rank once, "
                    "for all its chunks: a plain pipeline again, with its whole bubble"
                )
            elif stage == p and owner[stage] == p - 1:
                text += (
                    "That is a V, on which the way turns round at the last rank. Here the last "
                    "rank sends to the first, and every round goes the same way"
                )
            elif stage == 0:
                text += "A micro-batch starts on rank 0"
            else:
                text += (
                    f"A micro-batch comes from stage {stage - 1} on rank {owner[stage - 1]}, and "
                    "goes on to the next rank; after the last it comes back to the first"
                )
            verdict.fail(text)
        for r, row in enumerate(ranks):
            if list(row) != sorted(row):
                verdict.fail(
                    f"{call}: rank {r} has {list(row)}. Chunk 0 is the one that a micro-batch "
                    "comes to first"
                )
    verdict.expect(True, "every hop leads to the next rank, and from the last to the first", "", 1)


@exercise(points=2)
def bubble(verdict, answer):
    """`bubble(p, m, v)`: a rank's idle time, and the part of all time that it is."""
    idle = [
        (
            lambda p, m, v: 3 * (p - 1),
            "that is a plain pipeline's. To fill it, the last rank waits for p-1 chunks now, and "
            "a chunk takes 1/v of the time",
        ),
        (lambda p, m, v: (p - 1) / v, "that counts slots. One F and one B of a whole rank take 3"),
        (lambda p, m, v: 3 * p / v, "one hop too many: there are p-1 from the first to the last"),
        (
            lambda p, m, v: 3 * (p - 1) * v,
            "that grows with v. Look at the pictures: smaller pieces, shorter waits",
        ),
        (
            lambda p, m, v: 3 * (p * v - 1) / v,
            "that is the way through all p*v stages. When a micro-batch comes round again, the "
            "rank has long been at work: only p-1 hops are waited for",
        ),
        (
            lambda p, m, v: 3 * p * (p - 1) / v,
            "that is the idle time of all ranks together. Give one rank's",
        ),
        (
            lambda p, m, v: (p - 1) / (m * v + p - 1),
            "that is the bubble. The idle time comes first",
        ),
    ]
    part = [
        (lambda p, m, v: (p - 1) / (m + p - 1), "that is a plain pipeline's"),
        (
            lambda p, m, v: (p - 1) / (m + p - 1) / v,
            "the idle time is divided by v, its part is not: the whole row is shorter too",
        ),
        (lambda p, m, v: (p - 1) / (m * v), "that is idle over busy time. Divide by the whole row"),
        (lambda p, m, v: m * v / (m * v + p - 1), "that is the busy part"),
        (
            lambda p, m, v: 100 * (p - 1) / (m * v + p - 1),
            "that is in per cent: give a part, between 0 and 1",
        ),
        (
            lambda p, m, v: (p * v - 1) / (m + p * v - 1),
            "that is a plain pipeline with p*v ranks. There are p of them",
        ),
    ]
    sizes = _triples(verdict, [*SIZES, (4, 8, 1)])
    given = {size: _two(verdict, "bubble", answer(*size), *size) for size in sizes}
    for at, name, mistakes in ((0, "idle time", idle), (1, "bubble", part)):
        for p, m, v in sizes:
            trace = simulate(schedules.interleaved(p, m, v), COST.split(v))
            right = (trace.idle[0], trace.bubble)[at]
            if _same(given[p, m, v][at], right):
                continue
            known = _known({size: values[at] for size, values in given.items()}, mistakes)
            verdict.fail(
                f"p={p}, m={m}, v={v}: {name} {_show(given[p, m, v][at])}, but it is "
                f"{_show(right)}" + (f": {known}" if known else ". Count one row of a picture")
            )
        verdict.expect(True, f"{name}: as simulated, for {len(sizes)} sizes", "", points=1)


@exercise(points=2)
def tables(verdict, forward_table, backward_table):
    """`forward_table(m, v, group)` and `backward_table(m, v, group)`: (micro-batch, chunk)."""

    def rounds(m, group):
        return [range(a, min(a + group, m)) for a in range(0, m, group)]

    def padded(m, group):
        return [range(a, a + group) for a in range(0, m, group)]

    mistakes = [
        (
            lambda m, v, n: [(i, c) for i in range(m) for c in range(v)],
            "that sends one micro-batch through all chunks before the next one starts. It has to "
            "go round all ranks for each chunk, and meanwhile this rank would have nothing to do",
        ),
        (
            lambda m, v, n: [(i, c) for c in range(v) for i in range(m)],
            "that runs all micro-batches at one chunk before the next chunk (breadth first): "
            "take a group of them at a time",
        ),
        (
            lambda m, v, n: [(c, i) for g in rounds(m, n) for c in range(v) for i in g],
            "the micro-batch comes first, then the chunk",
        ),
        (
            lambda m, v, n: [(i, c) for g in rounds(m - m % n, n) for c in range(v) for i in g],
            "the last group is missing: it takes the micro-batches that are left",
        ),
        (
            lambda m, v, n: [(i, c) for g in padded(m, n) for c in range(v) for i in g],
            "the last group takes what is left, and no micro-batch that does not exist",
        ),
        (
            lambda m, v, n: [(i - g[0], c) for g in rounds(m, n) for c in range(v) for i in g],
            "each group starts at micro-batch 0 again: add the number of its first one",
        ),
    ]
    backwards = [
        (
            lambda m, v, n: [(i, c) for g in rounds(m, n) for c in range(v) for i in g],
            "that is the forward order. A backward comes to the last chunk first",
        ),
        (
            lambda m, v, n: [(i, c) for g in rounds(m, n) for c in range(v) for i in g][::-1],
            "that is the whole table turned round. Only the chunks are: micro-batch 0 came "
            "first, and the activations that it holds are the first to be freed",
        ),
        (
            lambda m, v, n: [(i, v - c) for g in rounds(m, n) for c in range(v) for i in g],
            "chunks count from 0, so the last one is v-1",
        ),
        (
            lambda m, v, n: [(i, c) for c in reversed(range(v)) for i in range(m)],
            "that runs all micro-batches at one chunk first: take a group of them at a time",
        ),
    ]
    cases = [(5, 2, 3), (4, 2, 2), (6, 3, 2), (4, 1, 4), (3, 2, 3), (7, 2, 3)]
    if verdict.random:
        draw = verdict.random.randint
        cases = [(draw(2, 9), draw(1, 4), draw(1, 4)) for _ in cases] + [(7, 3, 4)]
    for kind, name, answer, known in (
        ("F", "forward_table", forward_table, mistakes),
        ("B", "backward_table", backward_table, [*backwards, *mistakes]),
    ):
        try:
            given = {case: answer(*case) for case in cases}
        except NotImplementedError:
            if kind == "B":
                verdict.fail("backward_table is still to be written")
            raise
        for m, v, group in cases:
            call = f"{name}(m={m}, v={v}, group={group})"
            table = given[m, v, group]
            if not isinstance(table, (list, tuple)):
                verdict.fail(f"{call} gives {table!r}, not a list" + _missing_return(table))
            if len(table) == 2 != m * v and all(isinstance(row, (list, tuple)) for row in table):
                verdict.fail(f"{call}: give one list of pairs (micro-batch, chunk), not two lists")
            for entry in table:
                if not isinstance(entry, (list, tuple)) or len(entry) != 2:
                    verdict.fail(f"{call}: {entry!r} is not a pair (micro-batch, chunk)")
            # With one rank every group is legal, and stage c is chunk c.
            row = schedules.interleaved(1, m, v, group=min(group, m)).ranks[0]
            right = [(op.microbatch, op.stage) for op in row if op.kind == kind]
            table = [tuple(entry) for entry in table]
            if table == right:
                continue
            sentence = next(
                (
                    text
                    for wrong, text in known
                    if all(_pairs(given[case]) == wrong(*case) for case in cases)
                ),
                None,
            )
            at = next(
                (k for k, (a, b) in enumerate(zip(table, right, strict=False)) if a != b),
                min(len(table), len(right)),
            )
            there = f"{table[at]}" if at < len(table) else "nothing"
            wanted = f"{right[at]}" if at < len(right) else "nothing"
            verdict.fail(
                f"{call}: at position {at} stands {there}, but {wanted} comes there"
                + (f": {sentence}" if sentence else "")
            )
        verdict.expect(True, f"{name}: right for {len(cases)} sizes", "", points=1)


@exercise(points=2)
def warmup(verdict, answer):
    """`warmup(p, m, v, rank, k)`: forwards before the steady state."""
    mistakes = [
        (
            lambda p, m, v, r, k: k * (p - 1 - r) + (v - 1) * p,
            "there are only m*v forwards to run",
        ),
        (
            lambda p, m, v, r, k: min(k * (p - 1 - r), m * v),
            "that is enough for one chunk. Before micro-batch 0 comes to the last chunk, this "
            "rank runs v-1 whole groups",
        ),
        (
            lambda p, m, v, r, k: min(2 * (p - 1 - r) + (v - 1) * p, m * v),
            "that is always two for each later rank: take k",
        ),
        (
            lambda p, m, v, r, k: min(p - 1 - r + (v - 1) * p, m * v),
            "that is always one for each later rank: take k",
        ),
        (
            lambda p, m, v, r, k: min(k * (p - 1 - r) + v * p, m * v),
            "one group too many. In the last chunk the steady state has begun: v-1 groups",
        ),
        (
            lambda p, m, v, r, k: min(k * (p - 1 - r) + (v - 1) * m, m * v),
            "that waits for all micro-batches. Only a group of p runs at a chunk before the next",
        ),
        (
            lambda p, m, v, r, k: min(k * r + (v - 1) * p, m * v),
            "the other way round: the first rank waits longest for its first backward",
        ),
        (
            lambda p, m, v, r, k: min(k * (p - r) + (v - 1) * p, m * v),
            "k for each rank after this one, and after rank r come p-1-r",
        ),
        (
            lambda p, m, v, r, k: min(k * (p - 1 - r) + (v - 1) * p + 1, m * v),
            "the steady state starts with a forward: that one is not part of the warm-up",
        ),
        (
            lambda p, m, v, r, k: min(k * v * (p - 1 - r) + (v - 1) * p, m * v),
            "hops are hops: each later rank adds k forwards, of whichever chunk",
        ),
    ]
    sizes = _triples(verdict, SIZES)
    cases = [(p, m, v, r, k) for p, m, v in sizes for k in (1, 2) for r in range(p)]
    given = {case: answer(*case) for case in cases}
    for p, m, v, r, k in cases:
        call = _call("warmup", "p m v rank k", (p, m, v, r, k))
        value = verdict.number(call, given[p, m, v, r, k])
        row = interleaved_with(p, m, v, k).ranks[r]
        first = [op.kind for op in row].index("B")  # the steady state's first forward is before it
        right = {first - 1} if first < m * v else {m * v - 1, m * v}  # the two give the same order
        if value not in right:
            known = _known(given, mistakes)
            verdict.fail(
                f"{call} is {_show(value)}, but rank {r} runs {max(right)} forwards before the "
                "steady state" + (f": {known}" if known else _fate(p, m, v, k, r, value))
            )
    verdict.expect(True, f"right on every rank for {len(sizes)} sizes, k=1 and k=2", "", points=2)


def _fate(p, m, v, k, r, value):
    """What would become of a schedule with another warm-up on one rank."""
    if value != int(value) or value < 0:
        return ": a number of forwards is whole, and not negative"
    warmups = [k * (p - 1 - q) + (v - 1) * p for q in range(p)]
    warmups[r] = int(value)
    try:
        trace = simulate(_in_rounds("", p, m, v, [p] * (m // p), warmups), COST.split(v))
    except ScheduleError:
        return ". With yours the ranks wait for each other for ever"
    return (
        f". With yours it would hold {trace.peak_activations[r]} chunk activations, and the step "
        f"would take {_show(trace.makespan)}"
    )


@exercise(points=4)
def interleaved(verdict, answer):
    """`interleaved(p, m, v)`: interleaved 1F1B as a list of `Op` for each rank."""
    sizes = _triples(verdict, [(4, 8, 2), (2, 4, 2), (2, 6, 3), (4, 4, 2), (1, 3, 2), (4, 8, 1)])
    made = []
    for p, m, v in sizes:
        where = f"p={p}, m={m}, v={v}"
        verdict.reasons.append(("note", where))
        rows = _rows(verdict, f"interleaved({where})", answer(p, m, v), p, "ops")
        schedule = Schedule(f"interleaved v={v}, yours,", rows, loop(p, v), m)
        trace = simulate(schedule, COST.split(v))
        target = simulate(schedules.interleaved(p, m, v), COST.split(v))
        verdict.figure = over(trace, target)
        verdict.expect(
            trace.makespan <= target.makespan,
            f"makespan {_show(trace.makespan)}",
            f"makespan {_show(trace.makespan)}, but {_show(target.makespan)} is possible"
            + _why_slow(schedule, trace),
        )
        full = [r for r in range(p) if trace.peak_activations[r] > target.peak_activations[r]]
        if full:
            r = full[0]
            verdict.fail(
                f"rank {r} holds {trace.peak_activations[r]} chunk activations, but "
                f"{target.peak_activations[r]} are enough"
                + (
                    ". All of its forwards run before its first backward: that is breadth first. "
                    "Alternate after the warm-up"
                    if trace.peak_activations[r] == m * v
                    else ": is its warm-up too long?"
                )
            )
        del verdict.reasons[-2:]
        made.append((schedule, target))
    verdict.expect(
        True,
        f"legal, as fast as Megatron's order and in as little memory, for {len(sizes)} sizes",
        "",
        points=2,
    )
    for (p, m, v), (schedule, target) in list(zip(sizes, made, strict=True))[:2]:
        lab = Lab(p * v, m, seed=verdict.seed(p))
        run = lab.run(schedule, cost=COST.split(v))
        verdict.figure = over(run.trace, target)
        verdict.agree(
            lab,
            run,
            points=1,
            makespan=target.makespan,
            peak=target.peak_activations,
            messages=target.schedule.messages,
        )


def _why_slow(schedule, trace):
    """The most likely reason, from where the time is lost."""
    if all([op.kind for op in row][1:2] == ["B"] for row in schedule.ranks):
        return ". Each rank runs a backward after its first forward: where is the warm-up?"
    rows = [[op.microbatch for op in row if op.kind == "F"] for row in schedule.ranks]
    v = schedule.stages // schedule.p
    if v > 1 and schedule.p > 1 and all(row[:v] == [0] * v for row in rows):
        return (
            ". Micro-batch 0 runs through all chunks first, and each time it has to go round all "
            "ranks: send a group of p in before the next chunk"
        )
    if schedule.p > 1 and len({[op.kind for op in row].index("B") for row in schedule.ranks}) == 1:
        return (
            ". All ranks have the same warm-up: a later rank's gradients come back sooner, so it "
            "needs fewer forwards first"
        )
    r = max(range(schedule.p), key=lambda r: trace.idle[r])
    gaps = [b.start for a, b in zip(trace.ranks[r], trace.ranks[r][1:], strict=False)
            if b.start > a.end]  # fmt: skip
    return f": {trace.why_idle(r, gaps[0] - Fraction(1, 100))}" if gaps else ""


@exercise(points=2)
def price(verdict, answer):
    """`price(p, m, v)`: messages of a step, and chunk activations on the first rank."""
    messages = [
        (
            lambda p, m, v: 2 * m * (p - 1) * v,
            "that is v times 1F1B's. But between two chunks a micro-batch also goes from the "
            "last rank back to the first: count the boundaries between p*v stages",
        ),
        (lambda p, m, v: 2 * m * p * v, "between p*v stages there are p*v - 1 boundaries"),
        (lambda p, m, v: m * (p * v - 1), "gradients are sent too, the same way back"),
        (
            lambda p, m, v: 2 * m * (p - 1),
            "that is 1F1B's. Count the boundaries between p*v stages",
        ),
        (lambda p, m, v: 2 * (p * v - 1), "that is one micro-batch's"),
    ]
    chunks = [
        (
            lambda p, m, v: 2 * (p - 1) + (v - 1) * p + 1,
            "there are only m*v forwards whose activations it can hold",
        ),
        (
            lambda p, m, v: min(2 * (p - 1) + (v - 1) * p, m * v),
            "that is the warm-up. The steady state starts with one more forward",
        ),
        (
            lambda p, m, v: min(p * v, m * v),
            "that is p ranks' worth, as in 1F1B, and enough for k=1. Megatron's warm-up has k=2",
        ),
        (lambda p, m, v: p + (p - 1) / v, "that is in whole ranks' worth: count chunks, v of them"),
        (lambda p, m, v: m * v, "that is all of them, as in GPipe or breadth first"),
        (lambda p, m, v: p, "that is 1F1B's. Take the warm-up of exercise 4, and one more"),
    ]
    sizes = _triples(verdict, SIZES)
    given = {size: _two(verdict, "price", answer(*size), *size) for size in sizes}
    for at, name, mistakes in ((0, "messages", messages), (1, "chunks on rank 0", chunks)):
        for p, m, v in sizes:
            schedule = schedules.interleaved(p, m, v)
            right = (schedule.messages, simulate(schedule, COST).peak_activations[0])[at]
            if given[p, m, v][at] == right:
                continue
            known = _known({size: pair[at] for size, pair in given.items()}, mistakes)
            verdict.fail(
                f"p={p}, m={m}, v={v}: {name} {_show(given[p, m, v][at])}, but it is {right}"
                + (f": {known}" if known else "")
            )
        verdict.reasons.append(("yes", f"{name}: right for {len(sizes)} sizes"))
    (p, m, v), *_ = _triples(verdict, [(4, 8, 2)])
    run = Lab(p * v, m).run(schedules.interleaved(p, m, v))
    counted = sum(run.messages), run.peak_activations[0]
    verdict.expect(
        tuple(answer(p, m, v)) == counted,
        f"p={p}, m={m}, v={v}: {counted[0]} messages and {counted[1]} chunks, as counted on real "
        "ranks",
        f"p={p}, m={m}, v={v}: the ranks counted {counted}",
        points=2,
    )


@exercise(points=2)
def choose(verdict, answer):
    """`choose(p, m, v, c)`: the fastest k of 1, 2, 3; of those, the one with least memory."""
    cases = [
        (4, 8, 2, 0),
        (4, 8, 2, Fraction(1, 8)),
        (3, 6, 2, Fraction(1, 2)),
        (2, 4, 2, Fraction(3, 2)),
        (4, 4, 2, Fraction(3, 2)),
        (2, 6, 3, 0),
        (5, 10, 2, 1),
    ]
    if verdict.random:
        draw = verdict.random
        for _ in range(6):
            p, v = draw.randint(2, 5), draw.randint(2, 3)
            c = draw.choice([0, Fraction(1, 8), Fraction(1, 2), 1, Fraction(3, 2), 2])
            cases.append((p, p * draw.randint(1, 3), v, c))
    for p, m, v, c in cases:
        call = f"choose(p={p}, m={m}, v={v}, c={_show(c)})"
        value = verdict.number(call, answer(p, m, v, c))
        if value not in (1, 2, 3):
            verdict.fail(f"{call} gives {_show(value)}: k is 1, 2 or 3")
        found = {}
        for k in (1, 2, 3):
            try:
                trace = simulate(interleaved_with(p, m, v, k), Cost(F=1, B=2, comm=c).split(v))
                found[k] = trace.makespan, trace.peak_activations[0]
            except ScheduleError:
                continue
        best = min(found, key=found.get)
        if value not in found:
            verdict.fail(f"{call} gives {value}, but with k={value} the ranks deadlock; k={best}")
        if found[value] == found[best]:
            continue
        (yours, held), (fastest, enough) = found[value], found[best]
        verdict.fail(
            f"{call} gives {value}, with makespan {_show(yours)} and {held} chunks on rank 0. "
            + (
                f"k={best} takes {_show(fastest)}: a message is on its way for {_show(c)}, and "
                "each rank needs more forwards in hand to work meanwhile"
                if fastest < yours
                else f"k={best} is as fast and holds {enough}"
            )
        )
    verdict.expect(True, f"the best k in all of {len(cases)} cases", "", points=2)


RULES = {"small": "is smaller than", "large": "is larger than", "rest": "leaves a last round"}


@exercise(points=2)
def refused(verdict, answer):
    """`refused(p, m, group)`: None, or which of Megatron's rules a group breaks."""
    cases = [(p, m, n) for p in (4, 3, 1) for m in (8, 6, 10, 2) for n in range(1, m + 2)]
    if verdict.random:
        draw = verdict.random.randint
        for _ in range(40):
            m = draw(1, 16)
            cases.append((draw(1, 6), m, draw(1, m + 2)))
    for p, m, group in cases:
        call = f"refused(p={p}, m={m}, group={group})"
        value, right = answer(p, m, group), _rule(p, m, group)
        if value is not None and value not in tuple(RULES):
            verdict.fail(f"{call} gives {value!r}: give None, {', '.join(map(repr, RULES))}")
        if value == right:
            continue
        rest = m % group
        why = {
            "small": f"a rank would turn to its next chunk before micro-batch 0 has been through "
            f"all {p} ranks",
            "large": f"there are not that many micro-batches. And {group} is not smaller than {p}",
            "rest": f"the last round would have {rest} micro-batches for {p} ranks",
            None: f"the last round has {rest} micro-batches for {p} ranks, which is enough"
            if rest
            else f"{m} micro-batches make whole rounds of {group}",
        }[right]
        if right in ("small", "rest"):
            why += _lost(p, m, group)
        if (value, right) == ("large", "small"):
            why = "it breaks both rules, and the first one counts"
        verdict.fail(f"{call} gives {value!r}, Megatron says {right!r}: {why}")
    verdict.expect(True, f"as Megatron decides, in all of {len(cases)} cases", "", points=2)


def _rule(p, m, group):
    """Which rule of Megatron's a group breaks."""
    try:
        schedules.interleaved(p, m, 2, group=group)
    except ScheduleError as error:
        return next(rule for rule, words in RULES.items() if words in error.reason)
    return None


def _lost(p, m, group):
    """What becomes of two chunks per rank with a group that Megatron refuses."""
    try:
        refused = simulate(interleaved_with(p, m, 2, group=group), COST.split(2)).makespan
    except ScheduleError:
        return ". The ranks would wait for each other for ever"
    best = simulate(schedules.interleaved(p, m, 2), COST.split(2)).makespan
    return f". It would take {_show(refused)}, and {_show(best)} is possible" * (refused > best)


@exercise(points=2)
def rounds(verdict, answer):
    """`rounds(p, m)`: the sizes of rounds that lose no time and hold no more than they must."""
    sizes = verdict.sizes([(4, 10), (4, 6), (4, 8), (3, 7), (4, 9), (4, 3), (2, 9), (1, 3)])
    for number, (p, m) in enumerate(sizes):
        call = f"rounds(p={p}, m={m})"
        value = answer(p, m)
        if not isinstance(value, (list, tuple)):
            verdict.fail(f"{call} gives {value!r}, not a list" + _missing_return(value))
        if not value or any(
            isinstance(n, bool) or not isinstance(n, Integral) or n < 1 for n in value
        ):
            verdict.fail(f"{call} gives {value!r}: a round is a whole number, at least 1")
        if sum(value) != m:
            verdict.fail(f"{call} gives {list(value)}: {sum(value)} micro-batches, not {m}")
        target = simulate(schedules.interleaved(p, m, 2), COST.split(2))
        schedule, text = interleaved_with(p, m, 2, rounds=list(value)), f"{call}: {list(value)} "
        short = min(value) < min(p, m)
        try:
            trace = simulate(schedule, COST.split(2))
        except ScheduleError:
            verdict.fail(
                text
                + "deadlocks. "
                + (
                    f"A round of {min(value)} is shorter than p={p}"
                    if short and list(value) == sorted(value, reverse=True)
                    else "The warm-up is as long as the first round makes it, and too short for a "
                    "longer one that follows: the larger rounds first"
                )
            )
        if trace.makespan > target.makespan:
            verdict.figure = over(trace, target)
            verdict.fail(
                f"{text}takes {_show(trace.makespan)}, and {_show(target.makespan)} is possible"
                + (f": a round of {min(value)} cannot fill {p} ranks" if short else "")
            )
        if trace.peak_activations[0] > target.peak_activations[0]:
            verdict.fail(
                f"{text}is as fast as can be, but rank 0 holds {trace.peak_activations[0]} chunks, "
                f"and {target.peak_activations[0]} are enough: the first round is "
                f"{value[0]} long, and need not be"
            )
        verdict.reasons.append(("yes", f"{text}takes {_show(trace.makespan)}"))
        if number == 0:
            lab = Lab(2 * p, m, seed=verdict.seed(0))
            run = lab.run(schedule, cost=COST.split(2))
            verdict.agree(lab, run, points=0, makespan=target.makespan)
    verdict.points += 2


def _triples(verdict, visible):
    """(p, m, v) with m a multiple of p: these, or hidden ones of their kind."""
    draw = verdict.random
    if draw is None:
        return visible
    hidden = []
    for p, m, v in visible:
        q = 1 if p == 1 else draw.randint(max(2, p - 1), p + 1)
        rounds = 1 if m == p > 1 else draw.randint(2, max(2, m // p) + 1)
        hidden.append((q, q * rounds, 1 if v == 1 else draw.randint(2, 4)))
    return hidden


def _drawn(verdict, visible):
    """Pairs (p, v), or hidden ones of their kind."""
    draw = verdict.random
    if draw is None:
        return visible
    return [(p if p == 1 else draw.randint(2, 6), v if v == 1 else draw.randint(2, 5))
            for p, v in visible]  # fmt: skip


def _rows(verdict, call, rows, p, what):
    """A list for each of p ranks, or the sentence that says what it is instead."""
    if not isinstance(rows, (list, tuple)) or not all(
        isinstance(row, (list, tuple)) and not isinstance(row, Op) for row in rows
    ):
        verdict.fail(f"{call} gives {str(rows)[:80]}, not a list of {what} for each rank"
                     + _missing_return(rows))  # fmt: skip
    if len(rows) != p:
        verdict.fail(f"{call} has lists for {len(rows)} ranks, not for {p}")
    return rows


def _two(verdict, name, value, p, m, v):
    """A pair of numbers."""
    call = _call(name, "p m v", (p, m, v))
    if not isinstance(value, (list, tuple)) or len(value) != 2:
        verdict.fail(f"{call} gives {value!r}: give two numbers" + _missing_return(value))
    return tuple(verdict.number(call, x) for x in value)


def _missing_return(value):
    return ": is a return missing?" if value is None else ""


def _call(name, arguments, values):
    return (
        f"{name}({', '.join(f'{a}={x}' for a, x in zip(arguments.split(), values, strict=True))})"
    )


def _known(given, mistakes):
    """The sentence for the first known mistake that gives what was given, in every case."""
    for wrong, sentence in mistakes:
        if all(isinstance(x, Real) and _same(x, wrong(*case)) for case, x in given.items()):
            return sentence
    return None


def _same(a, b):
    return abs(a - b) < 1e-9


def _pairs(table):
    """A table as a list of tuples, if it is one."""
    good = isinstance(table, (list, tuple)) and all(isinstance(e, (list, tuple)) for e in table)
    return [tuple(entry) for entry in table] if good else None


def _show(value):
    return f"{float(value):.6g}"
