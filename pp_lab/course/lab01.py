"""The checks of labs/pp_lab.ipynb. Each takes the learner's functions and gives a `Score`."""

from fractions import Fraction

from ..run import Lab
from ..schedule import Cost, Op, Schedule, ScheduleError, loop, schedules, simulate, verify
from .exercise import exercise, over
from .forms import numbers, recognised, rows, within
from .words import because, call, missing, short, show

COST = Cost(F=1, B=2)
SIZES = [(1, 1), (2, 1), (2, 2), (3, 4), (4, 2), (4, 8), (5, 3), (8, 32)]


@exercise(points=1)
def bubble(verdict, answer):
    """`bubble(p, m)`: which part of all ranks' time GPipe leaves idle."""
    mistakes = [
        (lambda p, m: (p - 1) / m,
         "that is idle time over busy time, (p-1)/m. The bubble is idle time over all time: the "
         "whole step takes m + p - 1 slots, not m"),
        (lambda p, m: m / (m + p - 1),
         "that is the busy part. The bubble is what is left, the idle part"),
        (lambda p, m: 100 * (p - 1) / (m + p - 1),
         "that is in per cent: give a part, between 0 and 1"),
        (lambda p, m: 3 * (p - 1),
         "that is a rank's idle time. Divide it by the time of the whole step"),
        (lambda p, m: (p - 1) / (m + p),
         "one slot too many: the last micro-batch enters after m - 1 slots and is through p slots "
         "later, m + p - 1 in all"),
        (lambda p, m: p / (m + p),
         "the first rank's first slot is not idle: a rank waits for p - 1 slots, not for p"),
        (lambda p, m: 1 / m, "it also depends on p: look at a picture with more ranks"),
    ]  # fmt: skip
    numbers(
        verdict,
        answer,
        verdict.sizes(SIZES),
        call=lambda *size: call("bubble", "p m", size),
        right=lambda p, m: simulate(schedules.gpipe(p, m), COST).bubble,
        wrong=lambda size, value, simulated: (
            f"{call('bubble', 'p m', size)} is {show(value)}, but the simulated bubble is "
            f"{show(simulated)}"
        ),
        mistakes=mistakes,
        otherwise=". Count the idle slots of one rank, over all of its slots",
    )
    verdict.expect(True, f"equal to the simulated bubble for {len(SIZES)} sizes", "", points=1)


@exercise(points=1)
def cut(verdict, answer):
    """`cut(blocks, p)`: a list of blocks into p stages."""
    sizes = verdict.sizes([(4, 8), (4, 10), (3, 7), (5, 5), (1, 6), (2, 9)])
    p, blocks = verdict.size(4, 10)  # of the run
    for size in dict.fromkeys([*sizes, (p, blocks)]):
        _cut(verdict, answer, *size)

    def confirm():
        lab = Lab(p, 4, cut=[len(stage) for stage in answer(list(range(blocks)), p)])
        verdict.agree(lab, lab.run(schedules.gpipe(p, 4)), points=1)

    verdict.on_ranks(1, confirm)


def _cut(verdict, answer, p, blocks):
    """One list of blocks: consecutive stages, nearly equal, and no block lost."""
    where = f"cut of {blocks} blocks for p={p}"
    names = [f"block {k}" for k in range(blocks)]
    stages = answer(list(names), p)
    if not isinstance(stages, (list, tuple)) or not all(
        isinstance(s, (list, tuple)) for s in stages
    ):
        verdict.fail(f"{where} gives {short(stages)}: return a list of p lists of blocks")
    sizes = [len(stage) for stage in stages]
    flat = [block for stage in stages for block in stage]
    verdict.expect(
        len(stages) == p, f"{where}: {p} stages", f"{where} gives {len(stages)} stages, not {p}"
    )
    lost = [name for name in names if name not in flat]
    if lost:
        verdict.fail(
            f"{where}: {lost[0]} is in no stage. {blocks} is not always a multiple of "
            "p: what happens to the rest?"
        )
    double = [name for name in names if flat.count(name) > 1]
    if double:
        verdict.fail(f"{where}: {double[0]} is in two stages")
    if flat != names:
        verdict.fail(
            f"{where}: the blocks are out of order, {flat}. A stage is consecutive "
            "blocks: what a stage gives is what the next one takes"
        )
    if min(sizes) == 0:
        verdict.fail(f"{where}: stage {sizes.index(0)} is empty")
    if max(sizes) - min(sizes) > 1:
        verdict.fail(
            f"{where}: stages of {sizes} blocks. The slowest stage sets the pace, so "
            "their sizes should differ by one block at most"
        )
    verdict.reasons[-1] = ("yes", f"{where}: stages of {sizes}")


@exercise(points=2)
def steps(verdict, forward_step, backward_step):
    """`forward_step(rank, i, x)` and `backward_step(rank, i, x, y, dy)` on raw autograd."""
    for p, m in verdict.sizes([(3, 4), (1, 3)]):  # with p=1 the first stage is also the last
        lab = Lab(p, m, seed=verdict.seed(p))
        run = lab.run(schedules.gpipe(p, m), forward_step=forward_step, backward_step=backward_step)
        verdict.agree(lab, run, points=1)


@exercise(points=2)
def exchange(verdict, send_forward_recv_backward, send_backward_recv_forward):
    """The two fused calls, on `rank.isend`, `rank.irecv` or `rank.batch_isend_irecv`."""

    def program(rank):
        _one_f_one_b_with(rank, send_forward_recv_backward, send_backward_recv_forward)

    for p, m in verdict.sizes([(2, 3), (4, 6)]):
        lab = Lab(p, m, seed=verdict.seed(p))
        verdict.agree(lab, lab.run(program), points=1)


def _one_f_one_b_with(rank, forward_backward, backward_forward):
    """1F1B whose steady state talks to its neighbours only through the two given calls."""
    m = rank.microbatches
    warmup = min(rank.size - 1 - rank.index, m)
    for i in range(warmup):
        rank.send_forward(i, rank.forward(i, rank.recv_forward(i)))
    x = rank.recv_forward(warmup) if warmup < m else None
    for k in range(m - warmup):
        y = rank.forward(warmup + k, x)
        dx = rank.backward(k, None if rank.is_last else forward_backward(rank, y))
        if warmup + k + 1 == m:
            rank.send_backward(k, dx)
        elif rank.is_first:
            x = rank.recv_forward(warmup + k + 1)
        else:
            x = backward_forward(rank, dx)
    for k in range(m - warmup, m):
        rank.send_backward(k, rank.backward(k, rank.recv_backward(k)))


@exercise(points=3)
def gpipe(verdict, answer):
    """A rank program: all forwards, then all backwards."""
    _program(verdict, answer, schedules.gpipe, [(4, 8), (3, 2), (1, 3)])


@exercise(points=4)
def one_f_one_b(verdict, answer):
    """A rank program: one forward, one backward, never more than p - r in flight."""
    _program(verdict, answer, schedules.one_f_one_b, [(4, 8), (4, 2), (3, 3), (1, 3)])


def _program(verdict, answer, schedule, sizes):
    """Run a rank program for each size: right, as fast as the schedule, in no more memory."""
    for number, (p, m) in enumerate(verdict.sizes(sizes)):
        lab = Lab(p, m, seed=verdict.seed(p + m))
        target = simulate(schedule(p, m), COST)
        run = lab.run(answer, cost=COST)
        if number == 0:
            verdict.figure = over(run.trace, target)
        if run.trace.makespan == 3 * p * m > target.makespan:
            verdict.reasons.append(
                (
                    "note",
                    f"p={p}, m={m}: only one rank works at a time: each micro-batch goes all "
                    "the way there and back before the next one starts",
                )
            )
        verdict.agree(
            lab,
            run,
            points=1,
            makespan=target.makespan,
            peak=target.peak_activations,
            messages=2 * (p - 1) * m,
        )


@exercise(points=2)
def in_flight(verdict, answer):
    """`in_flight(p, m, r)`: how many activations rank r of 1F1B holds at its worst moment."""
    warmup = (
        "that is the warm-up. In the steady state a rank does one more forward before its first "
        "backward"
    )
    mistakes = [
        (lambda p, m, r: p - r, "with few micro-batches there are not so many to hold"),
        (lambda p, m, r: min(p - 1 - r, m), warmup),
        (lambda p, m, r: p - 1 - r, warmup),
        (lambda p, m, r: m, "that is GPipe. 1F1B frees one activation before it adds the next"),
        (lambda p, m, r: min(p, m), "that is the first rank. Later ranks hold less"),
        (lambda p, m, r: min(r + 1, m),
         "the other way round: the first rank waits longest for its first backward, so it holds "
         "most"),
    ]  # fmt: skip
    sizes, on_ranks = verdict.sizes(SIZES), verdict.sizes([(4, 8), (4, 2)])
    peaks = {
        (p, m): simulate(schedules.one_f_one_b(p, m), COST).peak_activations
        for p, m in [*sizes, *on_ranks]
    }
    numbers(
        verdict,
        answer,
        [(p, m, r) for p, m in peaks for r in range(p)],
        call=lambda *case: call("in_flight", "p m r", case),
        right=lambda p, m, r: peaks[p, m][r],
        wrong=lambda case, value, held: (
            f"{call('in_flight', 'p m r', case)} is {show(value)}, but rank {case[2]} holds {held}"
        ),
        mistakes=mistakes,
        near=0,
    )
    verdict.expect(
        True, f"equal to the simulated peak on every rank, for {len(SIZES)} sizes", "", points=1
    )

    def confirm():
        for p, m in on_ranks:
            held = Lab(p, m).run(schedules.one_f_one_b(p, m)).peak_activations
            verdict.expect(
                [answer(p, m, r) for r in range(p)] == held,
                f"p={p}, m={m}: {held}, as counted on real ranks",
                f"p={p}, m={m}: the ranks counted {held}",
            )
        verdict.points += 1

    verdict.on_ranks(1, confirm)


@exercise(points=2)
def enough(verdict, answer):
    """`enough(p, most)`: the smallest m whose bubble is at most `most`."""
    mistakes = [
        (lambda p, most: -((1 - p) / most // 1),
         "that solves (p-1)/m. The bubble is (p-1)/(m+p-1)"),
        (lambda p, most: 4 * p,
         "4p is a rule of thumb and does not depend on the bubble that is wanted"),
    ]  # fmt: skip
    cases = [
        (4, Fraction(1, 10)),
        (8, Fraction(1, 10)),
        (8, Fraction(1, 5)),
        (2, Fraction(1, 2)),
        (16, Fraction(1, 100)),
        (3, Fraction(2, 7)),
        (1, Fraction(1, 10)),
    ]
    if verdict.random:
        cases = [
            (verdict.random.randint(min(p, 2), 2 * p), Fraction(1, verdict.random.randint(2, 60)))
            for p, _ in cases
        ]
    given = {(p, float(most)): answer(p, float(most)) for p, most in cases}
    for p, most in cases:
        value = verdict.number(f"enough(p={p}, most={float(most)})", given[p, float(most)])
        asked = f"enough(p={p}, most={float(most):.4g}) is {show(value)}"
        if value != int(value) or value < 1:
            verdict.fail(f"{asked}: a number of micro-batches is whole, and at least 1")
        m = int(value)
        got = simulate(schedules.one_f_one_b(p, m), COST).bubble
        smaller = m > 1 and simulate(schedules.one_f_one_b(p, m - 1), COST).bubble <= most
        if got > most or smaller:
            why = f"but {m - 1} micro-batches are enough already"
            if got > most:
                why = "which is too much"
            why += because(recognised(given, mistakes))
            verdict.fail(f"{asked}, with a bubble of {show(got)}, {why}")
    verdict.expect(True, f"the smallest m in all of {len(cases)} cases", "", points=2)


@exercise(points=3)
def is_legal(verdict, answer):
    """`is_legal(ranks, stages, m)`: can this list of ops for each rank run to its end?"""
    for name, ranks, stages, m, hint in [*_charts(), *_drawn(verdict)]:
        try:
            verify(Schedule(name, ranks, loop(len(ranks)), m))
            legal = True
        except ScheduleError as error:
            legal = False
            hint = f"{hint} ({error.reason})"
        got = answer([list(row) for row in ranks], stages, m)
        if not isinstance(got, bool):
            verdict.fail(f"{name}: is_legal gives {short(got)}, not True or False{missing(got)}")
        verdict.expect(
            got == legal,
            f"{name}: {'legal' if legal else 'not legal'}",
            f"{name}: you say {'legal' if got else 'not legal'}, but {hint}",
        )
    verdict.points += 3


def _charts():
    """Name, ops by rank, stages, micro-batches, and what to see in it."""

    def ops(text):
        return [
            [Op(word[0], rank, int(word[1:])) for word in row.split()]
            for rank, row in enumerate(text.split("\n"))
        ]

    yield ("GPipe", schedules.gpipe(3, 4).ranks, 3, 4, "all forwards, then all backwards can run")
    yield ("1F1B", schedules.one_f_one_b(4, 6).ranks, 4, 6, "1F1B can run")
    yield (
        "1F1B with fewer micro-batches than ranks",
        schedules.one_f_one_b(4, 2).ranks,
        4,
        2,
        "m < p is legal: the pipeline only never fills",
    )
    yield (
        "last in, first out",
        ops("F0 F1 B1 B0\nF0 F1 B1 B0"),
        2,
        2,
        "backwards may come in any order that all ranks share",
    )
    yield (
        "one micro-batch after the other",
        ops("F0 B0 F1 B1\nF0 B0 F1 B1"),
        2,
        2,
        "it is slow, but it can run",
    )
    yield (
        "a chart with a missing forward",
        ops("F0 F1 B0 B1\nF0 B0 B1"),
        2,
        2,
        "each stage must run every micro-batch forward and backward",
    )
    yield ("a chart with a doubled op", ops("F0 B0 B0\nF0 B0"), 2, 1, "an op is there twice")
    yield (
        "backward before forward",
        ops("F0 B0 F1 B1\nB0 F0 F1 B1"),
        2,
        2,
        "a backward needs its own stage's forward",
    )
    yield (
        "two ranks in different orders",
        ops("F0 B0 F1 B1\nF1 B1 F0 B0"),
        2,
        2,
        "the ranks wait for each other for ever",
    )
    yield (
        "an op on the wrong rank",
        [[Op("F", 0, 0), Op("B", 1, 0)], [Op("F", 1, 0), Op("B", 0, 0)]],
        2,
        1,
        "stage s lives on rank s, and so do its activations",
    )
    yield (
        "a chart whose last rank lacks a forward",
        published_chart(4, 8),
        4,
        8,
        "no rank may leave out an op",
    )
    yield (
        "the same chart, the forward added",
        published_chart(4, 8, mended=True),
        4,
        8,
        "it has a forward less in front than 1F1B, so it is slow, but it can run",
    )
    yield (
        "a foreign micro-batch",
        ops("F0 F7 B0 B7\nF0 F7 B0 B7"),
        2,
        2,
        "micro-batches are 0 to m-1",
    )


def _drawn(verdict):
    """Charts like those of `_charts`: legal ones, and such with a mistake in one place."""
    draw = verdict.random
    if draw is None:
        return
    sizes = verdict.sizes([(3, 4), (4, 6), (4, 2), (2, 2), (3, 3)] * 4)
    for number, (p, m) in enumerate(sizes):
        schedule = draw.choice([schedules.gpipe, schedules.one_f_one_b])(p, m)
        ranks = [list(row) for row in schedule.ranks]
        row = draw.choice(ranks)
        k = draw.randrange(len(row) - 1)
        mistake = number % 7
        if mistake == 1:
            row[k], row[k + 1] = row[k + 1], row[k]
        elif mistake == 2:
            del row[k]
        elif mistake == 3:
            row.insert(draw.randrange(k, len(row)), row[k])
        elif mistake == 4:
            row.insert(0, row.pop(next(j for j, op in enumerate(row) if op.kind == "B")))
        elif mistake == 5:  # its micro-batches in another order than the other ranks'
            row[:] = [op._replace(microbatch=m - 1 - op.microbatch) for op in row]
        elif mistake == 6:
            ranks[0][0], ranks[-1][0] = ranks[-1][0], ranks[0][0]
        yield f"chart {number}", ranks, p, m, "follow the ops one by one"


def published_chart(p, m, mended=False):
    """A 1F1B chart that is often printed: p-1-r forwards, then a backward first.

    As printed, the last rank starts with the backward of a micro-batch that it never ran
    forward; `mended` puts that forward in front, so that the chart can be read as an order.
    """
    rows = []
    for r in range(p):
        warmup = min(p - 1 - r, m)
        row = [Op("F", r, i) for i in range(warmup)]
        for k in range(m):
            row.append(Op("B", r, k))
            if warmup + k < m:
                row.append(Op("F", r, warmup + k))
        rows.append(row)
    # On the last rank each forward stands behind its own backward: read on from the second.
    first, *rest = range(m)
    rows[-1] = [Op("B", p - 1, first)]
    for i in rest:
        rows[-1] += [Op("F", p - 1, i), Op("B", p - 1, i)]
    if mended:
        rows[-1].insert(0, Op("F", p - 1, first))
    return rows


@exercise(points=3)
def as_data(verdict, answer):
    """`one_f_one_b_ops(p, m)`: 1F1B as a list of `Op` for each rank."""
    sizes, run_size = verdict.sizes(SIZES), verdict.size(4, 8)
    for p, m in dict.fromkeys([*sizes, run_size]):
        verdict.reasons.append(("note", f"p={p}, m={m}"))
        schedule = Schedule("yours", rows(verdict, "", answer(p, m), p), loop(p), m)
        verify(schedule)
        trace, target = simulate(schedule, COST), simulate(schedules.one_f_one_b(p, m), COST)
        if (p, m) == (4, 8) and trace != target:  # where it is the same, exercise 6 has shown it
            verdict.figure = over(trace, target)
        fast = f"makespan {trace.makespan}"
        within(verdict, trace, target, slow=_slow, full=_full, fast=fast)
        del verdict.reasons[-2:]
    verdict.expect(
        True,
        f"legal, as fast as 1F1B and in as little memory, for {len(SIZES)} sizes",
        "",
        points=2,
    )

    def confirm():
        p, m = run_size
        lab = Lab(p, m, seed=verdict.seed(0))
        verdict.agree(lab, lab.run(answer), points=1)

    verdict.on_ranks(1, confirm)


def _slow(trace, target):
    return (
        f"makespan {trace.makespan}, but {target.makespan} is possible. Does each rank do p-1-r "
        "forwards first, and then a forward before each backward?"
    )


def _full(rank, held, enough):
    return (
        f"rank {rank} holds {held} activations, but {enough} are enough: start its backwards "
        "earlier"
    )
