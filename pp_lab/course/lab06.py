"""The checks of labs/06_p2p_overlap.ipynb. Each takes the learner's functions and gives a
`Score`."""

from fractions import Fraction
from math import ceil

from ..run import Lab
from ..run.failures import StepError
from ..run.late import Late
from ..schedule import Cost, Op, Schedule, loop, schedules, simulate, verify
from .exercise import exercise, over
from .forms import numbers, recognised, rows, same, within
from .words import because, short, show

torch = Late("torch")

LATE = Cost(F=1, B=2, comm=1)  # a hop takes as long as a forward


# ---- blocking calls on a ring


@exercise(points=2)
def calls(verdict, answer):
    """`calls(r, p)`: the blocking calls, in order, with which rank r swaps with both neighbours."""
    sizes = [_ring(verdict, p) for p in (4, 8, 3, 5)]
    given = {}
    for p in sizes:
        given[p] = lists = [_calls_of(verdict, answer, r, p) for r in range(p)]
        rounds, stuck = _play(lists)
        if stuck:
            verdict.fail(f"p={p}: deadlock. {stuck}" + _why_stuck(lists, p))
        most, _ = _play([_parity(r, p) for r in range(p)])
        if rounds > most:
            verdict.fail(
                f"p={p}: no deadlock, but the messages go in {rounds} rounds, one after the "
                f"other, and {most} are enough: let every second rank begin with a receive, not "
                "only one of them"
            )
        verdict.reasons.append(("yes", f"p={p}: every message arrives, in {rounds} rounds"))
    verdict.points += 1

    def real():
        p, lists = sizes[0], given[sizes[0]]

        def program(rank):
            for action, peer in lists[rank.index]:
                if action == "send":
                    rank.send(rank.empty().fill_(rank.index), peer)
                else:
                    rank.recv(got := rank.empty(), peer)
                    if not torch.equal(got, torch.full_like(got, peer)):
                        raise StepError(f"what came from rank {peer} is not what it sent")

        Lab(p, 1).run(program)
        verdict.expect(True, f"p={p}: run with send and recv on real ranks", "", points=1)

    verdict.on_ranks(1, real)


def _parity(r, p):
    """Megatron's order."""
    after, before = (r + 1) % p, (r - 1) % p
    if r % 2 == 0:
        return [("send", after), ("recv", before), ("send", before), ("recv", after)]
    return [("recv", before), ("send", after), ("recv", after), ("send", before)]


def _calls_of(verdict, answer, r, p):
    """One rank's calls, as a list that has all of them and nothing else."""
    call, got = f"calls(r={r}, p={p})", answer(r, p)
    if not isinstance(got, (list, tuple)) or not all(
        isinstance(c, (list, tuple)) and len(c) == 2 for c in got
    ):
        verdict.fail(
            f"{call} gives {short(got)}: return a list of pairs, like "
            f'[("send", {(r + 1) % p}), ("recv", {(r - 1) % p}), …]'
        )
    got = [tuple(c) for c in got]
    for action, peer in got:
        if action not in ("send", "recv"):
            verdict.fail(f'{call}: {action!r} is no blocking call, write "send" or "recv"')
        if not isinstance(peer, int) or isinstance(peer, bool):
            verdict.fail(f"{call}: {short(peer)} is no rank: the other rank is a whole number")
        if not 0 <= peer < p:
            verdict.fail(
                f"{call}: there is no rank {peer}. On a ring the last rank's next is rank 0, and "
                f"rank 0's previous the last: take it modulo p"
            )
        if peer not in ((r + 1) % p, (r - 1) % p):
            verdict.fail(f"{call}: rank {peer} is no neighbour of rank {r}")
    wanted = {(action, peer) for action in ("send", "recv") for peer in ((r + 1) % p, (r - 1) % p)}
    if lost := sorted(wanted - set(got)):
        action, peer = lost[0]
        verdict.fail(
            f"{call}: rank {r} never calls {action} with rank {peer}. It sends to both "
            "neighbours and receives from both, four calls"
        )
    if len(got) != 4:
        verdict.fail(f"{call} has {len(got)} calls: one send and one receive for each neighbour")
    return got


def _play(lists):
    """(rounds, None), or (rounds, who waits for whom) where nobody can go on."""
    left, rounds = [list(row) for row in lists], 0
    while any(left):
        heads = [row[0] if row else None for row in left]
        meet = [
            (a, head[1])
            for a, head in enumerate(heads)
            if head and head[0] == "send" and heads[head[1]] == ("recv", a)
        ]
        if not meet:
            said = [
                f"rank {r} is in {head[0]} {'to' if head[0] == 'send' else 'from'} rank {head[1]}"
                for r, head in enumerate(heads)
                if head
            ]
            return rounds, ", ".join(said)
        for pair in meet:
            for rank in pair:
                del left[rank][0]
        rounds += 1
    return rounds, None


def _why_stuck(lists, p):
    firsts = {row[0][0] for row in lists}
    if firsts == {"send"}:
        return ": everybody sends first, and nobody receives"
    if firsts == {"recv"}:
        return ": everybody receives first, and nobody sends"
    if p % 2:
        return (
            ". With an odd p, ranks p-1 and 0 are neighbours and both even: it has to work "
            "for them too. Megatron's order goes on with the other direction after its first call"
        )
    return ": a send needs the other rank in the receive that goes with it, at that moment"


# ---- what latency costs


@exercise(points=2)
def hops(verdict, answer):
    """`hops(name, p, m, v)`: how many latencies longer a schedule takes than without any."""
    shapes = [("GPipe", 4, 8, 1), ("GPipe", 2, 6, 1), ("eager 1F1B", 8, 32, 1),
              ("eager 1F1B", 4, 8, 1), ("1F1B", 4, 8, 1), ("1F1B", 8, 32, 1), ("1F1B", 3, 9, 1),
              ("1F1B", 2, 2, 1), ("interleaved", 4, 8, 2), ("interleaved", 3, 6, 3),
              ("interleaved", 2, 8, 2)]  # fmt: skip
    if draw := verdict.random:
        shapes = [
            (name, p := draw.randint(2, 8), p * draw.randint(1, 5), draw.randint(2, 4) if v > 1
             else 1)
            for name, _, _, v in shapes
        ]  # fmt: skip
    for name in dict.fromkeys(name for name, *_ in shapes):
        numbers(
            verdict,
            answer,
            [case for case in shapes if case[0] == name],
            call=_hops,
            right=_added,
            wrong=lambda case, value, right: (
                f"{_hops(*case)} is {show(value)}, but simulated it is {show(right)}"
            ),
            mistakes=HOPS[name],
            otherwise=": where in the picture does the makespan wait for a message?",
        )
        verdict.reasons.append(("yes", f"{name}: equal to the simulation"))
    verdict.points += 2


def _hops(name, p, m, v):
    return f'hops("{name}", p={p}, m={m}, v={v})'


def _schedule(name, p, m, v):
    if name == "interleaved":
        return schedules.interleaved(p, m, v)
    make = {"GPipe": schedules.gpipe, "1F1B": schedules.one_f_one_b}
    return make.get(name, schedules.eager_1f1b)(p, m)


def _added(name, p, m, v):
    """By how many latencies a hop that takes c makes the step longer, for a small c."""
    schedule, c = _schedule(name, p, m, v), Fraction(1, 16)
    late, none = (simulate(schedule, Cost(F=1, B=2, comm=x).split(v)) for x in (c, 0))
    return Fraction(late.makespan - none.makespan) / c


_THERE_AND_BACK = [
    (
        lambda name, p, m, v: p - 1,
        "that is the way there. The gradients come back over as many hops",
    ),
    (lambda name, p, m, v: 2 * p, "between p ranks there are p-1 hops, not p"),
    (
        lambda name, p, m, v: 2 * (p - 1) * m,
        "that counts every message. Most of them travel while their receiver computes, and cost "
        "nothing",
    ),
    (
        lambda name, p, m, v: 2 * (p - 1) * m / p + 2 * (p - 2),
        "that is plain 1F1B. Here latency is lost only while filling and draining",
    ),
]
HOPS = {
    "GPipe": _THERE_AND_BACK,
    "eager 1F1B": _THERE_AND_BACK,
    "1F1B": [
        (
            lambda name, p, m, v: 2 * (p - 1),
            "that is GPipe. 1F1B pays again and again: rank 0 has p micro-batches on their way, "
            "and the next one can enter only when a gradient is back",
        ),
        (
            lambda name, p, m, v: 2 * (p - 1) * m / p,
            "the slope over m is right. What is left at m=p, fill and drain, is missing: 2(p-2)",
        ),
        (
            lambda name, p, m, v: 2 * (p - 1) * m / p + 2 * (p - 1),
            "the slope over m is right, the rest is not: look at m=p, where it is 4p-6 in all",
        ),
        (
            lambda name, p, m, v: 2 * (p - 1) * m,
            "that counts every message. p micro-batches share one way there and back",
        ),
        (
            lambda name, p, m, v: 2 * m,
            "does it not depend on p? For p=4 each p more micro-batches cost 6 more",
        ),
    ],
    "interleaved": [
        (
            lambda name, p, m, v: 2 * (p - 1),
            "that is one way through the ranks. With v chunks a micro-batch goes round v times",
        ),
        (
            lambda name, p, m, v: 2 * (p - 1) * v,
            "the hop from the last rank back to rank 0 is missing, between one chunk and the "
            "next: count the boundaries between pv stages",
        ),
        (lambda name, p, m, v: 2 * p * v, "between pv stages there are pv-1 boundaries"),
        (lambda name, p, m, v: p * v - 1, "that is the way there. The gradients come back as far"),
    ],
}


# ---- exposed


@exercise(points=2)
def exposed(verdict, answer):
    """`exposed(ranks, c)`: for each rank the time it idles while its message is on the way."""
    cases = [("1F1B", 4, 8, 1), ("GPipe", 3, 4, 1), ("eager 1F1B", 4, 8, 2), ("1F1B", 2, 5, 3),
             ("eager 1F1B", 3, 9, 4), ("1F1B", 1, 3, 1)]  # fmt: skip
    if draw := verdict.random:
        cases = [(n, *verdict.size(p, m), draw.randint(1, 4)) for n, p, m, _ in cases]
        cases[2] = ("eager 1F1B", 4, draw.randint(7, 12), 2)  # with gaps shorter than c
    given = {}
    for case in cases:
        name, p, _, c = case
        said, got = _setting(*case), answer(_events(*case), c)
        if not isinstance(got, (list, tuple)):
            verdict.fail(
                f"{said}: exposed gives {short(got)}: return a list, a time for each rank"
                + (". Is a return missing?" if got is None else "")
            )
        if len(got) != p:
            verdict.fail(f"{said}: exposed gives {len(got)} numbers, and there are {p} ranks")
        given[case] = [verdict.number(f"{said}: exposed, rank {r},", x) for r, x in enumerate(got)]
    for case, got in given.items():
        right = _exposed(*case)
        for r in range(len(right)):
            if not same(got[r], right[r]):
                known = recognised(given, EXPOSED)
                verdict.fail(
                    f"{_setting(*case)}: rank {r} is exposed for {show(right[r])}, and you "
                    f"say {show(got[r])}: "
                    + (known or "look at each gap before an op, and at when its message was sent")
                )
        verdict.reasons.append(("yes", f"{_setting(*case)}: {' '.join(map(show, right))}"))
    verdict.points += 2


def _setting(name, p, m, c):
    return f"{name}, p={p}, m={m}, c={c}"


def _events(name, p, m, c):
    """For each rank a list of (op, start, end)."""
    trace = simulate(_schedule(name, p, m, 1), Cost(F=1, B=2, comm=c))
    return [[(e.op, e.start, e.end) for e in row] for row in trace.ranks]


def _gaps(row):
    """How long the rank idled before each op."""
    return [start - (row[k - 1][2] if k else 0) for k, (_, start, _) in enumerate(row)]


def _sums(of):
    """A function of a case: for each rank a function of its events and of c."""
    return lambda name, p, m, c: [of(row, c) for row in _events(name, p, m, c)]


_exposed = _sums(lambda row, c: sum(min(c, gap) for gap in _gaps(row)))


def _messages(name, p, m, c):
    """c for each message that a rank receives."""
    return [
        c * sum(r > 0 if op.kind == "F" else r < p - 1 for op, _, _ in row)
        for r, row in enumerate(_events(name, p, m, c))
    ]


EXPOSED = [
    (
        _sums(lambda row, c: sum(_gaps(row))),
        "that is all idle time between its ops. While a message is not sent yet, the rank waits "
        "for the other rank's work, not for the wire",
    ),
    (
        _sums(lambda row, c: sum(c for gap in _gaps(row) if gap > 0)),
        "that takes c for each gap. A gap can be shorter: then a part of the way was hidden behind "
        "the op before",
    ),
    (
        _messages,
        "that takes c for every message. One that arrives while its receiver computes costs "
        "nothing",
    ),
    (
        _sums(lambda row, c: sum(min(c, gap) for gap in _gaps(row)[1:])),
        "the gap before a rank's first op is missing: the first message travels too",
    ),
    (
        _sums(lambda row, c: sum(max(0, gap - c) for gap in _gaps(row))),
        "that is the other part of the gaps: what is left when the message's way is taken off",
    ),
    (
        _sums(lambda row, c: sum(gap > 0 for gap in _gaps(row))),
        "that counts the gaps. How long does each last?",
    ),
]


# ---- running ahead


@exercise(points=2)
def eager(verdict, answer):
    """`eager(p, m)`: 1F1B with twice the warm-up, as a list of `Op` for each rank."""
    sizes = verdict.sizes([(4, 8), (3, 4), (4, 2), (2, 2), (1, 3), (8, 32)])
    for p, m in sizes:
        lists = rows(verdict, f"eager({p}, {m})", answer(p, m), p)
        schedule = Schedule("yours", lists, loop(p), m)
        verify(schedule)
        target, trace = simulate(schedules.eager_1f1b(p, m), LATE), simulate(schedule, LATE)
        if trace.makespan > target.makespan:
            verdict.figure = over(trace, target)
        ahead = _ahead(lists, p, m)
        within(
            verdict,
            trace,
            target,
            slow=lambda trace, target, ahead=ahead: (
                f"with a latency of 1 it takes {trace.makespan}, and {target.makespan} is "
                f"possible. {ahead}"
            ),
            full=lambda r, held, enough, ahead=ahead: (
                f"rank {r} holds {held} activations, and {enough} are enough. {ahead}"
            ),
            where=f"p={p}, m={m}: ",
        )
    verdict.expect(
        True, f"legal, fast with latency and within 2(p-r)-1 activations for {len(sizes)} sizes",
        "", points=1,
    )  # fmt: skip

    def real():
        p, m = sizes[0]
        lab = Lab(p, m, seed=verdict.seed(6))
        target = simulate(schedules.eager_1f1b(p, m), LATE)
        verdict.agree(lab, lab.run(answer, cost=LATE), points=1, makespan=target.makespan,
                      peak=target.peak_activations)  # fmt: skip

    verdict.on_ranks(1, real)


def _ahead(lists, p, m):
    """How far each rank runs ahead, and what that is."""
    firsts = [
        next((k for k, op in enumerate(row) if getattr(op, "kind", "") != "F"), len(row))
        for row in lists
    ]
    said = f"Forwards before the first backward: {' '.join(map(str, firsts))}"
    if firsts == [min(p - r, m) for r in range(p)]:
        return f"{said}: that is plain 1F1B. Run twice as far ahead of the next rank"
    if firsts == [m] * p:
        return f"{said}: that is GPipe. Begin with the backwards earlier"
    if firsts == [min(max(2 * (p - 1 - r), 1), m) for r in range(p)] and p > 1:
        return (
            f"{said}: the warm-up has the right length. After it a forward comes first, then a "
            "backward"
        )
    right = " ".join(str(min(2 * (p - 1 - r) + 1, m)) for r in range(p))
    return f"{said}. With a warm-up of 2(p-1-r) and one more in the steady state it is {right}"


@exercise(points=2)
def warmup(verdict, answer):
    """`warmup(p, r, c, F, B)`: the fewest warm-up forwards that hide latency c."""
    cases = [(4, 0, 1, 2), (4, 1, 1, 2), (4, 1.5, 1, 2), (4, 2, 1, 2), (3, 0.25, 1, 2),
             (3, 4, 1, 2), (5, 1, 1, 1), (4, 2.5, 2, 3), (2, 0.5, 1, 2)]  # fmt: skip
    if draw := verdict.random:
        cases = [(draw.randint(2, 6), k * (F + B) / 2 + more, F, B)
                 for k, more in ((0, 0), (0, 0.5), (1, 0), (1, 0.25), (2, 0), (3, 0.5))
                 for F, B in [draw.choice([(1, 2), (1, 1), (2, 3)])]]  # fmt: skip
    given = {}
    for p, c, F, B in cases:
        for r in range(p):
            said, case = f"warmup(p={p}, r={r}, c={c:g}, F={F}, B={B})", (p, r, c, F, B)
            given[case] = verdict.number(said, answer(*case))
    for p, c, F, B in cases:
        got = [given[p, r, c, F, B] for r in range(p)]
        where, shown = f"p={p}, c={c:g}, F={F}, B={B}", " ".join(map(show, got))
        if not all(x == int(x) for x in got):
            verdict.fail(f"{where}: warm-ups of {shown}. Forwards come whole: round up")
        if min(got) < 0:
            verdict.fail(f"{where}: warm-ups of {shown}. Nobody can run less than 0 forwards")
        got, right = [int(x) for x in got], [_needed(p, r, c, F, B) for r in range(p)]
        if got != right:
            verdict.fail(
                f"{where}: warm-ups of {shown}. {_judged(got, right, p, c, F, B)}"
                + because(recognised(given, WARMUPS))
            )
        verdict.reasons.append(("yes", f"{where}: {shown}"))
    verdict.points += 2


def _needed(p, r, c, F, B):
    return (p - 1 - r) * (1 + ceil(Fraction(2 * c) / (F + B)))


def _judged(got, right, p, c, F, B):
    """What these warm-ups do."""
    m, best = 60 * p, (F + B) * (60 * p + p - 1) + 2 * (p - 1) * Fraction(c)
    lists = [_alternate(r, got[r], m) for r in range(p)]
    if all(a >= b for a, b in zip(got, right, strict=True)):
        r = next(r for r in range(p) if got[r] > right[r])
        return f"That hides it, but {right[r]} are enough on rank {r}, and each costs an activation"
    try:
        verify(schedule := Schedule("yours", lists, loop(p), m))
        takes = simulate(schedule, Cost(F=F, B=B, comm=Fraction(c))).makespan
    except Exception:
        return "The ranks wait for each other for ever: a rank must run ahead of the next one"
    if takes > best:
        return f"With m={m} the step takes {show(takes)}, and {show(best)} is possible"
    return f"It would have to be {' '.join(map(str, right))} to hide the latency for every m"


def _alternate(r, warm, m):
    """One rank's list: so many forwards, then in turns."""
    warm = min(warm, m)
    row = [Op("F", r, i) for i in range(warm)]
    for k in range(m):
        row += [Op("F", r, warm + k)] * (warm + k < m) + [Op("B", r, k)]
    return row


WARMUPS = [
    (
        lambda p, r, c, F, B: p - 1 - r,
        "that is plain 1F1B. It leaves no slack for a message's way",
    ),
    (
        lambda p, r, c, F, B: 2 * (p - 1 - r),
        "that is eager 1F1B, for any c. Without latency it is too much, and with a long one too "
        "little",
    ),
    (
        lambda p, r, c, F, B: (p - 1 - r) * (1 + ceil(c / (F + B))),
        "a hop's latency counts twice, there and back: 2c",
    ),
    (
        lambda p, r, c, F, B: (p - 1 - r) * (1 + int(2 * c // (F + B))),
        "round up, not down: a part of a slot that is not hidden is lost in every slot",
    ),
    (
        lambda p, r, c, F, B: (p - 1 - r) * (2 + int(2 * c // (F + B))),
        "where 2c fits exactly into slots of F+B, no further one is needed",
    ),
    (
        lambda p, r, c, F, B: ceil((p - 1 - r) * (1 + 2 * c / (F + B))),
        "round up for each hop, then multiply: every rank has to be a whole number ahead of "
        "the next one",
    ),
    (
        lambda p, r, c, F, B: (p - 1 - r) * ceil(2 * c / (F + B)),
        "that is what latency adds. The one per hop of plain 1F1B is missing",
    ),
    (
        lambda p, r, c, F, B: (p - 1 - r) * (1 + ceil(2 * c / B)),
        "a forward that runs ahead hides F+B, a whole slot, not only B",
    ),
    (
        lambda p, r, c, F, B: (p - 1 - r) * (1 + ceil(2 * c / F)),
        "a forward that runs ahead hides F+B, a whole slot, not only F",
    ),
    (
        lambda p, r, c, F, B: (p - 1 - r) * (1 + ceil(2 * c / (F + B))) + 1,
        "the forward of the steady state does not belong to the warm-up: the last rank has none",
    ),
]


# ---- post early, wait late


@exercise(points=4)
def early(verdict, answer):
    """A rank program: eager 1F1B whose receives are posted one op ahead, and waited for late."""

    def program(rank):
        log = _listen(rank)
        answer(rank)
        _posted_early(rank, log)

    for points, (p, m) in zip((2, 1, 1), verdict.sizes([(4, 8), (3, 2), (1, 3)]), strict=True):
        lab = Lab(p, m, seed=verdict.seed(p))
        target = simulate(schedules.eager_1f1b(p, m), LATE)
        run = lab.run(program, cost=LATE)
        kind, text = run.compare()
        if kind == "no":
            verdict.fail(f"p={p}, m={m}: {text}")
        if verdict.figure is None:
            verdict.figure = over(run.trace, target)
        verdict.agree(lab, run, points=points, makespan=target.makespan,
                      peak=target.peak_activations)  # fmt: skip
    verdict.reasons.append(
        ("yes", "every receive is posted before the op ahead of its own, and waited for after it")
    )


def _listen(rank):
    """A list that fills with [peer, ops done when posted, ops done when waited for]."""
    log, entries, transport = [], {}, rank.transport
    post, unpack = transport.irecv, transport.unpack

    def irecv(*arguments, **named):
        request = post(*arguments, **named)
        entries[request] = entry = [request.peer, len(rank.items), None]
        log.append(entry)
        opened = sum(waited is None for _, _, waited in log)
        if opened > 2:
            raise StepError(
                f"{opened} receives are posted at once on rank {rank.index}, each with a buffer "
                "of its own. Two are enough, if each is waited for before the next op runs"
            )
        return request

    def noted(request):
        unpack(request)
        entries[request][2] = len(rank.items)

    transport.irecv, transport.unpack = irecv, noted
    return log


def _posted_early(rank, log):
    """Raise StepError for the first receive that is posted too late or waited for too early."""
    ops = [op for op, *_ in rank.items]
    for peer, kind in ((rank.previous, "F"), (rank.next, "B")):
        places = [n for n, op in enumerate(ops) if op.kind == kind]
        entries = [entry for entry in log if peer is not None and entry[0] == peer]
        for n, (_, posted, waited) in zip(places, entries, strict=False):
            op, ahead = ops[n].label, ops[n - 1].label
            here = f"rank {rank.index}: the receive for {op}"
            if n > 0 and posted >= n:
                raise StepError(
                    f"{here} is posted only when {op} needs it. Post it before {ahead} runs, so "
                    "that the message can come while the rank computes"
                )
            if waited is not None and waited < n:
                raise StepError(
                    f"{here} is waited for before {ahead} runs, which does not need it. Wait "
                    f"right before {op}"
                )


# ---- sizes and words


def _ring(verdict, p):
    """p, or a hidden number of ranks of the same parity."""
    if verdict.random is None:
        return p
    return verdict.random.choice([4, 6, 8] if p % 2 == 0 else [3, 5, 7])
