"""A schedule is data: what every rank does, in order, and which rank owns which stage."""

from dataclasses import dataclass

from .errors import ScheduleError
from .op import Op, Pair


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

    def held_by(self, rank):
        """The (copy, stage) that a rank holds, in order."""
        return [(c, s) for c, owners in enumerate(self.copies)
                for s, owner in enumerate(owners) if owner == rank]


def loop(p, v=1):
    """Stage s on rank s % p: plain pipelines (v=1) and interleaved ones."""
    return Placement("loop", (tuple(s % p for s in range(p * v)),))


@dataclass(frozen=True)
class Schedule:
    """For each rank a tuple of `Op` or `Pair`, the placement, and the number of micro-batches.

    Build one from any lists of ops: `Schedule("mine", [[Op("F", 0, 0), …], …])`. Without
    a placement, stage s is taken to live on rank s % p; without `microbatches`, the highest
    micro-batch that is named counts.
    """

    name: str
    ranks: tuple[tuple[Op | Pair, ...], ...]
    placement: Placement = None
    microbatches: int = None

    def __post_init__(self):
        ranks = tuple(map(tuple, self.ranks))
        object.__setattr__(self, "ranks", ranks)
        if not ranks:
            raise ScheduleError("a schedule needs at least one rank")
        if self.placement is None or self.microbatches is None:
            for rank, row in enumerate(ranks):
                for position, item in enumerate(row):
                    if not isinstance(item, (Op, Pair)):
                        raise ScheduleError(
                            f"rank {rank}, position {position}: {item!r} is not an op. Write "
                            'Op("F", stage, microbatch)', rank, position, item)
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

    def owner(self, op):
        """The rank that runs `op` (of its micro-batch's copy of the model)."""
        copy = self.placement.copy(op.microbatch, self.microbatches)
        return self.placement.copies[copy][op.stage]

    def label(self, item):
        """The shortest name of an op that is clear within its rank's row."""
        return item.label if self.stages == self.p and len(self.placement.copies) == 1 \
            else "&".join(map(str, item.parts))

    def __str__(self):
        rows = (f"rank {r}: {' '.join(map(self.label, row))}" for r, row in enumerate(self.ranks))
        return "\n".join((f"{self.name}, p={self.p} m={self.microbatches}", *rows))

    __repr__ = __str__
