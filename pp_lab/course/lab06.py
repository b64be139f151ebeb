"""The checks of labs/06_p2p_overlap.ipynb. Each takes the learner's functions and gives a
`Score`."""

from fractions import Fraction
from math import ceil

import torch

from ..run import Lab
from ..run.rank import StepError
from ..schedule import Cost, Op, Schedule, loop, schedules, simulate, verify
from ..show import timeline
from .exercise import exercise

LATE = Cost(F=1, B=2, comm=1)  # a hop takes as long as a forward


# ---- blocking calls on a ring


@exercise(points=2)
def calls(verdict, answer):
    """`calls(r, p)`: the blocking calls, in order, with which rank r swaps with both neighbours."""
    sizes = [_ring(verdict, p) for p in (4, 8, 3, 5)]
    for p in sizes:
        rows = [_calls_of(verdict, answer, r, p) for r in range(p)]
        rounds, stuck = _play(rows)
        if stuck:
            verdict.fail(
                f"p={p}: deadlock. {stuck}" + _why_stuck(rows, p, all(map(_calls_send, rows)))
            )
        most, _ = _play([_parity(r, p) for r in range(p)])
        if rounds > most:
            verdict.fail(
                f"p={p}: no deadlock, but the messages go in {rounds} rounds, one after the "
                f"other, and {most} are enough: let every second rank begin with a receive, not "
                "only one of them"
            )
        verdict.reasons.append(("yes", f"p={p}: every message arrives, in {rounds} rounds"))
    verdict.points += 1
    p = sizes[0]
    rows = [list(answer(r, p)) for r in range(p)]

    def program(rank):
        for action, peer in rows[rank.index]:
            if action == "send":
                rank.send(rank.empty().fill_(rank.index), peer)
            else:
                rank.recv(got := rank.empty(), peer)
                if not torch.equal(got, torch.full_like(got, peer)):
                    raise StepError(f"what came from rank {peer} is not what it sent")

    Lab(p, 1).run(program)
    verdict.expect(True, f"p={p}: run with send and recv on real ranks", "", points=1)


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
            f"{call} gives {_short(got)}: return a list of pairs, like "
            f'[("send", {(r + 1) % p}), ("recv", {(r - 1) % p}), …]'
        )
    got = [tuple(c) for c in got]
    for action, peer in got:
        if action not in ("send", "recv"):
            verdict.fail(f'{call}: {action!r} is no blocking call, write "send" or "recv"')
        if not isinstance(peer, int) or isinstance(peer, bool):
            verdict.fail(f"{call}: {_short(peer)} is no rank: the other rank is a whole number")
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


def _play(rows):
    """(rounds, None), or (rounds, who waits for whom) where nobody can go on."""
    rows, rounds = [list(row) for row in rows], 0
    while any(rows):
        heads = [row[0] if row else None for row in rows]
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
                del rows[rank][0]
        rounds += 1
    return rounds, None


def _calls_send(row):
    return row[0][0] == "send"


def _why_stuck(rows, p, all_send):
    firsts = {row[0][0] for row in rows}
    if all_send:
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
        cases = [case for case in shapes if case[0] == name]
        for _, p, m, v in cases:
            call = f'hops("{name}", p={p}, m={m}, v={v})'
            value = verdict.number(call, answer(name, p, m, v))
            right = _added(name, p, m, v)
            if abs(value - right) > 1e-9:
                known = next(
                    (
                        text
                        for wrong, text in HOPS.get(name, [])
                        if all(abs(answer(*c) - wrong(*c[1:])) < 1e-9 for c in cases)
                    ),
                    "where in the picture does the makespan wait for a message?",
                )
                verdict.fail(f"{call} is {_show(value)}, but simulated it is {_show(right)}: "
                             f"{known}")  # fmt: skip
        verdict.reasons.append(("yes", f"{name}: equal to the simulation"))
    verdict.points += 2


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
    (lambda p, m, v: p - 1, "that is the way there. The gradients come back over as many hops"),
    (lambda p, m, v: 2 * p, "between p ranks there are p-1 hops, not p"),
    (
        lambda p, m, v: 2 * (p - 1) * m,
        "that counts every message. Most of them travel while their receiver computes, and cost "
        "nothing",
    ),
    (
        lambda p, m, v: 2 * (p - 1) * m / p + 2 * (p - 2),
        "that is plain 1F1B. Here latency is lost only while filling and draining",
    ),
]
HOPS = {
    "GPipe": _THERE_AND_BACK,
    "eager 1F1B": _THERE_AND_BACK,
    "1F1B": [
        (
            lambda p, m, v: 2 * (p - 1),
            "that is GPipe. 1F1B pays again and again: rank 0 has p micro-batches on their way, "
            "and the next one can enter only when a gradient is back",
        ),
        (
            lambda p, m, v: 2 * (p - 1) * m / p,
            "the slope over m is right. What is left at m=p, fill and drain, is missing: 2(p-2)",
        ),
        (
            lambda p, m, v: 2 * (p - 1) * m / p + 2 * (p - 1),
            "the slope over m is right, the rest is not: look at m=p, where it is 4p-6 in all",
        ),
        (
            lambda p, m, v: 2 * (p - 1) * m,
            "that counts every message. p micro-batches share one way there and back",
        ),
        (
            lambda p, m, v: 2 * m,
            "does it not depend on p? For p=4 each p more micro-batches cost 6 more",
        ),
    ],
    "interleaved": [
        (
            lambda p, m, v: 2 * (p - 1),
            "that is one way through the ranks. With v chunks a micro-batch goes round v times",
        ),
        (
            lambda p, m, v: 2 * (p - 1) * v,
            "the hop from the last rank back to rank 0 is missing, between one chunk and the "
            "next: count the boundaries between pv stages",
        ),
        (lambda p, m, v: 2 * p * v, "between pv stages there are pv-1 boundaries"),
        (lambda p, m, v: p * v - 1, "that is the way there. The gradients come back as far"),
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
    for name, p, m, c in cases:
        ranks = _events(name, p, m, c)
        call = f"{name}, p={p}, m={m}, c={c}"
        got = answer(_events(name, p, m, c), c)
        if not isinstance(got, (list, tuple)):
            verdict.fail(f"{call}: exposed gives {_short(got)}: return a list, a time for each "
                         "rank" + (". Is a return missing?" if got is None else ""))  # fmt: skip
        if len(got) != p:
            verdict.fail(f"{call}: exposed gives {len(got)} numbers, and there are {p} ranks")
        got = [verdict.number(f"{call}: exposed, rank {r},", x) for r, x in enumerate(got)]
        right = _exposed(ranks, c)
        for r in range(p):
            if abs(got[r] - right[r]) > 1e-9:
                known = next(
                    (text for wrong, text in EXPOSED
                     if all(_near(answer(_events(*k), k[3]), wrong(_events(*k), k[3]))
                            for k in cases)),
                    "look at each gap before an op, and at when its message was sent",
                )  # fmt: skip
                verdict.fail(
                    f"{call}: rank {r} is exposed for {_show(right[r])}, and you say "
                    f"{_show(got[r])}: {known}"
                )
        verdict.reasons.append(("yes", f"{call}: {' '.join(map(_show, right))}"))
    verdict.points += 2


def _events(name, p, m, c):
    """For each rank a list of (op, start, end)."""
    trace = simulate(_schedule(name, p, m, 1), Cost(F=1, B=2, comm=c))
    return [[(e.op, e.start, e.end) for e in row] for row in trace.ranks]


def _gaps(row):
    """(the op's start, the end of what the rank ran before it), for each op."""
    return [(start, row[k - 1][2] if k else 0) for k, (_, start, _) in enumerate(row)]


def _exposed(ranks, c):
    return [sum(min(c, start - before) for start, before in _gaps(row)) for row in ranks]


def _sums(of):
    return lambda ranks, c: [of(row, c) for row in ranks]


def _messages(ranks, c):
    """c for each message that a rank receives."""
    last = len(ranks) - 1
    return [
        c * sum((op.kind == "F") * (r > 0) + (op.kind == "B") * (r < last) for op, _, _ in row)
        for r, row in enumerate(ranks)
    ]


EXPOSED = [
    (
        _sums(lambda row, c: sum(start - before for start, before in _gaps(row))),
        "that is all idle time between its ops. While a message is not sent yet, the rank waits "
        "for the other rank's work, not for the wire",
    ),
    (
        _sums(lambda row, c: sum(c for start, before in _gaps(row) if start > before)),
        "that takes c for each gap. A gap can be shorter: then a part of the way was hidden behind "
        "the op before",
    ),
    (
        _messages,
        "that takes c for every message. One that arrives while its receiver computes costs "
        "nothing",
    ),
    (
        _sums(lambda row, c: sum(min(c, start - before) for start, before in _gaps(row)[1:])),
        "the gap before a rank's first op is missing: the first message travels too",
    ),
    (
        _sums(lambda row, c: sum(max(0, start - before - c) for start, before in _gaps(row))),
        "that is the other part of the gaps: what is left when the message's way is taken off",
    ),
    (
        _sums(lambda row, c: sum(start > before for start, before in _gaps(row))),
        "that counts the gaps. How long does each last?",
    ),
]


def _near(got, want):
    return (
        isinstance(got, (list, tuple))
        and len(got) == len(want)
        and all(abs(a - b) < 1e-9 for a, b in zip(got, want, strict=True))
    )


# ---- running ahead


@exercise(points=2)
def eager(verdict, answer):
    """`eager(p, m)`: 1F1B with twice the warm-up, as a list of `Op` for each rank."""
    sizes = verdict.sizes([(4, 8), (3, 4), (4, 2), (2, 2), (1, 3), (8, 32)])
    for p, m in sizes:
        rows = answer(p, m)
        if not isinstance(rows, (list, tuple)) or not all(
            isinstance(row, (list, tuple)) for row in rows
        ):
            verdict.fail(f"eager({p}, {m}) gives {_short(rows)}, not a list of ops for each rank"
                         + (": is a return missing?" if rows is None else ""))  # fmt: skip
        if len(rows) != p:
            verdict.fail(f"eager({p}, {m}) gives lists for {len(rows)} ranks, not for {p}")
        schedule = Schedule("yours", rows, loop(p), m)
        verify(schedule)
        target = simulate(schedules.eager_1f1b(p, m), LATE)
        trace = simulate(schedule, LATE)
        where = f"p={p}, m={m}"
        if trace.makespan > target.makespan:
            verdict.figure = timeline(trace, predicted=target)
            verdict.fail(
                f"{where}: with a latency of 1 it takes {trace.makespan}, and {target.makespan} "
                f"is possible. {_ahead(rows, p, m)}"
            )
        over = [r for r in range(p) if trace.peak_activations[r] > target.peak_activations[r]]
        if over:
            r = over[0]
            verdict.fail(
                f"{where}: rank {r} holds {trace.peak_activations[r]} activations, and "
                f"{target.peak_activations[r]} are enough. {_ahead(rows, p, m)}"
            )
    verdict.expect(
        True, f"legal, fast with latency and within 2(p-r)-1 activations for {len(sizes)} sizes",
        "", points=1,
    )  # fmt: skip
    p, m = sizes[0]
    lab = Lab(p, m, seed=verdict.seed(6))
    target = simulate(schedules.eager_1f1b(p, m), LATE)
    verdict.agree(lab, lab.run(answer, cost=LATE), points=1, makespan=target.makespan,
                  peak=target.peak_activations)  # fmt: skip


def _ahead(rows, p, m):
    """How far each rank runs ahead, and what that is."""
    firsts = [
        next((k for k, op in enumerate(row) if getattr(op, "kind", "") != "F"), len(row))
        for row in rows
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
    everything = [(p, r, c, F, B) for p, c, F, B in cases for r in range(p)]
    for p, c, F, B in cases:
        call = f"p={p}, c={c:g}, F={F}, B={B}"
        got = [
            verdict.number(f"warmup(p={p}, r={r}, c={c:g}, F={F}, B={B})", answer(p, r, c, F, B))
            for r in range(p)
        ]
        shown = " ".join(map(_show, got))
        if not all(x == int(x) for x in got):
            verdict.fail(f"{call}: warm-ups of {shown}. Forwards come whole: round up")
        if min(got) < 0:
            verdict.fail(f"{call}: warm-ups of {shown}. Nobody can run less than 0 forwards")
        right = [_needed(p, r, c, F, B) for r in range(p)]
        got = [int(x) for x in got]
        if got == right:
            verdict.reasons.append(("yes", f"{call}: {shown}"))
            continue
        known = next(
            (text for wrong, text in WARMUPS
             if all(abs(answer(*a) - wrong(*a)) < 1e-9 for a in everything)), None
        )  # fmt: skip
        verdict.fail(f"{call}: warm-ups of {shown}. {_judged(got, right, p, c, F, B)}"
                     + (f": {known}" if known else ""))  # fmt: skip
    verdict.points += 2


def _needed(p, r, c, F, B):
    return (p - 1 - r) * (1 + ceil(Fraction(2 * c) / (F + B)))


def _judged(got, right, p, c, F, B):
    """What these warm-ups do."""
    m, best = 60 * p, (F + B) * (60 * p + p - 1) + 2 * (p - 1) * Fraction(c)
    rows = [_alternate(r, got[r], m) for r in range(p)]
    if all(a >= b for a, b in zip(got, right, strict=True)):
        r = next(r for r in range(p) if got[r] > right[r])
        return f"That hides it, but {right[r]} are enough on rank {r}, and each costs an activation"
    try:
        verify(schedule := Schedule("yours", rows, loop(p), m))
        takes = simulate(schedule, Cost(F=F, B=B, comm=Fraction(c))).makespan
    except Exception:
        return "The ranks wait for each other for ever: a rank must run ahead of the next one"
    if takes > best:
        return f"With m={m} the step takes {_show(takes)}, and {_show(best)} is possible"
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
            verdict.figure = timeline(run.trace, predicted=None if run.trace == target else target)
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


def _show(value):
    return f"{float(value):.6g}"


def _short(value):
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:79]}…"
