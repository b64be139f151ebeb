"""The sums of a step's gradients over copies: they begin when all copies have ended."""

from .connect import Lane
from .op import Op


def reduced(schedule, lanes, cost):
    """The lanes of the gradients' reductions, where these take time."""
    takes = [cost.of(Op("R", stage, 0)) for stage in range(schedule.stages)] if cost.sync else []
    if not any(takes):
        return []
    placement, m = schedule.placement, schedule.microbatches
    done = {
        lane.rank: last_backwards(placement, m, lane.items, lane.ends)
        for lane in lanes
        if lane.name == "compute"
    }
    made = {}
    for rank, *entry in reductions(placement, done, takes.__getitem__):
        lane = made.setdefault(rank, Lane(rank, "all-reduce", [], [], []))
        for column, value in zip(lane[2:], entry, strict=True):
            column.append(value)
    return list(made.values())


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
