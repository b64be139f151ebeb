"""How good can a schedule be? A bound for any size, and the true optimum for tiny ones."""

# ruff: noqa: E741, E743 - I is the field's letter for the input gradient

from .cost import F1B2, Cost, exact
from .errors import LabError
from .op import KINDS, Op, Pair, needs
from .schedule import Placement, Schedule, loop


def lower_bound(
    p: int,
    m: int,
    cost: Cost = F1B2,
    placement: Placement | None = None,
    split: bool = False,
    pairs: bool = False,
):
    """A makespan that no schedule of m micro-batches on this placement can beat.

    split: the backward may be split into I and W; pairs: forward and backward may overlap as
    a `Pair`. Without a placement, one stage per rank. Three things take time in any order:
    a rank's own work after the least fill and before the least drain; its forwards and input
    gradients, and after the last of them the way back to stage 0; one micro-batch's way
    through all stages and back.
    """
    placement = placement or loop(p)
    stages = range(placement.stages)
    F, B, I, W = ([cost.of(Op(kind, s, 0)) for s in stages] for kind in "FBIW")
    whole = [min(B[s], I[s] + W[s]) if split else B[s] for s in stages]  # a stage's backward
    back = [min(B[s], I[s]) if split else B[s] for s in stages]  # until the stage before can go on
    there, home = F, back  # what a micro-batch takes at each stage on its way
    if pairs := pairs and cost.pair is not None:
        both = [cost.of(Pair(Op("F", s, 0), Op("B", s, 0))) for s in stages]
        there, home = list(map(min, F, both)), [min(x, *both) for x in back]
    last = whole[0] - back[0]  # stage 0's weight gradient comes after its input gradient
    bounds = []
    for rank in range(p):
        fill, drain, work, chain, messages = [], [], 0, 0, 0
        held = [(c, s) for c, s in placement.held_by(rank) if placement.dealt(c, m)]
        for c, s in held:
            owners, count = placement.copies[c], len(placement.dealt(c, m))
            hops = cost.comm * sum(a != b for a, b in zip(owners[:s], owners[1:], strict=False))
            fill.append(sum(there[:s]) + hops)
            drain.append(sum(home[:s]) + hops)
            spared = max(0, F[s] + max(whole[s] for _, s in held) - both[s]) if pairs else 0
            work += count * (F[s] + whole[s] - spared)
            chain += count * (F[s] + back[s] - spared)
            ends = sum(n in stages and owners[n] != rank for n in (s - 1, s + 1))
            messages += 2 * count * ends * cost.blocking
        if held:
            work += max(0, messages - 2) * cost.comm  # the first and the last are in fill and drain
            bounds.append(min(fill) + work + (0 if split else min(drain)))
            bounds.append(min(fill) + chain + min(drain) + last)
    for c, owners in enumerate(placement.copies):
        if placement.dealt(c, m):
            hops = cost.comm * sum(a != b for a, b in zip(owners, owners[1:], strict=False))
            bounds.append(sum(there) + sum(home) + last + 2 * hops)
    return exact(max(bounds))


def bound_of(schedule: Schedule, cost: Cost):
    """The `lower_bound` for a schedule's own sizes, placement and kinds of ops."""
    items = {item for row in schedule.ranks for item in row}
    return lower_bound(
        schedule.p,
        schedule.microbatches,
        cost,
        schedule.placement,
        split=any(op.kind == "W" for item in items for op in item.parts),
        pairs=any(type(item) is Pair for item in items),
    )


def optimum(
    p: int,
    m: int,
    cost: Cost = F1B2,
    placement: Placement | None = None,
    split: bool = False,
    memory_cap: int | None = None,
    seconds: float = 60,
) -> Schedule:
    """A schedule of the least possible makespan, proven by OR-tools' CP-SAT.

    For tiny sizes: the search grows steeply, and LabError says so after `seconds`. No rank
    holds more than `memory_cap` stage activations. Needs the extra `pp_lab[optimum]`.
    """
    try:
        from ortools.sat.python import cp_model
    except ImportError:
        raise LabError(
            "the optimum is found by OR-tools, which is not installed: "
            'pip install "pp_lab[optimum]"'
        ) from None
    if float in map(type, cost.numbers()):
        raise ValueError("the optimum is exact: give the durations as ints or Fractions")
    placement = placement or loop(p)
    bound, (ticks, cost) = lower_bound(p, m, cost, placement, split), cost.in_ticks()
    stages, lag = placement.stages, cost.comm
    kinds, model = "FIW" if split else "FB", cp_model.CpModel()
    duration = {(kind, s): cost.of(Op(kind, s, 0)) for kind in kinds for s in range(stages)}
    horizon = sum(duration.values()) * m + 2 * stages * lag * m
    makespan = model.new_int_var(int(-(-bound * ticks // 1)), horizon, "makespan")
    start, busy = {}, [[] for _ in range(p)]
    held = [[] for _ in range(p)]
    for c, owners in enumerate(placement.copies):
        for s, rank in enumerate(owners):
            for i in placement.dealt(c, m):
                for kind in kinds:
                    start[Op(kind, s, i)] = begin = model.new_int_var(0, horizon, "")
                    end = begin + duration[kind, s]
                    busy[rank].append(model.new_interval_var(begin, duration[kind, s], end, ""))
                    model.add(end <= makespan)
                    if i > placement.dealt(c, m).start:  # micro-batches are alike
                        model.add(start[Op(kind, s, i - 1)] <= begin)
                # An activation is there from its F to the end of its B or W, the last kind.
                alive = model.new_int_var(0, horizon, "")
                held[rank].append(model.new_interval_var(start[Op("F", s, i)], alive, end, ""))
    for op, begin in start.items():
        copy = placement.copies[placement.copy(op.microbatch, m)]
        for need in needs(op, stages):
            need = need._replace(kind="B") if need.kind == "I" and not split else need
            far = lag if copy[need.stage] != copy[op.stage] else 0
            model.add(begin >= start[need] + duration[need.kind, need.stage] + far)
    for rank in range(p):
        model.add_no_overlap(busy[rank])
        if memory_cap is not None:
            model.add_cumulative(held[rank], [1] * len(held[rank]), memory_cap)
    model.minimize(makespan)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = seconds
    status = solver.solve(model)
    if status == cp_model.INFEASIBLE:
        raise LabError(f"no schedule of p={p} m={m} keeps within {memory_cap} activations per rank")
    if status != cp_model.OPTIMAL:
        raise LabError(f"no proven optimum within {seconds} s: take a smaller p or m, or more time")
    owner = Schedule("", [()] * p, placement, m).owner
    # Where ops take no time, forwards go up the stages and backwards down.
    ordered = sorted(
        start,
        key=lambda op: (
            solver.value(start[op]),
            KINDS.index(op.kind),
            op.stage if op.kind == "F" else -op.stage,
        ),
    )
    rows = [[op for op in ordered if owner(op) == rank] for rank in range(p)]
    return Schedule("optimum", rows, placement, m)
