"""A schedule is data: what every rank does, in order, and which rank owns which stage."""

import csv
from dataclasses import dataclass
from functools import cached_property

from .collector import paused
from .errors import ScheduleError
from .op import Move, Node, Op, Pair, needs, parse

# What torch's runtime needs around a schedule when parameters are sharded or gradients are
# reduced. It moves no activation, so it means nothing here.
_HOUSEKEEPING = ("UNSHARD", "RESHARD", "REDUCE_GRAD")


@dataclass(frozen=True)
class Placement:
    """Which rank owns a stage, for each copy of the model.

    `copies[c][stage]` is a rank. One copy is the usual case. With several copies
    (bidirectional pipelines) the micro-batches are dealt out in equal, contiguous parts,
    so the micro-batch of an op decides in which copy it runs.
    """

    name: str
    copies: tuple[tuple[int, ...], ...]

    @property
    def stages(self):
        return len(self.copies[0])

    def copy(self, microbatch, microbatches):
        """Which copy of the model a micro-batch goes through."""
        return microbatch * len(self.copies) // microbatches

    def dealt(self, copy, microbatches):
        """The micro-batches that go through a copy."""
        first, last = (-(-c * microbatches // len(self.copies)) for c in (copy, copy + 1))
        return range(first, last)

    def held_by(self, rank):
        """The (copy, stage) that a rank holds, in order."""
        return [
            (c, s)
            for c, owners in enumerate(self.copies)
            for s, owner in enumerate(owners)
            if owner == rank
        ]


def loop(p, v=1):
    """Stage s on rank s % p: plain pipelines (v=1) and interleaved ones."""
    return Placement("loop", (tuple(s % p for s in range(p * v)),))


def vshape(p):
    """Rank r owns the stages r and 2p-1-r: down the ranks, and back up."""
    return Placement("V", ((*range(p), *reversed(range(p))),))


def bidirectional(p):
    """Two copies of the model, one down the ranks and one up: every rank holds two stages."""
    return Placement("bidirectional", (tuple(range(p)), tuple(reversed(range(p)))))


@dataclass(frozen=True)
class Schedule:
    """For each rank a tuple of `Op` or `Pair`, the placement, and the number of micro-batches.

    Build one from any lists of ops: `Schedule("mine", [[Op("F", 0, 0), …], …])`. Without
    a placement, stage s is taken to live on rank s % p; without `microbatches`, the highest
    micro-batch that is named counts. A schedule may spell out its messages as `Move`s too
    (`lower` adds them); where it does not, they follow from what the ops need.
    """

    name: str
    ranks: tuple[tuple[Op | Pair | Move, ...], ...]
    placement: Placement = None
    microbatches: int = None

    def __post_init__(self):
        with paused():
            ranks = tuple(map(tuple, self.ranks))
        object.__setattr__(self, "ranks", ranks)
        if not ranks:
            raise ScheduleError("a schedule needs at least one rank")
        if self.placement is None or self.microbatches is None:
            for rank, row in enumerate(ranks):
                for position, item in enumerate(row):
                    if not isinstance(item, (Op, Pair, Move)):
                        raise ScheduleError(
                            f"rank {rank}, position {position}: {item!r} is not an op. Write "
                            'Op("F", stage, microbatch)',
                            rank,
                            position,
                            item,
                        )
            ops = [op for row in ranks for item in row for op in item.parts]
            stages = max((op.stage for op in ops), default=0) + 1
            v = -(-max(stages, len(ranks)) // len(ranks))
            highest = max((op.microbatch for op in ops), default=0)
            if self.placement is None:
                object.__setattr__(self, "placement", loop(len(ranks), v))
            if self.microbatches is None:
                object.__setattr__(self, "microbatches", highest + 1)

    @property
    def p(self):
        return len(self.ranks)

    @property
    def stages(self):
        return self.placement.stages

    @property
    def messages(self):
        """How many messages a step sends: one per micro-batch, direction and rank boundary."""
        return sum(
            2 * len(self.placement.dealt(c, self.microbatches))
            for c, owners in enumerate(self.placement.copies)
            for here, there in zip(owners, owners[1:], strict=False)
            if here != there
        )

    @property
    def has_moves(self):
        """Whether the messages are spelled out."""
        return any(type(item) is Move for row in self.ranks for item in row)

    def without_moves(self):
        """The same schedule with its ops only."""
        return self.without("comm")

    def without(self, lane):
        """The same schedule without what runs on a lane: "comm" or "all-to-all"."""
        rows = [[item for item in row if getattr(item, "lane", None) != lane] for row in self.ranks]
        return Schedule(self.name, rows, self.placement, self.microbatches)

    def owner(self, op):
        """The rank that runs `op` (of its micro-batch's copy of the model)."""
        copy = self.placement.copy(op.microbatch, self.microbatches)
        return self.placement.copies[copy][op.stage]

    def incoming(self, rank, item):
        """The messages that an item of a rank waits for, as they follow from what it needs:
        tuples (send, receive, sender's rank, need)."""
        for op in item.parts:
            for need in needs(op, self.stages):
                sender = self.owner(need)
                if sender != rank:
                    receive = Move("RECV", "F" if need.kind == "F" else "B", *op[1:])
                    yield receive.partner, receive, sender, need

    @cached_property
    def _stage_is_rank(self):
        return self.stages == self.p and len(self.placement.copies) == 1

    def label(self, item):
        """The shortest name of an op that is clear within its rank's row."""
        if type(item) is Op:
            return item.label if self._stage_is_rank else str(item)
        if not all(isinstance(op, (Op, Node)) for op in getattr(item, "parts", [item])):
            return repr(item)  # in the picture of a schedule that is refused
        if self._stage_is_rank:
            return item.label
        return "&".join(map(str, item.parts)) or str(item)

    def to_csv(self, path):
        """Write torch.distributed.pipelining's CSV: a row per rank, no header.

        torch's runtime reads it with `_load_csv(path)`, or with format="compute_comms" where
        the schedule spells out its messages. For the latter each stage's REDUCE_GRAD is added:
        without it torch leaves gradients m times too large.
        """
        tail = {rank: [] for rank in range(self.p)}
        if self.has_moves:
            for rank in tail:
                tail[rank] = [f"{stage}REDUCE_GRAD" for _, stage in self.placement.held_by(rank)]
        with open(path, "w", newline="") as file:
            csv.writer(file).writerows(
                [*map(str, row), *tail[rank]] for rank, row in enumerate(self.ranks)
            )

    @classmethod
    def from_csv(cls, path, name=None):
        """Read torch.distributed.pipelining's CSV; an empty cell is a rank that idles.

        The placement is where the ops are. Raises ScheduleError for what is not an op, or
        where a stage is on several ranks in no way that copies of the model explain.
        """
        rows = []
        with open(path, newline="") as file:
            for rank, cells in enumerate(csv.reader(file)):
                rows.append([])
                for column, cell in enumerate(cells):
                    if not cell.strip() or cell.rstrip("0123456789").endswith(_HOUSEKEEPING):
                        continue
                    try:
                        rows[-1].append(parse(cell))
                    except ValueError as error:
                        raise ScheduleError(
                            f"row {rank + 1}, column {column + 1}: {error}", rank, column, cell
                        ) from None
        placement, m = _where(rows)
        return cls(name or str(path), rows, placement, m)

    def __str__(self):
        rows = (f"rank {r}: {' '.join(map(self.label, row))}" for r, row in enumerate(self.ranks))
        return "\n".join((f"{self.name}, p={self.p} m={self.microbatches}", *rows))

    __repr__ = __str__


def _where(rows):
    """The placement that a schedule's ops show, and the number of micro-batches."""
    owner = {}
    for rank, row in enumerate(rows):
        for op in (op for item in row for op in item.parts):
            first = owner.setdefault(op[1:], rank)
            if first != rank:
                raise ScheduleError(
                    f"{op} is on rank {rank}, but micro-batch {op.microbatch} runs "
                    f"stage {op.stage} on rank {first}",
                    rank,
                    None,
                    op,
                )
    if not owner:
        raise ScheduleError("there is no op in this file")
    stages, m = (1 + max(numbers) for numbers in zip(*owner, strict=True))
    places = [set() for _ in range(stages)]
    for (stage, _), rank in owner.items():
        places[stage].add(rank)
    if set() in places:
        raise ScheduleError(
            f"no rank runs stage {places.index(set())}, but there is a stage {stages - 1}"
        )
    copies = (tuple(map(min, places)),)
    if any(len(ranks) > 1 for ranks in places):  # then a micro-batch shows its copy's ranks
        copies = tuple(
            dict.fromkeys(tuple(owner.get((stage, i)) for stage in range(stages)) for i in range(m))
        )
    known = (loop(len(rows), -(-stages // len(rows))), vshape(len(rows)), bidirectional(len(rows)))
    placement = next((k for k in known if k.copies == copies), Placement("its own", copies))
    for (stage, i), rank in owner.items():
        if copies[placement.copy(i, m)][stage] != rank:
            ranks = " and ".join(map(str, sorted(places[stage])))
            raise ScheduleError(
                f"stage {stage} is on the ranks {ranks}: a stage lives on one "
                "rank, or there are copies of the model that each run all stages "
                "of an equal, contiguous part of the micro-batches",
                rank,
            )
    return placement, m
