"""The checks of labs/02_interleaved.ipynb. Each takes the learner's functions, gives a `Score`."""

from fractions import Fraction
from functools import partial
from numbers import Integral

from ..run import Lab
from ..schedule import Cost, Schedule, ScheduleError, loop, schedules, simulate
from ..schedule.op import ops
from .exercise import exercise, over
from .forms import numbers, recognised, rows, within
from .words import because, call, missing, short, show

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
    for p, v in _pairs(verdict, [(2, 2), (4, 2), (3, 3), (4, 1), (1, 3)]):
        asked = call("stages_of", "p v", (p, v))
        ranks = rows(verdict, asked, answer(p, v), p, "stages")
        for r, row in enumerate(ranks):
            for stage in row:
                if isinstance(stage, bool) or not isinstance(stage, Integral):
                    verdict.fail(f"{asked} gives {short(stage)} on rank {r}: a stage is a number")
        flat = sorted(stage for row in ranks for stage in row)
        if flat == list(range(1, p * v + 1)):
            verdict.fail(f"{asked}: stages count from 0, like ranks and micro-batches")
        for stage in range(p * v):
            if flat.count(stage) != 1:
                verdict.fail(
                    f"{asked}: stage {stage} is "
                    + ("on no rank" if stage not in flat else "there twice")
                    + f". There are {p * v} stages, 0 to {p * v - 1}"
                )
        if len(flat) > p * v:
            verdict.fail(f"{asked} names a stage {flat[-1]}, but the last is {p * v - 1}")
        owner = {stage: r for r, row in enumerate(ranks) for stage in row}
        for stage in range(p * v):
            if owner[stage] != stage % p:
                verdict.fail(
                    f"{asked}: stage {stage} is on rank {owner[stage]}, not on rank {stage % p}. "
                    + _why_not_there(stage, owner, p, v)
                )
        for r, row in enumerate(ranks):
            if list(row) != sorted(row):
                verdict.fail(
                    f"{asked}: rank {r} has {list(row)}. Chunk 0 is the one that a micro-batch "
                    "comes to first"
                )
    verdict.expect(True, "every hop leads to the next rank, and from the last to the first", "", 1)


def _why_not_there(stage, owner, p, v):
    """What is wrong with the first stage that is on another rank than stage % p."""
    if all(owner[s] == s // v for s in owner):
        return (
            "With neighbouring stages on one rank a micro-batch comes by each rank once, for all "
            "its chunks: a plain pipeline again, with its whole bubble"
        )
    if stage == p and owner[stage] == p - 1:
        return (
            "That is a V, on which the way turns round at the last rank. Here the last rank sends "
            "to the first, and every round goes the same way"
        )
    if stage == 0:
        return "A micro-batch starts on rank 0"
    return (
        f"A micro-batch comes from stage {stage - 1} on rank {owner[stage - 1]}, and goes on to "
        "the next rank; after the last it comes back to the first"
    )


@exercise(points=2)
def bubble(verdict, answer):
    """`bubble(p, m, v)`: a rank's idle time, and the part of all time that it is."""
    idle = [
        (lambda p, m, v: 3 * (p - 1),
         "that is a plain pipeline's. To fill it, the last rank waits for p-1 chunks now, and a "
         "chunk takes 1/v of the time"),
        (lambda p, m, v: (p - 1) / v, "that counts slots. One F and one B of a whole rank take 3"),
        (lambda p, m, v: 3 * p / v, "one hop too many: there are p-1 from the first to the last"),
        (lambda p, m, v: 3 * (p - 1) * v,
         "that grows with v. Look at the pictures: smaller pieces, shorter waits"),
        (lambda p, m, v: 3 * (p * v - 1) / v,
         "that is the way through all p*v stages. When a micro-batch comes round again, the rank "
         "has long been at work: only p-1 hops are waited for"),
        (lambda p, m, v: 3 * p * (p - 1) / v,
         "that is the idle time of all ranks together. Give one rank's"),
        (lambda p, m, v: (p - 1) / (m * v + p - 1),
         "that is the bubble. The idle time comes first"),
    ]  # fmt: skip
    part = [
        (lambda p, m, v: (p - 1) / (m + p - 1), "that is a plain pipeline's"),
        (lambda p, m, v: (p - 1) / (m + p - 1) / v,
         "the idle time is divided by v, its part is not: the whole row is shorter too"),
        (lambda p, m, v: (p - 1) / (m * v), "that is idle over busy time. Divide by the whole row"),
        (lambda p, m, v: m * v / (m * v + p - 1), "that is the busy part"),
        (lambda p, m, v: 100 * (p - 1) / (m * v + p - 1),
         "that is in per cent: give a part, between 0 and 1"),
        (lambda p, m, v: (p * v - 1) / (m + p * v - 1),
         "that is a plain pipeline with p*v ranks. There are p of them"),
    ]  # fmt: skip
    sizes = _triples(verdict, [*SIZES, (4, 8, 1)])
    traces = {(p, m, v): simulate(schedules.interleaved(p, m, v), COST.split(v))
              for p, m, v in sizes}  # fmt: skip
    right = {size: (trace.idle[0], trace.bubble) for size, trace in traces.items()}
    given = {size: _two(verdict, "bubble", answer(*size), size) for size in sizes}
    for at, name, mistakes in ((0, "idle time", idle), (1, "bubble", part)):
        _each(verdict, "bubble", name, given, right, at, mistakes, near=1e-9,
              otherwise=". Count one row of a picture")  # fmt: skip
        verdict.expect(True, f"{name}: as simulated, for {len(sizes)} sizes", "", points=1)


@exercise(points=2)
def tables(verdict, forward_table, backward_table):
    """`forward_table(m, v, group)` and `backward_table(m, v, group)`: (micro-batch, chunk)."""

    def rounds(m, group):
        return [range(a, min(a + group, m)) for a in range(0, m, group)]

    def padded(m, group):
        return [range(a, a + group) for a in range(0, m, group)]

    mistakes = [
        (lambda m, v, n: [(i, c) for i in range(m) for c in range(v)],
         "that sends one micro-batch through all chunks before the next one starts. It has to go "
         "round all ranks for each chunk, and meanwhile this rank would have nothing to do"),
        (lambda m, v, n: [(i, c) for c in range(v) for i in range(m)],
         "that runs all micro-batches at one chunk before the next chunk (breadth first): take a "
         "group of them at a time"),
        (lambda m, v, n: [(c, i) for g in rounds(m, n) for c in range(v) for i in g],
         "the micro-batch comes first, then the chunk"),
        (lambda m, v, n: [(i, c) for g in rounds(m - m % n, n) for c in range(v) for i in g],
         "the last group is missing: it takes the micro-batches that are left"),
        (lambda m, v, n: [(i, c) for g in padded(m, n) for c in range(v) for i in g],
         "the last group takes what is left, and no micro-batch that does not exist"),
        (lambda m, v, n: [(i - g[0], c) for g in rounds(m, n) for c in range(v) for i in g],
         "each group starts at micro-batch 0 again: add the number of its first one"),
    ]  # fmt: skip
    backwards = [
        (lambda m, v, n: [(i, c) for g in rounds(m, n) for c in range(v) for i in g],
         "that is the forward order. A backward comes to the last chunk first"),
        (lambda m, v, n: [(i, c) for g in rounds(m, n) for c in range(v) for i in g][::-1],
         "that is the whole table turned round. Only the chunks are: micro-batch 0 came first, "
         "and the activations that it holds are the first to be freed"),
        (lambda m, v, n: [(i, v - c) for g in rounds(m, n) for c in range(v) for i in g],
         "chunks count from 0, so the last one is v-1"),
        (lambda m, v, n: [(i, c) for c in reversed(range(v)) for i in range(m)],
         "that runs all micro-batches at one chunk first: take a group of them at a time"),
    ]  # fmt: skip
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
            asked = call(name, "m v group", (m, v, group))
            table = _table(verdict, asked, given[m, v, group], m * v)
            # With one rank every group is legal, and stage c is chunk c.
            row = schedules.interleaved(1, m, v, group=min(group, m)).ranks[0]
            right = [(op.microbatch, op.stage) for op in row if op.kind == kind]
            if table == right:
                continue
            at = next(
                (k for k, (a, b) in enumerate(zip(table, right, strict=False)) if a != b),
                min(len(table), len(right)),
            )
            there = f"{table[at]}" if at < len(table) else "nothing"
            wanted = f"{right[at]}" if at < len(right) else "nothing"
            verdict.fail(
                f"{asked}: at position {at} stands {there}, but {wanted} comes there"
                + because(recognised(given, known))
            )
        verdict.expect(True, f"{name}: right for {len(cases)} sizes", "", points=1)


def _table(verdict, asked, table, size):
    """A list of pairs, as such, or the check ends with what it is instead."""
    if not isinstance(table, (list, tuple)):
        verdict.fail(f"{asked} gives {short(table)}, not a list{missing(table)}")
    if len(table) == 2 != size and all(isinstance(row, (list, tuple)) for row in table):
        verdict.fail(f"{asked}: give one list of pairs (micro-batch, chunk), not two lists")
    for entry in table:
        if not isinstance(entry, (list, tuple)) or len(entry) != 2:
            verdict.fail(f"{asked}: {short(entry)} is not a pair (micro-batch, chunk)")
    return [tuple(entry) for entry in table]


@exercise(points=2)
def warmup(verdict, answer):
    """`warmup(p, m, v, rank, k)`: forwards before the steady state."""
    mistakes = [
        (lambda p, m, v, r, k: k * (p - 1 - r) + (v - 1) * p, "there are only m*v forwards to run"),
        (lambda p, m, v, r, k: min(k * (p - 1 - r), m * v),
         "that is enough for one chunk. Before micro-batch 0 comes to the last chunk, this rank "
         "runs v-1 whole groups"),
        (lambda p, m, v, r, k: min(2 * (p - 1 - r) + (v - 1) * p, m * v),
         "that is always two for each later rank: take k"),
        (lambda p, m, v, r, k: min(p - 1 - r + (v - 1) * p, m * v),
         "that is always one for each later rank: take k"),
        (lambda p, m, v, r, k: min(k * (p - 1 - r) + v * p, m * v),
         "one group too many. In the last chunk the steady state has begun: v-1 groups"),
        (lambda p, m, v, r, k: min(k * (p - 1 - r) + (v - 1) * m, m * v),
         "that waits for all micro-batches. Only a group of p runs at a chunk before the next"),
        (lambda p, m, v, r, k: min(k * r + (v - 1) * p, m * v),
         "the other way round: the first rank waits longest for its first backward"),
        (lambda p, m, v, r, k: min(k * (p - r) + (v - 1) * p, m * v),
         "k for each rank after this one, and after rank r come p-1-r"),
        (lambda p, m, v, r, k: min(k * (p - 1 - r) + (v - 1) * p + 1, m * v),
         "the steady state starts with a forward: that one is not part of the warm-up"),
        (lambda p, m, v, r, k: min(k * v * (p - 1 - r) + (v - 1) * p, m * v),
         "hops are hops: each later rank adds k forwards, of whichever chunk"),
    ]  # fmt: skip
    sizes = _triples(verdict, SIZES)
    cases = [(p, m, v, r, k) for p, m, v in sizes for k in (1, 2) for r in range(p)]
    given = {case: answer(*case) for case in cases}
    for p, m, v, r, k in cases:
        asked = call("warmup", "p m v rank k", (p, m, v, r, k))
        value = verdict.number(asked, given[p, m, v, r, k])
        row = interleaved_with(p, m, v, k).ranks[r]
        first = [op.kind for op in row].index("B")  # the steady state's first forward is before it
        right = {first - 1} if first < m * v else {m * v - 1, m * v}  # the two give the same order
        if value not in right:
            known = recognised(given, mistakes)
            verdict.fail(
                f"{asked} is {show(value)}, but rank {r} runs {max(right)} forwards before the "
                "steady state" + (because(known) or _fate(p, m, v, k, r, value))
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
        f"would take {show(trace.makespan)}"
    )


@exercise(points=4)
def interleaved(verdict, answer):
    """`interleaved(p, m, v)`: interleaved 1F1B as a list of `Op` for each rank."""
    sizes = _triples(verdict, [(4, 8, 2), (2, 4, 2), (2, 6, 3), (4, 4, 2), (1, 3, 2), (4, 8, 1)])
    made = []
    for p, m, v in sizes:
        where = f"p={p}, m={m}, v={v}"
        verdict.reasons.append(("note", where))
        lists = rows(verdict, f"interleaved({where})", answer(p, m, v), p)
        schedule = Schedule(f"interleaved v={v}, yours,", lists, loop(p, v), m)
        trace = simulate(schedule, COST.split(v))
        target = simulate(schedules.interleaved(p, m, v), COST.split(v))
        verdict.figure = over(trace, target)
        fast = f"makespan {show(trace.makespan)}"
        within(verdict, trace, target, slow=_slow, full=partial(_full, m * v), fast=fast)
        del verdict.reasons[-2:]
        made.append((trace, target))
    verdict.expect(
        True,
        f"legal, as fast as Megatron's order and in as little memory, for {len(sizes)} sizes",
        "",
        points=2,
    )
    verdict.figure = over(*made[0])

    def confirm():
        for (p, m, v), (trace, target) in list(zip(sizes, made, strict=True))[:2]:
            lab = Lab(p * v, m, seed=verdict.seed(p))
            run = lab.run(trace.schedule, cost=COST.split(v))
            verdict.figure = over(run.trace, target)
            verdict.agree(
                lab,
                run,
                points=1,
                makespan=target.makespan,
                peak=target.peak_activations,
                messages=target.schedule.messages,
            )

    verdict.on_ranks(2, confirm)


def _slow(trace, target):
    text = f"makespan {show(trace.makespan)}, but {show(target.makespan)} is possible"
    return text + _why_slow(trace.schedule, trace)


def _full(forwards, rank, held, enough):
    text = f"rank {rank} holds {held} chunk activations, but {enough} are enough"
    if held != forwards:
        return f"{text}: is its warm-up too long?"
    return (
        f"{text}. All of its forwards run before its first backward: that is breadth first. "
        "Alternate after the warm-up"
    )


def _why_slow(schedule, trace):
    """The most likely reason, from where the time is lost."""
    if all([op.kind for op in row][1:2] == ["B"] for row in schedule.ranks):
        return ". Each rank runs a backward after its first forward: where is the warm-up?"
    forwards = [[op.microbatch for op in row if op.kind == "F"] for row in schedule.ranks]
    v = schedule.stages // schedule.p
    if v > 1 and schedule.p > 1 and all(row[:v] == [0] * v for row in forwards):
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
        (lambda p, m, v: 2 * m * (p - 1) * v,
         "that is v times 1F1B's. But between two chunks a micro-batch also goes from the last "
         "rank back to the first: count the boundaries between p*v stages"),
        (lambda p, m, v: 2 * m * p * v, "between p*v stages there are p*v - 1 boundaries"),
        (lambda p, m, v: m * (p * v - 1), "gradients are sent too, the same way back"),
        (lambda p, m, v: 2 * m * (p - 1),
         "that is 1F1B's. Count the boundaries between p*v stages"),
        (lambda p, m, v: 2 * (p * v - 1), "that is one micro-batch's"),
    ]  # fmt: skip
    chunks = [
        (lambda p, m, v: 2 * (p - 1) + (v - 1) * p + 1,
         "there are only m*v forwards whose activations it can hold"),
        (lambda p, m, v: min(2 * (p - 1) + (v - 1) * p, m * v),
         "that is the warm-up. The steady state starts with one more forward"),
        (lambda p, m, v: min(p * v, m * v),
         "that is p ranks' worth, as in 1F1B, and enough for k=1. Megatron's warm-up has k=2"),
        (lambda p, m, v: p + (p - 1) / v, "that is in whole ranks' worth: count chunks, v of them"),
        (lambda p, m, v: m * v, "that is all of them, as in GPipe or breadth first"),
        (lambda p, m, v: p, "that is 1F1B's. Take the warm-up of exercise 4, and one more"),
    ]  # fmt: skip
    sizes, (run_size,) = _triples(verdict, SIZES), _triples(verdict, [(4, 8, 2)])
    right = {}
    for p, m, v in [*sizes, run_size]:
        schedule = schedules.interleaved(p, m, v)
        right[p, m, v] = schedule.messages, simulate(schedule, COST).peak_activations[0]
    given = {size: _two(verdict, "price", answer(*size), size) for size in right}
    for at, name, mistakes in ((0, "messages", messages), (1, "chunks on rank 0", chunks)):
        _each(verdict, "price", name, given, right, at, mistakes, near=0)
        verdict.reasons.append(("yes", f"{name}: right for {len(sizes)} sizes"))

    def confirm():
        p, m, v = run_size
        run = Lab(p * v, m).run(schedules.interleaved(p, m, v))
        counted = sum(run.messages), run.peak_activations[0]
        verdict.expect(
            tuple(answer(p, m, v)) == counted,
            f"p={p}, m={m}, v={v}: {counted[0]} messages and {counted[1]} chunks, as counted on "
            "real ranks",
            f"p={p}, m={m}, v={v}: the ranks counted {counted}",
            points=2,
        )

    verdict.on_ranks(2, confirm)


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
        asked = call("choose", "p m v c", (p, m, v, show(c)))
        value = verdict.number(asked, answer(p, m, v, c))
        if value not in (1, 2, 3):
            verdict.fail(f"{asked} gives {show(value)}: k is 1, 2 or 3")
        found = {}
        for k in (1, 2, 3):
            try:
                trace = simulate(interleaved_with(p, m, v, k), Cost(F=1, B=2, comm=c).split(v))
                found[k] = trace.makespan, trace.peak_activations[0]
            except ScheduleError:
                continue
        best = min(found, key=found.get)
        if value not in found:
            verdict.fail(f"{asked} gives {value}, but with k={value} the ranks deadlock; k={best}")
        if found[value] == found[best]:
            continue
        (yours, held), (fastest, enough) = found[value], found[best]
        verdict.fail(
            f"{asked} gives {value}, with makespan {show(yours)} and {held} chunks on rank 0. "
            + (
                f"k={best} takes {show(fastest)}: a message is on its way for {show(c)}, and "
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
        asked = call("refused", "p m group", (p, m, group))
        value, right = answer(p, m, group), _rule(p, m, group)
        if value is not None and value not in tuple(RULES):
            verdict.fail(f"{asked} gives {short(value)}: give None, {', '.join(map(repr, RULES))}")
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
        verdict.fail(f"{asked} gives {value!r}, Megatron says {right!r}: {why}")
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
    return f". It would take {show(refused)}, and {show(best)} is possible" * (refused > best)


@exercise(points=2)
def rounds(verdict, answer):
    """`rounds(p, m)`: the sizes of rounds that lose no time and hold no more than they must."""
    sizes = verdict.sizes([(4, 10), (4, 6), (4, 8), (3, 7), (4, 9), (4, 3), (2, 9), (1, 3)])
    made = []
    for p, m in sizes:
        asked = call("rounds", "p m", (p, m))
        value = answer(p, m)
        if not isinstance(value, (list, tuple)):
            verdict.fail(f"{asked} gives {short(value)}, not a list{missing(value)}")
        if not value or any(
            isinstance(n, bool) or not isinstance(n, Integral) or n < 1 for n in value
        ):
            verdict.fail(f"{asked} gives {short(value)}: a round is a whole number, at least 1")
        if sum(value) != m:
            verdict.fail(f"{asked} gives {list(value)}: {sum(value)} micro-batches, not {m}")
        target = simulate(schedules.interleaved(p, m, 2), COST.split(2))
        schedule, text = interleaved_with(p, m, 2, rounds=list(value)), f"{asked}: {list(value)} "
        too_short = min(value) < min(p, m)
        try:
            trace = simulate(schedule, COST.split(2))
        except ScheduleError:
            verdict.fail(
                text
                + "deadlocks. "
                + (
                    f"A round of {min(value)} is shorter than p={p}"
                    if too_short and list(value) == sorted(value, reverse=True)
                    else "The warm-up is as long as the first round makes it, and too short for a "
                    "longer one that follows: the larger rounds first"
                )
            )
        if trace.makespan > target.makespan:
            verdict.figure = over(trace, target)
            verdict.fail(
                f"{text}takes {show(trace.makespan)}, and {show(target.makespan)} is possible"
                + (f": a round of {min(value)} cannot fill {p} ranks" if too_short else "")
            )
        if trace.peak_activations[0] > target.peak_activations[0]:
            verdict.fail(
                f"{text}is as fast as can be, but rank 0 holds {trace.peak_activations[0]} chunks, "
                f"and {target.peak_activations[0]} are enough: the first round is "
                f"{value[0]} long, and need not be"
            )
        verdict.reasons.append(("yes", f"{text}takes {show(trace.makespan)}"))
        made.append((schedule, target))

    def confirm():
        (p, m), (schedule, target) = sizes[0], made[0]
        lab = Lab(2 * p, m, seed=verdict.seed(0))
        verdict.agree(lab, lab.run(schedule, cost=COST.split(2)), 2, makespan=target.makespan)

    verdict.on_ranks(2, confirm)


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


def _pairs(verdict, visible):
    """Pairs (p, v), or hidden ones of their kind."""
    draw = verdict.random
    if draw is None:
        return visible
    return [(p if p == 1 else draw.randint(2, 6), v if v == 1 else draw.randint(2, 5))
            for p, v in visible]  # fmt: skip


def _two(verdict, name, value, size):
    """A pair of numbers."""
    asked = call(name, "p m v", size)
    if not isinstance(value, (list, tuple)) or len(value) != 2:
        verdict.fail(f"{asked} gives {short(value)}: give two numbers{missing(value)}")
    return tuple(verdict.number(asked, x) for x in value)


def _each(verdict, name, what, given, right, at, mistakes, near, otherwise=""):
    """The numbers at one place of the pairs that were given, and of the right ones."""

    def wrong(size, value, wanted):
        p, m, v = size
        return f"p={p}, m={m}, v={v}: {what} {show(value)}, but it is {show(wanted)}"

    numbers(
        verdict,
        lambda *size: given[size][at],
        given,
        call=lambda *size: call(name, "p m v", size),
        right=lambda *size: right[size][at],
        wrong=wrong,
        mistakes=mistakes,
        otherwise=otherwise,
        near=near,
    )
