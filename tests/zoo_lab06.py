"""Answers to the exercises of lab 6: right ones, and wrong ones with what each must be told."""

from math import ceil

from pp_lab import Op, schedules


def nothing(*arguments):
    return None


# ---- calls


def neighbours(r, p):
    return (r + 1) % p, (r - 1) % p


def send_first(r, p):
    after, before = neighbours(r, p)
    return [("send", after), ("recv", before), ("send", before), ("recv", after)]


def receive_first(r, p):
    after, before = neighbours(r, p)
    return [("recv", before), ("send", after), ("recv", after), ("send", before)]


def parity(r, p):
    return receive_first(r, p) if r % 2 else send_first(r, p)


def other_parity(r, p):
    return send_first(r, p) if r % 2 else receive_first(r, p)


def domino(r, p):
    return send_first(r, p) if r else receive_first(r, p)


def pairwise(r, p):
    after, before = neighbours(r, p)
    if r % 2 == 0:
        return [("send", after), ("recv", after), ("send", before), ("recv", before)]
    return [("recv", before), ("send", before), ("recv", after), ("send", after)]


def both_sends_first(r, p):
    after, before = neighbours(r, p)
    return [("send", after), ("send", before), ("recv", before), ("recv", after)]


def no_ring(r, p):
    after, before = r + 1, r - 1
    return [("send", after), ("recv", before), ("send", before), ("recv", after)]


def one_way(r, p):
    return parity(r, p)[:2]


# ---- hops


def hops(name, p, m, v):
    if name == "1F1B":
        return 2 * (p - 1) * m / p + 2 * (p - 2)
    return 2 * (p * v - 1)


def hops_by_round(name, p, m, v):
    if name == "interleaved":
        return 2 * p * v - 2
    rounds = m // p if name == "1F1B" else 1
    return 2 * (p - 1) * rounds + (2 * p - 4) * (name == "1F1B")


def but(**of):
    """hops, with other formulas for some schedules."""

    def answer(name, p, m, v):
        key = name.replace(" ", "_")
        return of[key](p, m, v) if key in of else hops(name, p, m, v)

    return answer


# ---- exposed


def gaps(row):
    before = 0
    for _, start, end in row:
        yield start - before
        before = end


def exposed(ranks, c):
    return [sum(min(c, gap) for gap in gaps(row)) for row in ranks]


def exposed_by_message(ranks, c):
    ends = {op: end for row in ranks for op, _, end in row}
    waited = [0] * len(ranks)
    for r, row in enumerate(ranks):
        now = 0
        for op, start, end in row:
            sender = r - 1 if op.kind == "F" else r + 1
            if 0 <= sender < len(ranks):
                sent = ends[Op(op.kind, sender, op.microbatch)]
                waited[r] += max(0, start - max(now, sent))
            now = end
    return waited


def every_message(ranks, c):
    last = len(ranks) - 1
    return [
        c * sum(1 for op, *_ in row if (r > 0 if op.kind == "F" else r < last))
        for r, row in enumerate(ranks)
    ]


# ---- eager


def with_warmup(of, first="F"):
    def answer(p, m):
        rows = []
        for r in range(p):
            warm = min(of(p, r), m)
            row = [Op("F", r, i) for i in range(warm)]
            for k in range(m):
                forward = [Op("F", r, warm + k)] if warm + k < m else []
                back = [Op("B", r, k)]
                row += forward + back if first == "F" else back + forward
            rows.append(row)
        return rows

    return answer


eager = with_warmup(lambda p, r: 2 * (p - 1 - r))


def eager_by_sorting(p, m):
    rows = []
    for r in range(p):
        ahead = 2 * (p - 1 - r)
        keyed = [(max(0, i - ahead), 0, i, Op("F", r, i)) for i in range(m)]
        keyed += [(k, 1, k, Op("B", r, k)) for k in range(m)]
        rows.append([op for *_, op in sorted(keyed)])
    return rows


def eager_for_many(p, m):
    """Forgets that the warm-up cannot be longer than m."""
    rows = []
    for r in range(p):
        warm = 2 * (p - 1 - r)
        row = [Op("F", r, i) for i in range(warm)]
        for k in range(m - warm):
            row += [Op("F", r, warm + k), Op("B", r, k)]
        rows.append(row + [Op("B", r, k) for k in range(max(m - warm, 0), m)])
    return rows


# ---- warmup


def warmup(p, r, c, F, B):
    return (p - 1 - r) * (1 + ceil(2 * c / (F + B)))


def warmup_counted(p, r, c, F, B):
    ahead = 1
    while ahead * (F + B) < F + B + 2 * c:
        ahead += 1
    return ahead * (p - 1 - r)


# ---- the rank program


def order(rank, warm=None):
    m, ahead = rank.microbatches, rank.size - 1 - rank.index
    warm = min(2 * ahead if warm is None else warm * ahead, m)
    row = [("F", i) for i in range(warm)]
    for k in range(m):
        row += [("F", warm + k)] * (warm + k < m) + [("B", k)]
    return row


def post(rank, kind):
    source = rank.previous if kind == "F" else rank.next
    if source is None:
        return None
    tensor = rank.empty()
    return tensor, rank.irecv(tensor, source)


def interpreter(warm=None, wait_sends=False, wait_early=False, forget=False, unwaited=False):
    """A program that posts the receive of the next op before it runs the op at hand."""

    def program(rank):
        row, sends = order(rank, warm), []
        coming = post(rank, row[0][0])
        for n, (kind, i) in enumerate(row):
            here = coming
            if here is not None and not unwaited:
                here[1].wait()
            coming = post(rank, row[n + 1][0]) if n + 1 < len(row) else None
            if wait_early and coming is not None and n % 3 == 0:
                coming[1].wait()
            tensor = here[0] if here else rank.data(i) if kind == "F" else None
            out = rank.forward(i, tensor) if kind == "F" else rank.backward(i, tensor)
            to = rank.next if kind == "F" else rank.previous
            if to is not None:
                sends.append(rank.isend(out, to))
                if wait_sends:
                    sends[-1].wait()
        if not forget:
            for request in sends:
                request.wait()

    return program


def one_per_side(rank):
    """Always a receive open on each side, as far as there is something to come."""
    m, sends = rank.microbatches, []
    posted, coming = {"F": 0, "B": 0}, {}

    def ask(kind):
        if posted[kind] < m:
            posted[kind] += 1
            coming[kind] = post(rank, kind)

    ask("F")
    ask("B")
    for kind, i in order(rank):
        here = coming.pop(kind)
        if here is not None:
            here[1].wait()
        ask(kind)
        tensor = here[0] if here else rank.data(i) if kind == "F" else None
        out = rank.forward(i, tensor) if kind == "F" else rank.backward(i, tensor)
        to = rank.next if kind == "F" else rank.previous
        if to is not None:
            sends.append(rank.isend(out, to))
    for request in sends:
        request.wait()


def post_all(rank):
    m, sends = rank.microbatches, []
    coming = {(kind, i): post(rank, kind) for i in range(m) for kind in "FB"}
    for kind, i in order(rank):
        here = coming[kind, i]
        if here is not None:
            here[1].wait()
        tensor = here[0] if here else rank.data(i) if kind == "F" else None
        out = rank.forward(i, tensor) if kind == "F" else rank.backward(i, tensor)
        to = rank.next if kind == "F" else rank.previous
        if to is not None:
            sends.append(rank.isend(out, to))
    for request in sends:
        request.wait()


def fused(rank):
    """The order of eager 1F1B with the calls of plain 1F1B."""
    m = rank.microbatches
    warm = min(2 * (rank.size - 1 - rank.index), m)
    for i in range(warm):
        rank.send_forward(i, rank.forward(i, rank.recv_forward(i)))
    x = rank.recv_forward(warm) if warm < m else None
    for k in range(m - warm):
        i = warm + k
        dx = rank.backward(k, rank.send_forward_recv_backward(i, rank.forward(i, x), k))
        if i + 1 < m:
            x = rank.send_backward_recv_forward(k, dx, i + 1)
        else:
            rank.send_backward(k, dx)
    for k in range(m - warm, m):
        rank.send_backward(k, rank.backward(k, rank.recv_backward(k)))


def asynchronous_sends_only(rank):
    sends = []
    for kind, i in order(rank):
        if kind == "F":
            out, to = rank.forward(i, rank.recv_forward(i)), rank.next
        else:
            out, to = rank.backward(i, rank.recv_backward(i)), rank.previous
        if to is not None:
            sends.append(rank.isend(out, to))
    for request in sends:
        request.wait()


def forwards_only(rank):
    for i in range(rank.microbatches):
        rank.send_forward(i, rank.forward(i, rank.recv_forward(i)))


RIGHT = {
    "calls": [(parity,), (other_parity,)],
    "hops": [(hops,), (hops_by_round,)],
    "exposed": [(exposed,), (exposed_by_message,)],
    "eager": [
        (eager,),
        (eager_by_sorting,),
        (lambda p, m: [list(row) for row in schedules.eager_1f1b(p, m).ranks],),
    ],
    "warmup": [(warmup,), (warmup_counted,)],
    "early": [(interpreter(),), (interpreter(wait_sends=True),), (one_per_side,)],
}

WRONG = {
    "calls": [
        (nothing, "return a list of pairs"),
        (send_first, "everybody sends first, and nobody receives"),
        (both_sends_first, "everybody sends first"),
        (receive_first, "everybody receives first, and nobody sends"),
        (domino, "no deadlock, but the messages go in 8 rounds"),
        (pairwise, "With an odd p, ranks p-1 and 0 are neighbours and both even"),
        (no_ring, "take it modulo p"),
        (one_way, "never calls"),
        (lambda r, p: [("isend", (r + 1) % p)], "is no blocking call"),
        (lambda r, p: [*parity(r, p), parity(r, p)[0]], "has 5 calls"),
        (lambda r, p: [(peer, action) for action, peer in parity(r, p)], "is no blocking call"),
        (lambda r, p: [("send", (r + 2) % p)] * 4, "is no neighbour of rank 0"),
    ],
    "hops": [
        (nothing, "is a return missing"),
        (but(GPipe=lambda p, m, v: p - 1), "that is the way there. The gradients"),
        (but(GPipe=lambda p, m, v: 2 * p), "there are p-1 hops, not p"),
        (but(GPipe=lambda p, m, v: 2 * (p - 1) * m), "counts every message. Most of them"),
        (
            but(eager_1F1B=lambda p, m, v: hops("1F1B", p, m, v)),
            "that is plain 1F1B. Here latency is lost only",
        ),
        (but(**{"1F1B": lambda p, m, v: 2 * (p - 1)}), "that is GPipe"),
        (but(**{"1F1B": lambda p, m, v: 2 * (p - 1) * m / p}), r"is missing: 2\(p-2\)"),
        (but(**{"1F1B": lambda p, m, v: 2 * (p - 1) * m / p + 2 * (p - 1)}), "it is 4p-6"),
        (but(**{"1F1B": lambda p, m, v: 2 * (p - 1) * m}), "share one way there and back"),
        (but(**{"1F1B": lambda p, m, v: 2 * m}), "does it not depend on p"),
        (but(interleaved=lambda p, m, v: 2 * (p - 1)), "goes round v times"),
        (but(interleaved=lambda p, m, v: 2 * (p - 1) * v), "back to rank 0 is missing"),
        (but(interleaved=lambda p, m, v: 2 * p * v), "there are pv-1 boundaries"),
        (but(interleaved=lambda p, m, v: 7), "where in the picture"),
    ],
    "exposed": [
        (nothing, "Is a return missing"),
        (lambda ranks, c: [sum(gaps(row)) for row in ranks], "that is all idle time"),
        (
            lambda ranks, c: [sum(c for gap in gaps(row) if gap) for row in ranks],
            "that takes c for each gap",
        ),
        (every_message, "that takes c for every message"),
        (
            lambda ranks, c: [sum(min(c, g) for g in [*gaps(row)][1:]) for row in ranks],
            "before a rank's first op is missing",
        ),
        (
            lambda ranks, c: [sum(max(0, gap - c) for gap in gaps(row)) for row in ranks],
            "the other part of the gaps",
        ),
        (lambda ranks, c: [sum(gap > 0 for gap in gaps(row)) for row in ranks], "counts the gaps"),
        (lambda ranks, c: sum(exposed(ranks, c)), "return a list, a time for each rank"),
        (lambda ranks, c: [sum(exposed(ranks, c))], "1 numbers, and there are 4 ranks"),
        (lambda ranks, c: [0] * len(ranks), "look at each gap before an op"),
    ],
    "eager": [
        (nothing, "is a return missing"),
        (with_warmup(lambda p, r: p - 1 - r), "takes 49, and 39 is possible.*plain 1F1B"),
        (with_warmup(lambda p, r: 99), "holds 8 activations, and 7 are enough.*that is GPipe"),
        (with_warmup(lambda p, r: 2 * (p - r)), "With a warm-up of 2"),
        (
            with_warmup(lambda p, r: max(2 * (p - 1 - r), 1), first="B"),
            "the warm-up has the right length. After it a forward comes first",
        ),
        (with_warmup(lambda p, r: 2 * r), "waits? for|wait for|never"),
        (with_warmup(lambda p, r: 2 * (p - 1)), "takes 54.*first backward: 7 7 7 7"),
        (eager_for_many, "p=3|micro-batch"),
        (lambda p, m: eager(p, m)[:-1], "lists for 3 ranks, not for 4"),
        (lambda p, m: [row[:-1] for row in eager(p, m)], "never runs|missing"),
    ],
    "warmup": [
        (nothing, "is a return missing"),
        (lambda p, r, c, F, B: p - 1 - r, "that is plain 1F1B"),
        (lambda p, r, c, F, B: 2 * (p - 1 - r), "that is eager 1F1B, for any c"),
        (lambda p, r, c, F, B: (p - 1 - r) * (1 + ceil(c / (F + B))), "there and back: 2c"),
        (lambda p, r, c, F, B: (p - 1 - r) * (1 + 2 * c // (F + B)), "round up, not down"),
        (lambda p, r, c, F, B: (p - 1 - r) * (2 + 2 * c // (F + B)), "fits exactly"),
        (lambda p, r, c, F, B: ceil((p - 1 - r) * (1 + 2 * c / (F + B))), "for each hop, then"),
        (lambda p, r, c, F, B: (p - 1 - r) * ceil(2 * c / (F + B)), "of plain 1F1B is missing"),
        (lambda p, r, c, F, B: (p - 1 - r) * (1 + ceil(2 * c / B)), "not only B"),
        (lambda p, r, c, F, B: (p - 1 - r) * (1 + ceil(2 * c / F)), "not only F"),
        (lambda p, r, c, F, B: warmup(p, r, c, F, B) + 1, "the last rank has none"),
        (lambda p, r, c, F, B: (p - 1 - r) * (1 + 2 * c / (F + B)), "Forwards come whole"),
        (lambda p, r, c, F, B: warmup(p, p - 1 - r, c, F, B), "must run ahead of the next one"),
    ],
    "early": [
        (nothing, "rank 0 never ran the forward of micro-batch 0"),
        (fused, "is posted only when .* needs it"),
        (asynchronous_sends_only, "is posted only when .* needs it"),
        (interpreter(wait_early=True), "is waited for before .* which does not need it|deadlock"),
        (post_all, "receives are posted at once"),
        (interpreter(warm=1), "makespan 49, target 39"),
        (interpreter(warm=3), "holds too many"),
        (interpreter(forget=True), "never waited for"),
        (interpreter(unwaited=True), "receives are posted at once.*if each is waited for"),
        (forwards_only, "is posted only when|never ran the backward"),
    ],
}

PROGRAMS = ("early",)
