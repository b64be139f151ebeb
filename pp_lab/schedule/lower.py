"""From ops to ops and messages: where a rank sends, where it receives, and when that blocks.

Sends and receives follow from what the ops need. Their order is the difficult part: where
messages are taken in the order in which they are posted (NCCL), or a send waits for its
receive (gloo, and any large message), two ranks that both send first wait for ever.
"""

from heapq import heappop, heappush

from .collector import paused
from .cost import F1B2, Cost
from .op import PROVIDES
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
    timed(schedule)  # refuses what cannot run at all
    outgoing, incoming = {}, {}  # for each result, and for each item, its messages
    for rank, row in enumerate(schedule.ranks):
        for item in row:
            incoming[item] = list(schedule.incoming(rank, item))
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
    _, cost = cost.in_ticks()
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
            free[rank] = start + cost.of(item)
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
            free[sender] = free[receiver] = start + cost.comm
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
