"""Why a schedule is refused: one sentence that names rank, position, op, and the cause.

Nothing of this is entered unless a schedule has failed (see `timed`). It looks at the schedule
alone, and knows nothing of clocks.
"""

from .errors import ScheduleError
from .op import KINDS, PROVIDES, Move, Op, Pair, needs


def refusal(schedule) -> ScheduleError | None:
    """What is wrong with a schedule; None where nothing is.

    First its ops are looked at, as if messages needed no care; then, where they are spelled
    out, whether each message has two ends; then whether all of it can run in its order.
    """
    ops = schedule.without_moves() if schedule.has_moves else schedule
    error = wrong_op(ops) or deadlock(ops)
    if error is None and ops is not schedule:
        error = wrong_move(schedule) or deadlock(schedule)
    return error


# ---- an op, or a message, that must not be there, or is missing


def wrong_op(schedule) -> ScheduleError | None:
    """The first op that must not stand where it stands, or else one that is missing, if any."""
    seen = {}
    for rank, row in enumerate(schedule.ranks):
        for position, item in enumerate(row):
            at = rank, position
            if isinstance(item, Pair) and (reason := _unfit(item)):
                return _refused(schedule, at, reason, [at])
            for op in item.parts if isinstance(item, Pair) else (item,):
                if reason := _misplaced(schedule, rank, op):
                    return _refused(schedule, at, reason, [at])
                for result in PROVIDES[op.kind]:
                    first, there = seen.setdefault((result, *op[1:]), (op, at))
                    if there != at or first is not op:
                        return _refused(schedule, at, _again(op, first, there[1]), [at, there])
    return _missing(schedule, seen)


def _unfit(pair):
    """Why two ops are no pair."""
    f, b = pair
    if not (isinstance(f, Op) and isinstance(b, Op)) or f.kind != "F" or b.kind not in ("B", "I"):
        return (
            f"{f} and {b} are no pair: a pair overlaps a forward (F) with a backward "
            "(B or I), in this order"
        )
    return None


def _misplaced(schedule, rank, op):
    """Why `op` must not stand on `rank`, if so."""
    stages, m = schedule.stages, schedule.microbatches
    if not isinstance(op, Op):
        return f'{op!r} is not an op. Write Op("F", stage, microbatch), or Pair(f, b)'
    if op.kind not in KINDS:
        return (
            f"{op} has the kind {op.kind!r}. Kinds are F forward, B full backward, "
            "I input gradient, W weight gradient"
        )
    if not all(isinstance(x, int) and not isinstance(x, bool) for x in op[1:]):
        return f"{tuple(op)!r}: stage and micro-batch must be whole numbers"
    if not 0 <= op.stage < stages:
        return f"{op} names stage {op.stage}, but there are only stages 0 to {stages - 1}"
    if not 0 <= op.microbatch < m:
        return (
            f"{op} names micro-batch {op.microbatch}, but there are only micro-batches 0 to {m - 1}"
        )
    if (owner := schedule.owner(op)) != rank:
        several = len(schedule.placement.copies) > 1
        return (
            f"{op} belongs to rank {owner}, which owns stage {op.stage}"
            + f" for micro-batch {op.microbatch}" * several
        )
    return None


def _again(op, first, position):
    """Why `op` is one too many."""
    if op.kind == first.kind:
        return f"{op} is there twice; the first is at position {position}"
    return (
        f"{op} does again what {first} at position {position} does: a backward is either "
        "one B, or an I and a W"
    )


def _missing(schedule, seen):
    """The first op that is not there."""
    stages, m = schedule.stages, schedule.microbatches
    for kind in "FIW":
        for stage in range(stages):
            lost = [i for i in range(m) if (kind, stage, i) not in seen]
            if not lost:
                continue
            absent = Op(kind, stage, lost[0])
            halves = {"I": "W", "W": "I"}
            how = ""
            if kind in halves:
                other = absent._replace(kind=halves[kind])
                if tuple(other) in seen:
                    which = {"I": "input", "W": "weight"}[kind]
                    how = f": {other} is there, so the {which} gradient is missing"
                else:
                    absent, how = absent._replace(kind="B"), " (nor as I and W)"
            if len(lost) > 1:
                how += f"; in all, {len(lost)} of stage {stage}'s {m} are missing"
            rank = schedule.owner(absent)
            return ScheduleError(
                f"rank {rank} never runs {absent}{how}. Every stage runs each micro-batch's "
                "forward and backward once",
                rank,
                None,
                absent,
                grid(schedule),
            )
    return None


def wrong_move(schedule) -> ScheduleError | None:
    """The first message that has one end only, or that is there twice, or for nothing."""
    wanted = {}  # both ends of every message that an op needs
    for rank, row in enumerate(schedule.ranks):
        for item in row:
            for send, receive, *_ in schedule.incoming(rank, item):
                wanted |= {send: None, receive: None}
    place = {}
    for rank, row in enumerate(schedule.ranks):
        for position, item in enumerate(row):
            if type(item) is not Move:
                continue
            reason = None
            if item in place:
                reason = f"{item} is there twice; the first is at position {place[item][1]}"
            elif item not in wanted:
                reason = f"{item} moves nothing that an op of another rank needs"
            elif schedule.owner(item) != rank:
                reason = f"{item} belongs to rank {schedule.owner(item)}, which owns its stage"
            if reason:
                at = rank, position
                return _refused(schedule, at, reason, [at])
            place[item] = rank, position
    for move in (move for move in wanted if move not in place):
        rank, other = schedule.owner(move), place.get(move.partner)
        what = (
            f"although rank {other[0]} has {move.partner} at position {other[1]}"
            if other
            else "and nobody the other end"
        )
        return ScheduleError(
            f"rank {rank} has no {move}, {what}",
            rank,
            None,
            move,
            grid(schedule, [other] if other else []),
        )
    return None


# ---- an order in which somebody waits for ever


def deadlock(schedule) -> ScheduleError | None:
    """Who waits for whom, if not everything can run."""
    stuck = _standing(schedule)
    if not stuck:
        return None
    makers = {}  # for each result, and each end of a message, who would make it: (rank, position)
    for rank, row in enumerate(schedule.ranks):
        for position, item in enumerate(row):
            at = rank, position
            if type(item) is Move:
                makers |= {("come", item): at, ("moved", item): at}
            for op in item.parts:
                makers.update(((result, *op[1:]), at) for result in PROVIDES[op.kind])
    rank, chain, seen = min(stuck), [], {}
    while rank not in seen:
        seen[rank] = len(chain)
        position, result = stuck[rank]
        chain.append((rank, position, *makers[result]))
        rank = makers[result][0]
    cycle = chain[seen[rank] :]
    rank, position, _, there = cycle[0]
    ops = schedule.ranks
    if len(cycle) > 1:
        reason = (
            "deadlock: "
            + "; ".join(
                f"rank {r} waits at position {k} ({ops[r][k]}) for {ops[q][n]}, "
                f"which rank {q} has only at position {n}"
                for r, k, q, n in cycle
            )
            + f". So rank {rank} waits for itself."
        )
    elif there == position:
        reason = (
            f"rank {rank}, position {position}: {ops[rank][position]} needs itself: a pair "
            "starts as one, so its two parts must not depend on each other"
        )
    else:
        reason = (
            f"rank {rank}, position {position}: {ops[rank][position]} needs "
            f"{ops[rank][there]}, which stands only later in the same rank's list, "
            f"at position {there}"
        )
    marks = [(r, k) for r, k, *_ in cycle]
    return ScheduleError(reason, rank, position, ops[rank][position], grid(schedule, marks))


def _standing(schedule):
    """Let every rank run what it can until nobody can go on. For each rank that has not ended:
    (the position where it stands, the first of what it waits for)."""
    done, at, ranks = set(), [0] * schedule.p, schedule.ranks
    spelled = schedule.has_moves  # else each result is there as soon as it is made

    def next_of(rank):
        return ranks[rank][at[rank]] if at[rank] < len(ranks[rank]) else None

    def lacking(rank, item):
        if type(item) is Move:
            if item.action == "SEND" and (value := _carried(item)) not in done:
                return value
            return ("come", item.partner)
        incoming = schedule.incoming(rank, item) if spelled else ()
        arrived = {need: ("moved", receive) for _, receive, _, need in incoming}
        wanted = (need for op in item.parts for need in needs(op, schedule.stages))
        results = (arrived.get(need, tuple(need)) for need in wanted)
        return next((result for result in results if result not in done), None)

    def advance(rank):
        """Whether the rank's next item has run."""
        item = next_of(rank)
        if type(item) is Move:
            other = schedule.owner(item.partner)
            send, receive = sorted((item, item.partner), key=lambda end: end.action == "RECV")
            if next_of(other) != item.partner or _carried(send) not in done:
                return False
            done.add(("moved", receive))
            at[other] += 1
        elif item is None or lacking(rank, item):
            return False
        else:
            done.update((r, *op[1:]) for op in item.parts for r in PROVIDES[op.kind])
        at[rank] += 1
        return True

    moving = True
    while moving:
        moving = False
        for rank in range(schedule.p):
            while advance(rank):
                moving = True
    return {
        rank: (at[rank], lacking(rank, item))
        for rank in range(schedule.p)
        if (item := next_of(rank)) is not None
    }


def _carried(send):
    """The result that a message carries."""
    return ("F" if send.kind == "F" else "I", *send[2:])


def _refused(schedule, at, reason, marks):
    rank, position = at
    return ScheduleError(
        f"rank {rank}, position {position}: {reason}",
        rank,
        position,
        schedule.ranks[rank][position],
        grid(schedule, marks),
    )


def grid(schedule, marks=()):
    """The schedule as text, a row per rank, with the items at `marks` (rank, position) marked.

    A long row is shown around its first mark.
    """
    lines = []
    for rank, row in enumerate(schedule.ranks):
        at = next((k for r, k in marks if r == rank), 0)
        first = max(0, min(at - 8, len(row) - 24))
        cells = [
            f"!{schedule.label(item)}!" if (rank, k) in marks else schedule.label(item)
            for k, item in enumerate(row[first : first + 24], first)
        ]
        lines.append(
            f"  rank {rank}: {'… ' if first else ''}{' '.join(cells)}"
            f"{' …' if len(row) > first + 24 else ''}"
        )
    return "\n".join(lines)
