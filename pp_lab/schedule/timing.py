"""A schedule on the clock: its ops become tasks, and the law says what each one needs."""

from operator import itemgetter

from .clock import Rule, clock
from .collector import paused
from .op import KINDS, PROVIDES, Move, Op, Pair, needs
from .reasons import deadlock, refusal


def timed(schedule, duration, lag=0, link=0):
    """For each rank the starts and the ends of its items. With a link, after them the same for
    each of `links(schedule)`.

    duration: gives that of an op or a pair; lag: how long a message between ranks takes; link:
    how long it occupies its link before.
    Refuses, with a reason, whatever is not a complete set of ops, each once and on the rank
    that owns its stage, in an order in which nobody waits for ever.
    """
    with paused():
        try:
            lanes = [tasks(schedule, row) for row in schedule.ranks]
        except (AttributeError, TypeError, ValueError):
            raise refusal(schedule) from None
        laws = [rules(schedule, rank, duration, lag, link) for rank in range(schedule.p)]
        try:
            queues = list(zip(laws, lanes, strict=True))
            if link:
                queues += _queues(schedule, link)
            spans, made = clock(queues, schedule.microbatches)
        except (LookupError, TypeError, ValueError):
            raise refusal(schedule) from None
        spans, on_links = spans[: schedule.p], spans[schedule.p :]
        ended = all(len(lane) == len(ends) for lane, (_, ends) in zip(lanes, spans, strict=True))
        if not (ended and _complete(schedule, made)):
            raise refusal(schedule) or deadlock(schedule, *_circle(schedule, spans, made))
        return [
            (starts, ends) if len(starts) == len(row) else _joined(row, starts, ends)
            for row, (starts, ends) in zip(schedule.ranks, spans, strict=True)
        ] + on_links


def links(schedule):
    """{(rank, rank): the messages from the one to the other}, in the order in which the values
    are made; of a pair the gradient first, as `lower` has it. A message is the `Move` that sends
    it."""
    found, last = {}, schedule.stages - 1
    for rank, row in enumerate(schedule.ranks):
        for item in row:
            for op in reversed(item.parts):
                step = {"F": 1, "B": -1, "I": -1}.get(op.kind, 0)
                if step and 0 <= op.stage + step <= last:
                    peer = schedule.owner(op._replace(stage=op.stage + step))
                    if peer != rank:
                        move = Move("SEND", "F" if step > 0 else "B", *op[1:])
                        found.setdefault((rank, peer), []).append(move)
    return found


def _queues(schedule, link):
    """The links as lanes of the clock: a message goes when its value is there."""
    queues = []
    for moves in links(schedule).values():
        rules, tasks = {}, []
        for move in moves:
            copy = schedule.placement.copy(move.microbatch, schedule.microbatches)
            kind, place = "F" if move.kind == "F" else "I", move.stage + copy * schedule.stages
            rules.setdefault(kind, {})[place] = Rule(
                [((kind, place), 0)], [("sent", kind, place)], link
            )
            tasks.append((kind, place, move.microbatch))
        queues.append((rules, tasks))
    return queues


def tasks(schedule, row):
    """The tasks of a rank's items: (kind, place, micro-batch).

    An op is its own task; with several copies of the model, the place says in which one. A
    pair is three: a gate that waits for what its backward needs, the forward, which takes the
    pair's whole time, and the backward, which takes none.
    """
    types, stages = set(map(type, row)), schedule.stages
    if not types <= {Op, Pair}:
        raise TypeError("something is neither an Op nor a Pair")
    if types == {Op} and len(schedule.placement.copies) == 1:
        if min(map(itemgetter(2), row)) < 0:
            raise ValueError("a micro-batch that Python would count from the end")
        return row

    def task(op, kind):
        copy = schedule.placement.copy(op.microbatch, schedule.microbatches)
        return kind, op.stage + copy * stages, op.microbatch

    lane = []
    for item in row:
        if type(item) is Op:
            lane.append(task(item, item.kind))
        else:
            f, b = item
            if f.kind != "F" or b.kind not in "BI":
                raise ValueError("a pair is a forward and a backward")
            beside = b.kind, b.stage
            lane += (task(b, ("gate", b.kind)), task(f, ("F", *beside)), task(b, ("end", b.kind)))
    return lane


def reductions(placement, done, duration):
    """The all-reduces of a step's gradients: (rank, op, start, end), in order of time.

    done: for each rank {(copy, stage): (end of its last backward, that micro-batch)}. A stage's
    starts when all its copies are done, and each rank takes part in one at a time.
    """
    free, found = dict.fromkeys(done, 0), []
    members = [  # of each stage, but for copies that no micro-batch goes through
        [
            (owners[stage], copy)
            for copy, owners in enumerate(placement.copies)
            if (copy, stage) in done[owners[stage]]
        ]
        for stage in range(placement.stages)
    ]

    def ready(stage):
        return max(done[rank][copy, stage][0] for rank, copy in members[stage])

    for stage in sorted(range(placement.stages), key=lambda stage: (ready(stage), -stage)):
        ranks = {rank: done[rank][copy, stage][1] for rank, copy in reversed(members[stage])}
        start = max(ready(stage), *map(free.get, ranks))
        end = start + duration(stage)
        for rank, microbatch in sorted(ranks.items()):
            free[rank] = end
            found.append((rank, Op("R", stage, microbatch), start, end))
    return found


def last_backwards(placement, microbatches, row, ends):
    """Of a rank's row and the ends of its items: {(copy, stage): (end, micro-batch)} of the
    last op that gives each of its stages a weight gradient."""
    found = {}
    for item, end in zip(row, ends, strict=True):
        for op in item.parts:
            if op.kind in "BW":
                found[placement.copy(op.microbatch, microbatches), op.stage] = end, op.microbatch
    return found


def rules(schedule, rank, duration, lag, link=0):
    """What each kind of task needs, makes and takes on a rank, at each place.

    The law is asked once for all micro-batches, for it never leaves one.
    """
    stages, found = schedule.stages, {kind: {} for kind in KINDS}
    for copy, stage in schedule.placement.held_by(rank):
        owners, shift = schedule.placement.copies[copy], copy * stages
        for kind in KINDS:
            op = Op(kind, stage, 0)
            waits = []
            for need in needs(op, stages):
                result, remote = (need.kind, need.stage + shift), owners[need.stage] != rank
                waits.append((("sent", *result) if link and remote else result, lag * remote))
            makes = [(result, stage + shift) for result in PROVIDES[kind]]
            found[kind][stage + shift] = Rule(waits, makes, duration(op))
    pairs = [item for item in schedule.ranks[rank] if type(item) is Pair]
    for pair in {(f.stage, b.kind, b.stage): Pair(f, b) for f, b in pairs}.values():
        beside = found.setdefault(("F", pair.b.kind, pair.b.stage), {})
        for place, rule in found["F"].items():
            if place % stages == pair.f.stage:
                beside[place] = rule._replace(duration=duration(pair))
        ended = {place: rule._replace(duration=0) for place, rule in found[pair.b.kind].items()}
        found["end", pair.b.kind] = ended
        found["gate", pair.b.kind] = {k: rule._replace(makes=[]) for k, rule in ended.items()}
    return found


def _joined(row, starts, ends):
    """Starts and ends of items, some of which are pairs: a pair starts at its second task."""
    first, last, k = [], [], 0
    for item in row:
        size = 3 if type(item) is Pair else 1
        first.append(starts[k + size // 2])
        k += size
        last.append(ends[k - 1])
    return first, last


def _complete(schedule, made):
    """Whether each result of each stage is there for every micro-batch of its copy."""
    for copy in range(len(schedule.placement.copies)):
        dealt = schedule.placement.dealt(copy, schedule.microbatches)
        for stage in range(schedule.stages):
            for result in "FIW":
                times = made.get((result, stage + copy * schedule.stages), [None])
                if None in times[dealt.start : dealt.stop]:
                    return False
    return True


def _circle(schedule, spans, made):
    """What each rank that never ends stands at and waits for, and who would make what."""
    stuck, makers = {}, {}
    for rank, (row, (starts, _)) in enumerate(zip(schedule.ranks, spans, strict=True)):
        started = len(starts)
        for position, item in enumerate(row):
            for op in item.parts:
                makers.update(((result, *op[1:]), (rank, position)) for result in PROVIDES[op.kind])
            started -= 3 if type(item) is Pair else 1
            if started < 0 and rank not in stuck:
                stuck[rank] = position, _lacking(schedule, item, made)
    return stuck, makers


def _lacking(schedule, item, made):
    """The first result that an item waits for in vain."""
    for op in item.parts:
        shift = schedule.placement.copy(op.microbatch, schedule.microbatches) * schedule.stages
        for need in needs(op, schedule.stages):
            if made[need.kind, need.stage + shift][need.microbatch] is None:
                return tuple(need)
    raise AssertionError(f"{item} could run")
