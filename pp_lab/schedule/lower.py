"""From ops to ops and messages: where a rank sends, where it receives, and when that blocks.

Sends and receives follow from what the ops need. Their order is the difficult part: where
messages are taken in the order in which they are posted (NCCL), or a send waits for its
receive (gloo, and any large message), two ranks that both send first wait for ever.
"""

from heapq import heappop, heappush

from .clock import Rule, clock
from .collector import paused
from .cost import F1B2, Cost, exact
from .errors import ScheduleError
from .op import PROVIDES, Move, needs
from .reasons import deadlock, grid
from .schedule import Schedule
from .timing import timed


@paused()
def lower(schedule: Schedule, cost: Cost = F1B2, matched: bool = True) -> Schedule:
    """The schedule with its messages spelled out as `Move`s.

    matched: everything is put in one order, that of a run under `cost` in which a message
        takes the time of both its ranks, and each rank's list is its piece of this one order.
        So no order of waiting can close a circle: of all that is left, the first in the one
        order has nothing to wait for. A transport may post receives earlier, up to the rank's
        message before.
    matched=False: as one writes it by hand: a receive right before the op that needs it, a
        send right after the op that makes it. Neighbours may then both send first.

    Two stages on the same rank need no message.
    """
    schedule = schedule.without_moves()
    timed(schedule, duration=lambda item: 1)  # refuses what cannot run at all
    outgoing, incoming = {}, {}  # for each result, and for each item, its messages
    for rank, row in enumerate(schedule.ranks):
        for item in row:
            incoming[item] = list(messages(schedule, rank, item))
            for send, receive, sender, need in incoming[item]:
                outgoing.setdefault(tuple(need), []).append((send, receive, sender, rank))
    rows = [[] for _ in schedule.ranks]
    if matched:
        for rank, item in _one_order(schedule, cost, outgoing, incoming):
            rows[rank].append(item)
    else:
        for rank, row in enumerate(schedule.ranks):
            for item in row:
                rows[rank] += [receive for _, receive, *_ in incoming[item]]
                rows[rank].append(item)
                rows[rank] += [send for send, *_ in _sent(item, outgoing)]
    return Schedule(schedule.name, rows, schedule.placement, schedule.microbatches)


def _one_order(schedule, cost, outgoing, incoming):
    """Everything that happens, (rank, item) by (rank, item), as time goes on.

    A rank sends what it made before it computes again, and takes a message that is there
    before it computes. So whoever has something to send is heard as soon as the other one has
    ended its op, and when nobody has, the next op of some rank has all that it needs.
    """
    _, duration, hop = cost.in_ticks()
    free, position, unsent = ([0] * schedule.p for _ in range(3))
    received, soonest = set(), []  # what could happen next: (start, 0 or 1, …), messages first

    def offer(rank):
        """Put a rank's next op in line, if it can run as soon as the rank is free."""
        row, k = schedule.ranks[rank], position[rank]
        if unsent[rank] or k == len(row):
            return
        if all(receive in received for _, receive, *_ in incoming[row[k]]):
            heappush(soonest, (free[rank], 1, rank, k))

    for rank in range(schedule.p):
        offer(rank)
    while soonest:
        start, is_op, *what = heappop(soonest)
        if is_op:
            rank, k = what
            if k != position[rank]:
                continue  # it was in line twice, and is done
            if free[rank] > start:
                offer(rank)
                continue
            item = schedule.ranks[rank][k]
            yield rank, item
            free[rank] = start + duration(item)
            position[rank] += 1
            for message in _sent(item, outgoing):
                unsent[rank] += 1
                heappush(soonest, (free[rank], 0, *message))
            offer(rank)
        else:
            send, receive, sender, receiver = what
            ready = max(free[sender], free[receiver])
            if ready > start:
                heappush(soonest, (ready, 0, *what))
                continue
            yield sender, send
            yield receiver, receive
            free[sender] = free[receiver] = start + hop
            unsent[sender] -= 1
            received.add(receive)
            offer(sender)
            offer(receiver)


def _sent(item, outgoing):
    """The messages that carry what an item makes."""
    return [
        message
        for op in item.parts
        for result in PROVIDES[op.kind]
        for message in outgoing.get((result, *op[1:]), ())
    ]


def messages(schedule, rank, item):
    """The messages that an item of a rank waits for: (send, receive, sender's rank, need)."""
    for op in item.parts:
        for need in needs(op, schedule.stages):
            sender = schedule.owner(need)
            if sender != rank:
                receive = Move("RECV", "F" if need.kind == "F" else "B", *op[1:])
                yield receive.partner, receive, sender, need


@paused()
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
