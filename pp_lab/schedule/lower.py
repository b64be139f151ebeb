"""From ops to ops and messages: where a rank sends, where it receives, and when that blocks.

Sends and receives follow from what the ops need. Their order is the difficult part: where
messages are taken in the order in which they are posted (NCCL), or a send waits for its
receive (gloo, and any large message), two ranks that both send first wait for ever.
"""

from .clock import Rule, clock
from .cost import F1B2, Cost, exact
from .errors import ScheduleError
from .op import PROVIDES, Move, needs
from .reasons import deadlock, grid
from .schedule import Schedule
from .timing import timed


def lower(schedule: Schedule, cost: Cost = F1B2, matched: bool = True) -> Schedule:
    """The schedule with its messages spelled out as `Move`s.

    matched: everything is put in one order, that of the times in which it would happen under
        `cost`, and each rank's list is its piece of this one order. A message stands in it
        when its value is made, for both its ends. So no order of waiting can close a circle:
        the first message of the one order that is not done has nothing to wait for. A
        transport may post the receives earlier, up to the rank's message before.
    matched=False: as one writes it by hand: a receive right before the op that needs it, a
        send right after the op that makes it. Neighbours may then both send first.

    Two stages on the same rank need no message.
    """
    schedule = schedule.without_moves()
    _, duration, hop = cost.in_ticks()
    times = timed(schedule, duration, hop)
    steps = timed(schedule, lambda item: 1)
    made, entries = {}, []
    for rank, row in enumerate(schedule.ranks):
        for item, start, end, step in zip(row, *times[rank], steps[rank][0], strict=True):
            for op in item.parts:
                for result in PROVIDES[op.kind]:
                    made[(result, *op[1:])] = start, end, step, item
            entries.append(((start, 1, step), rank, item))
    before, after = {}, {}  # for each item the moves that stand next to it
    for _, rank, item in list(entries):
        for send, receive, sender, need in messages(schedule, rank, item):
            start, end, step, maker = made[need]
            # A value is sent when it is made, and before what starts then; a maker that takes
            # no time starts then too, and still comes first.
            key = (end, 0, step) if end > start else (end, 1, step + 0.5)
            entries += (key, sender, send), (key, rank, receive)
            before.setdefault(item, []).append(receive)
            after.setdefault(maker, []).append(send)
    rows = [[] for _ in schedule.ranks]
    if matched:
        for _, rank, item in sorted(entries, key=lambda entry: entry[0]):
            rows[rank].append(item)
    else:
        for rank, row in enumerate(schedule.ranks):
            for item in row:
                rows[rank] += (*before.get(item, ()), item, *after.get(item, ()))
    return Schedule(schedule.name, rows, schedule.placement, schedule.microbatches)


def messages(schedule, rank, item):
    """The messages that an item of a rank waits for: (send, receive, sender's rank, need)."""
    for op in item.parts:
        for need in needs(op, schedule.stages):
            sender = schedule.owner(need)
            if sender != rank:
                receive = Move("RECV", "F" if need.kind == "F" else "B", *op[1:])
                yield receive.partner, receive, sender, need


def rendezvous(schedule: Schedule, cost: Cost = F1B2):
    """Time a lowered schedule in which a send and its receive wait for each other.

    From when both have come, the message takes `cost.comm` of both ranks' time. Returns
    tuples (rank, lane, item, start, end). Raises ScheduleError for what `verify` refuses, for
    a message with one end only, and for a deadlock.
    """
    timed(schedule.without_moves(), duration=lambda item: 1)
    wanted = {
        receive: tuple(need)
        for rank, row in enumerate(schedule.ranks)
        for item in row
        for _, receive, _, need in messages(schedule, rank, item)
    }
    _check_ends(schedule, wanted)
    lanes, makers = [], {}
    for rank, row in enumerate(schedule.ranks):
        rules = {}  # each task has its own
        for position, item in enumerate(row):
            for step, rule in enumerate(_steps(schedule, rank, item, wanted, cost)):
                rules[position, step] = {0: rule}
                makers.update((result, (rank, position)) for result in rule.makes)
        lanes.append((rules, [(key, 0, 0) for key in rules]))
    spans, made = clock(lanes, 1)
    events, stuck = [], {}
    for rank, ((rules, tasks), (starts, ends)) in enumerate(zip(lanes, spans, strict=True)):
        if len(ends) < len(tasks):
            key = tasks[len(ends)][0]
            stuck[rank] = key[0], next(n for n, _ in rules[key][0].needs if made[n] == [None])
            continue
        times = zip(map(exact, starts), map(exact, ends), strict=True)
        last = {key[0]: time for (key, *_), time in zip(tasks, times, strict=True)}
        for position, item in enumerate(schedule.ranks[rank]):
            lane = "compute" if item.parts else "comm"  # a move is there while it moves
            events.append((rank, lane, item, *last[position]))
    if stuck:
        raise deadlock(schedule, stuck, makers)
    return events


def _steps(schedule, rank, item, wanted, cost):
    """The rules of an item's tasks: an op runs; a move comes, and, when both have come, moves."""
    if type(item) is Move:
        value = wanted.get(item.partner)  # a receive brings nothing along, a send its value
        yield Rule([(value, 0)] if value else [], [("come", item)], 0)
        yield Rule(
            [(("come", end), 0) for end in (item, item.partner)], [("moved", item)], cost.comm
        )
    else:
        remote = {need: receive for _, receive, _, need in messages(schedule, rank, item)}
        waits = [
            (("moved", remote[need]) if need in remote else tuple(need), 0)
            for op in item.parts
            for need in needs(op, schedule.stages)
        ]
        makes = [(result, *op[1:]) for op in item.parts for result in PROVIDES[op.kind]]
        yield Rule(waits, makes, cost.of(item))


def _check_ends(schedule, wanted):
    """Refuse a message that has one end only, or that is there twice, or for nothing."""
    place = {}
    wanted = dict.fromkeys(move for receive in wanted for move in (receive.partner, receive))
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
                raise ScheduleError(
                    f"rank {rank}, position {position}: {reason}",
                    rank,
                    position,
                    item,
                    grid(schedule, [(rank, position)]),
                )
            place[item] = rank, position
    for move in (move for move in wanted if move not in place):
        rank, other = schedule.owner(move), place.get(move.partner)
        what = (
            f"although rank {other[0]} has {move.partner} at position {other[1]}"
            if other
            else "and nobody the other end"
        )
        raise ScheduleError(
            f"rank {rank} has no {move}, {what}",
            rank,
            None,
            move,
            grid(schedule, [other] if other else []),
        )
