"""Where a rank stands when a pipeline is one of several parallelisms.

Every rank has a coordinate on each axis: tensor (tp), context (cp), expert (ep), data (dp) and
pipeline (pp) parallelism. `order` says how the ranks are numbered: the axis on the left varies
fastest, so its neighbours are the closest. Megatron's default is tp-cp-ep-dp-pp: tensor-parallel
ranks stand side by side in one machine, pipeline stages are far apart.
"""

from dataclasses import dataclass
from itertools import product
from math import prod

from .errors import LabError
from .schedule import Placement, Schedule

AXES = ("tp", "cp", "ep", "dp", "pp")


class GridError(LabError, ValueError):
    """A layout that cannot be, or a question that it has no answer to."""


@dataclass(frozen=True)
class Grid:
    """tp * cp * ep * dp * pp ranks. Sizes are whole numbers, 1 at least.

    sequence_parallel: between tensor-parallel products, each of the tp ranks holds a part of
    the rows of a micro-batch only, as each of the cp ranks does anyway
    """

    tp: int = 1
    cp: int = 1
    ep: int = 1
    dp: int = 1
    pp: int = 1
    order: str = "tp-cp-ep-dp-pp"
    sequence_parallel: bool = False

    def __post_init__(self):
        for axis in AXES:
            size = getattr(self, axis)
            if not isinstance(size, int) or isinstance(size, bool) or size < 1:
                raise GridError(f"{axis}={size!r}: give a whole number, 1 at least")
        if sorted(self.axes) != sorted(AXES):
            raise GridError(
                f"order={self.order!r}: name each of {', '.join(AXES)} once, with - between, the "
                "one that varies fastest first"
            )

    @property
    def axes(self):
        """The axes as `order` has them, the one that varies fastest first."""
        return tuple(self.order.split("-"))

    @property
    def size(self):
        """How many ranks there are."""
        return prod(getattr(self, axis) for axis in AXES)

    @property
    def copies(self):
        """How many ranks hold the same weights, and average their gradients."""
        return self.dp * self.cp

    @property
    def parts(self):
        """Into how many parts the rows of a micro-batch are cut: what crosses a stage boundary
        is [rows / parts, …]."""
        return self.cp * (self.tp if self.sequence_parallel else 1)

    def coordinates(self, rank):
        """{axis: coordinate} of a rank."""
        if not isinstance(rank, int) or not 0 <= rank < self.size:
            raise GridError(f"there is no rank {rank!r}: they are 0 to {self.size - 1}")
        found = {}
        for axis in self.axes:
            rank, found[axis] = divmod(rank, getattr(self, axis))
        return found

    def rank(self, **coordinates):
        """The rank with these coordinates; 0 on an axis that is not named."""
        rank, stride = 0, 1
        for axis in self.axes:
            place = coordinates.pop(axis, 0)
            if place not in range(getattr(self, axis)):
                raise GridError(f"{axis}={place!r}: it is 0 to {getattr(self, axis) - 1}")
            rank, stride = rank + place * stride, stride * getattr(self, axis)
        if coordinates:
            raise GridError(f"{next(iter(coordinates))} is no axis: they are {', '.join(AXES)}")
        return rank

    def group(self, axes, rank):
        """The ranks that differ from `rank` on these axes only, in order.

        axes: one, "dp", or several, "dp-cp". "embedding" is the first and the last stage of the
        rank's own pipeline, which share a tied embedding.
        """
        here = self.coordinates(rank)
        if axes == "embedding":
            return tuple(sorted({self.rank(**here | {"pp": pp}) for pp in (0, self.pp - 1)}))
        names = axes.split("-") if isinstance(axes, str) else [axes]
        for name in names:
            if name not in AXES:
                raise GridError(
                    f"there is no group {axes!r}: name axes of {', '.join(AXES)}, like 'dp' or "
                    "'dp-cp', or 'embedding'"
                )
        places = product(*(range(getattr(self, name)) for name in names))
        return tuple(sorted(self.rank(**here | dict(zip(names, p, strict=True))) for p in places))

    def groups(self, axes):
        """Every group on these axes, in the order of their first ranks."""
        return tuple(dict.fromkeys(self.group(axes, rank) for rank in range(self.size)))

    def placement(self, owners=None, rank=0):
        """Which rank runs a stage, as seen from `rank`: a copy of the pipeline for each dp, among
        the ranks whose other coordinates are the same.

        owners: for each stage its place on the pp axis; stage s at place s unless given
        """
        here, owners = self.coordinates(rank), range(self.pp) if owners is None else owners
        return Placement(
            "loop",
            tuple(
                tuple(self.rank(**here | {"dp": dp, "pp": place}) for place in owners)
                for dp in range(self.dp)
            ),
        )

    def spread(self, schedule):
        """A schedule for the ranks of one pipeline as one for all: the d-th copy runs the
        micro-batches d*m … d*m + m-1. Ranks that differ in tp or cp do the same.
        """
        if schedule.p != self.pp:
            raise GridError(f"{schedule.name} is for {schedule.p} ranks, and the grid has pp="
                            f"{self.pp}")  # fmt: skip
        if len(schedule.placement.copies) > 1:
            raise GridError(f"{schedule.name} has {len(schedule.placement.copies)} copies of the "
                            "model already: a grid takes schedules with one")  # fmt: skip
        m = schedule.microbatches
        rows = []
        for rank in range(self.size):
            here = self.coordinates(rank)
            rows.append([_shifted(item, here["dp"] * m) for item in schedule.ranks[here["pp"]]])
        placement = self.placement(schedule.placement.copies[0])
        return Schedule(schedule.name, rows, placement, m * self.dp)

    def __str__(self):
        return " × ".join(
            f"{axis.upper()} {getattr(self, axis)}" for axis in self.axes if getattr(self, axis) > 1
        )


def _shifted(item, by):
    """The same op, pair or move, `by` micro-batches further on."""
    if len(item.parts) == 2:
        return type(item)(*(_shifted(op, by) for op in item))
    return item._replace(microbatch=item.microbatch + by) if by else item
