"""From a schedule to lanes for the clock: what everything on a rank needs, makes and takes.

The law (`needs`) never leaves a micro-batch. So it is asked once for each kind of op on each
stage that a rank holds, and the answer, a `Rule`, holds for all micro-batches.

The place of a stage counts through the copies of the model: stage s of copy c is at place
s + c * stages, and its micro-batches are counted within the copy.
"""

from functools import lru_cache
from operator import itemgetter
from typing import NamedTuple

from .clock import Rule
from .op import PROVIDES, Move, Node, Op, Pair, needs


class Lane(NamedTuple):
    """What one lane of a rank did, in order. Times are in ticks."""

    rank: int
    name: str
    items: list
    starts: list
    ends: list


class Queue(NamedTuple):
    """What is to be done in order, before its times are known.

    items: what is on it; rules, tasks: what the clock runs; sizes: how many tasks each item has,
    None for one each. Where an item has several, the first one only waits.
    """

    rank: int
    name: str
    items: list
    rules: dict
    tasks: list
    sizes: list | None = None

    def lanes(self, starts, ends):
        """The `Lane`s that show it, given the times of its tasks: one, unless what is on it
        belongs on several."""
        if self.sizes is not None:
            starts, ends = self._spans(starts, ends)
        if self.name != "compute" or set(map(type, self.items)) <= {Op, Pair}:
            return [Lane(self.rank, self.name, self.items, starts, ends)]
        entries = by_lane(zip(self.items, starts, ends, strict=True), key=itemgetter(0))
        return [
            Lane(self.rank, name, *map(list, zip(*of, strict=True)))
            for name, of in entries.items()
            if of
        ]

    def _spans(self, starts, ends):
        """The starts and the ends of the items, from those of the tasks."""
        first, last, k = [], [], 0
        for size in self.sizes:
            first.append(starts[k + (size > 1)])
            k += size
            last.append(ends[k - 1])
        return first, last


def connect(schedule, cost):
    """The `Queue`s of a schedule: each rank's work, and then, with `cost.link`, each link's
    messages. TypeError, ValueError or LookupError for what cannot be on a schedule."""
    queues = []
    for rank, row in enumerate(schedule.ranks):
        found = rules(schedule, rank, cost)
        for name, items in by_lane(row).items() if cost.streams > 1 else [("compute", row)]:
            queues.append(Queue(rank, name, items, found, *tasks(schedule, items, cost)))
    for (rank, peer), moves in links(schedule).items() if cost.link else ():
        found = _sending(schedule, rank, cost)
        queues.append(Queue(rank, f"to rank {peer}", moves, found, tasks(schedule, moves, cost)[0]))
    return queues


def by_lane(row, key=lambda item: item):
    """{lane: what runs on it, in order}, compute first. key: gives an entry's item."""
    found = {"compute": []}
    for entry in row:
        found.setdefault(key(entry).lane, []).append(entry)
    return found


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


# ---- what is run


def tasks(schedule, items, cost):
    """(the tasks of some items of a rank, how many each has): (kind, place, micro-batch).

    An op is its own task. A pair is three: a gate that waits for what its backward needs, the
    forward, which takes the pair's whole time, and the backward, which takes none. A message
    that both ranks wait for is two, it comes and it moves; so is an exchange between ranks.
    """
    types, placement = set(map(type, items)), schedule.placement
    if types == {Op} and len(placement.copies) == 1:
        if min(map(itemgetter(2), items)) < 0:
            raise ValueError("a micro-batch that Python would count from the end")
        return items, None
    m, stages = schedule.microbatches, schedule.stages
    firsts = [placement.dealt(copy, m).start for copy in range(len(placement.copies))]

    def task(op, *kind):
        copy = placement.copy(op.microbatch, m)
        return kind if len(kind) > 1 else kind[0], op.stage + copy * stages, (
            op.microbatch - firsts[copy]
        )  # fmt: skip

    lane, sizes = [], []
    for item in items:
        if type(item) is Op:
            new = [task(item, item.kind)]
        elif type(item) is Pair:
            f, b = item
            if f.kind != "F" or b.kind not in "BI":
                raise ValueError("a pair is a forward and a backward")
            new = [task(b, "gate", b.kind), task(f, "F", b.kind, b.stage), task(b, "end", b.kind)]
        elif type(item) is Move:
            what = item.action, item.kind
            new = [task(item, "move", *what)]
            if cost.blocking:
                new.insert(0, task(item, "come", *what))
        elif type(item) is Node:
            new = [task(item, item.kind, item.part)]
            if cost.ep > 1 and item.lane != "compute":
                new.insert(0, task(item, "come", item.kind, item.part))
        else:
            raise TypeError(f"{item!r} is nothing that runs")
        lane += new
        sizes.append(len(new))
    return lane, sizes if max(sizes, default=1) > 1 else None


# ---- what each of it needs


def rules(schedule, rank, cost):
    """What each kind of task needs, makes and takes on a rank, at each place: {kind: {place:
    `Rule`}}."""
    found, mine, stages = {}, cost.on(rank), schedule.stages
    for copy, stage in schedule.placement.held_by(rank):
        owners, shift = schedule.placement.copies[copy], copy * stages
        for op in cost.pieces(stage):
            kind, waits, makes = _law(op, stages, shift)
            waits = [
                (name, 0) if owners[where] == rank else _arriving(name, cost)
                for where, name in waits
            ]
            rule = Rule(waits, makes, mine.of(op))
            if cost.ep > 1 and op.lane != "compute":
                rule = _together(rule, op, stage, schedule, shift, found)
            found.setdefault(kind, {})[stage + shift] = rule
        if cost.blocking:
            _meeting(found, stage, owners, shift, rank, cost)
    _pairs(found, schedule, rank, mine)
    return found


@lru_cache(maxsize=1 << 14)
def _law(op, stages, shift):
    """The kind of task that an op is; what it needs, as pairs (stage, result); what it makes."""
    waits = [(need.stage, result(need, shift)) for need in needs(op, stages)]
    makes = [result(op._replace(kind=kind), shift) for kind in PROVIDES[op.kind]]
    return _kind(op), waits, makes


def _kind(op):
    return (op.kind, op.part) if type(op) is Node else op.kind


def result(op, shift):
    """The name of what an op makes, for all micro-batches."""
    return _kind(op), op.stage + shift


def _arriving(result, cost):
    """(what to wait for, for how long after it) where a result comes from another rank."""
    if cost.blocking:
        return ("moved", *result), 0
    return ("sent", *result) if cost.link else result, cost.comm


def _pairs(found, schedule, rank, cost):
    """Add the rules of a pair's three tasks."""
    pairs = [item for item in schedule.ranks[rank] if type(item) is Pair]
    for pair in {(f.stage, b.kind, b.stage): Pair(f, b) for f, b in pairs}.values():
        beside = found.setdefault(("F", pair.b.kind, pair.b.stage), {})
        for place, rule in found["F"].items():
            if place % schedule.stages == pair.f.stage:
                beside[place] = rule._replace(duration=cost.of(pair))
        ended = {place: rule._replace(duration=0) for place, rule in found[pair.b.kind].items()}
        found["end", pair.b.kind] = ended
        found["gate", pair.b.kind] = {k: rule._replace(makes=[]) for k, rule in ended.items()}


def _meeting(found, stage, owners, shift, rank, cost):
    """Add the rules of messages as a rendezvous. A send comes with its value, a receive with
    nothing; when both have come, both ranks are held up until it has moved."""
    for action in ("SEND", "RECV"):
        for kind in "FB":
            move = Move(action, kind, stage, 0)
            other = move.partner
            if not 0 <= other.stage < len(owners) or owners[other.stage] == rank:
                continue
            sender = stage if action == "SEND" else other.stage
            value = "F" if kind == "F" else "I", sender + shift
            here, there = (("come", m.action, kind, m.stage + shift) for m in (move, other))
            come = Rule([(value, 0)] if action == "SEND" else [], [here], 0)
            moved = [("moved", *value)] if action == "RECV" else []
            found.setdefault(("come", action, kind), {})[stage + shift] = come
            found.setdefault(("move", action, kind), {})[stage + shift] = Rule(
                [(here, 0), (there, 0)], moved, cost.comm
            )


def _together(rule, op, stage, schedule, shift, found):
    """The rule of an exchange that waits until all copies have come to it; adds that of coming."""
    come = "come", *_kind(op)
    found.setdefault(come, {})[stage + shift] = Rule(rule.needs, [(come, stage + shift)], 0)
    places = range(stage, schedule.stages * len(schedule.placement.copies), schedule.stages)
    return rule._replace(needs=[((come, place), 0) for place in places])


def _sending(schedule, rank, cost):
    """The rules of a link, which carries one message at a time: it goes when its value is there."""
    found = {}
    for copy, stage in schedule.placement.held_by(rank):
        place = stage + copy * schedule.stages
        for kind, value in (("F", "F"), ("B", "I")):
            rule = Rule([((value, place), 0)], [("sent", value, place)], cost.link)
            found.setdefault(("move", "SEND", kind), {})[place] = rule
    return found
