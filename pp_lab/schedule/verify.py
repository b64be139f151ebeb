"""Is a schedule legal? If not, one sentence says where it breaks and why."""

from .clock import clock
from .errors import ScheduleError
from .op import KINDS, PROVIDES, Op, Pair, needs
from .schedule import Schedule


def verify(schedule: Schedule, memory_cap: int | None = None) -> None:
    """Raise `ScheduleError`, whose text is the reason, unless the schedule can run.

    Legal means: every stage runs each micro-batch's forward once and its backward once (as
    one B, or as I and W), on the rank that owns it, in an order in which nobody waits for
    ever; and, with `memory_cap`, no rank ever holds more stage activations than that.
    """
    lanes, task_needs = tasks(schedule)
    check_runs(schedule, lanes, task_needs)
    if memory_cap is not None:
        _check_memory(schedule, memory_cap)


def tasks(schedule: Schedule, lag=0):
    """Number the ops rank by rank. Returns lanes of task numbers, and for each task its
    needs as pairs (task, lag); the lag counts where the two are on different ranks.

    Refuses whatever is not a complete set of ops in the right places.
    """
    stages, m = schedule.stages, schedule.microbatches
    copies = schedule.placement.copies
    made = {kind: [[None] * m for _ in range(stages)] for kind in "FIW"}

    lanes, count = [], 0
    for rank, row in enumerate(schedule.ranks):
        # What each op that may stand on this rank makes available, by copy of the model.
        provides = [{(kind, stage): [made[k][stage] for k in PROVIDES[kind]]
                     for stage, owner in enumerate(copy) if owner == rank for kind in KINDS}
                    for copy in copies]
        for item in row:
            for op in (item,) if type(item) is Op else _parts(schedule, rank, item, count, lanes):
                try:
                    kind, stage, microbatch = op
                    copy = provides[microbatch * len(copies) // m if 0 <= microbatch < m else -9]
                    for slots in copy[kind, stage]:
                        if slots[microbatch] is not None:
                            raise LookupError
                        slots[microbatch] = count
                except (LookupError, TypeError):
                    raise _misplaced(schedule, rank, count - _first(lanes), op) from None
            count += 1
        lanes.append(range(_first(lanes), count))
    _check_complete(schedule, made)

    task_needs = []
    for rank, row in enumerate(schedule.ranks):
        # The law, asked once per kind and stage: it never leaves a micro-batch.
        law = [{(kind, stage): [(made[need.kind][need.stage], lag if copy[need.stage] != rank else 0)
                                for need in needs(Op(kind, stage, 0), stages)]
                for stage, owner in enumerate(copy) if owner == rank for kind in KINDS}
               for copy in copies]
        for item in row:
            wanted = []
            for kind, stage, microbatch in (item,) if type(item) is Op else item.parts:
                for slots, late in law[microbatch * len(copies) // m][kind, stage]:
                    wanted.append((slots[microbatch], late))
            task_needs.append(wanted)
    return lanes, task_needs


def check_runs(schedule, lanes, task_needs):
    """Refuse an order in which ranks wait for each other for ever; name who waits for whom."""
    starts, _ = clock(lanes, task_needs, [1] * len(task_needs))
    stuck = {rank: next((k for k, task in enumerate(lane) if starts[task] is None), None)
             for rank, lane in enumerate(lanes)}
    rank = next((r for r, k in stuck.items() if k is not None), None)
    if rank is None:
        return
    where = {task: (r, k) for r, lane in enumerate(lanes) for k, task in enumerate(lane)}
    chain, seen = [], {}
    while rank not in seen:
        seen[rank] = len(chain)
        position = stuck[rank]
        task = lanes[rank][position]
        missing = next(t for t, _ in task_needs[task] if starts[t] is None)
        other, there = where[missing]
        chain.append((rank, position, other, there))
        rank = other
    cycle = chain[seen[rank]:]
    ops = schedule.ranks
    rank, position, other, there = cycle[0]
    if len(cycle) == 1:
        reason = (f"rank {rank}, position {position}: {ops[rank][position]} needs "
                  f"{ops[rank][there]}, which stands ")
        reason += ("in the same pair: a pair starts as one, so its two parts must not depend "
                   "on each other" if there == position else
                   f"only later in the same rank's list, at position {there}")
    else:
        reason = "deadlock: " + "; ".join(
            f"rank {r} waits at position {k} ({ops[r][k]}) for {ops[q][n]}, "
            f"which rank {q} has only at position {n}"
            for r, k, q, n in cycle) + f". So rank {rank} waits for itself."
    raise ScheduleError(reason, rank, position, ops[rank][position],
                        grid(schedule, {(r, k): "!" for r, k, *_ in cycle}))


def activations(schedule: Schedule, rank: int, freed: str = "W"):
    """How many stage activations a rank holds after each of its ops starts.

    One lives from its F to its B or, where the backward is split, to its W (`freed="W"`,
    the honest count, since W still needs it) or to its I (`freed="B"`, the papers' count).
    In a pair the forward's is there before the backward's goes.
    """
    held, count = [], 0
    ends = {"W": "BW", "B": "BI"}[freed]
    for item in schedule.ranks[rank]:
        count += sum(op.kind == "F" for op in item.parts)
        held.append(count)
        count -= sum(op.kind in ends for op in item.parts)
    return held


def grid(schedule, marks=None):
    """The schedule as text, one row per rank, ops at `marks` {(rank, position): mark} marked."""
    marks = marks or {}
    lines = []
    for rank, row in enumerate(schedule.ranks):
        cells = [f"{mark}{schedule.label(item)}{mark}" if (mark := marks.get((rank, k), ""))
                 else schedule.label(item) if isinstance(item, (Op, Pair)) else repr(item)
                 for k, item in enumerate(row)]
        at = next((k for k in range(len(row)) if (rank, k) in marks), 0)
        first = max(0, min(at - 8, len(cells) - 24))
        shown = " ".join(cells[first:first + 24])
        lines.append(f"  rank {rank}: {'… ' if first else ''}{shown}"
                     f"{' …' if len(cells) > first + 24 else ''}")
    return "\n".join(lines)


def _first(lanes):
    return lanes[-1].stop if lanes else 0


def _parts(schedule, rank, item, count, lanes):
    if isinstance(item, Pair):
        return item.parts
    raise _misplaced(schedule, rank, count - _first(lanes), item)


def _misplaced(schedule, rank, position, op):
    """The reason why `op` must not stand at this place."""
    at = f"rank {rank}, position {position}: "
    whole = schedule.ranks[rank][position]
    ranks, stages, m = schedule.ranks, schedule.stages, schedule.microbatches
    marks = {(rank, position): "!"}
    if not isinstance(op, Op):
        reason = f'{op!r} is not an op. Write Op("F", stage, microbatch), or Pair(f, b)'
    elif op.kind not in KINDS:
        reason = (f"{op} has the kind {op.kind!r}. Kinds are F forward, B full backward, "
                  "I input gradient, W weight gradient")
    elif not all(isinstance(x, int) and not isinstance(x, bool) for x in op[1:]):
        reason = f"{tuple(op)!r}: stage and micro-batch must be whole numbers"
    elif not 0 <= op.stage < stages:
        reason = f"{op} names stage {op.stage}, but there are only stages 0 to {stages - 1}"
    elif not 0 <= op.microbatch < m:
        reason = (f"{op} names micro-batch {op.microbatch}, but there are only micro-batches "
                  f"0 to {m - 1}")
    elif schedule.owner(op) != rank:
        reason = f"{op} belongs to rank {schedule.owner(op)}, which owns stage {op.stage}"
        if len(schedule.placement.copies) > 1:
            reason += f" for micro-batch {op.microbatch}"
    else:
        first = next(
            (r, k, other) for r, row in enumerate(ranks) for k, item in enumerate(row)
            if isinstance(item, (Op, Pair)) for other in item.parts
            if other[1:] == op[1:] and set(PROVIDES[other.kind]) & set(PROVIDES[op.kind]))
        marks[first[:2]] = "!"
        if first[2].kind == op.kind:
            reason = f"{op} is there twice; the first is at position {first[1]}"
        else:
            reason = (f"{op} does again what {first[2]} at position {first[1]} does: a backward "
                      "is either one B, or an I and a W")
    return ScheduleError(at + reason, rank, position, whole, grid(schedule, marks))


def _check_complete(schedule, made):
    for kind, rows in made.items():
        for stage, row in enumerate(rows):
            if None not in row:
                continue
            i = row.index(None)
            absent = Op(kind, stage, i)
            if kind == "I" and made["W"][stage][i] is None:
                absent = Op("B", stage, i)
            rank = schedule.owner(absent)
            other = {"W": f": {Op('I', stage, i)} is there, so the weight gradient is missing",
                     "I": f": {Op('W', stage, i)} is there, so the input gradient is missing",
                     "B": " (nor as I and W)", "F": ""}[absent.kind]
            lost = row.count(None)
            raise ScheduleError(
                f"rank {rank} never runs {absent}{other}"
                + (f"; in all, {lost} of stage {stage}'s {len(row)} are missing" if lost > 1 else "")
                + ". Every stage runs each micro-batch's forward and backward once",
                rank, None, absent, grid(schedule))


def _check_memory(schedule, cap):
    for rank in range(schedule.p):
        for position, held in enumerate(activations(schedule, rank)):
            if held > cap:
                item = schedule.ranks[rank][position]
                raise ScheduleError(
                    f"rank {rank}, position {position}: with {item} it holds {held} activations, "
                    f"and the cap is {cap}. Run a backward (or the W of a split one) first",
                    rank, position, item, grid(schedule, {(rank, position): "!"}))
