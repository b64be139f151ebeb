"""Random legal schedules, and an independent way to time them."""

from fractions import Fraction
from random import Random

from hypothesis import strategies as st

from pp_lab.schedule import Cost, Op, Pair, Placement, Schedule


def causes(op, stages):
    """The dependencies once more, in words of our own; a backward is "G", whatever its kind."""
    kind, stage, i = op
    if kind == "F":
        return [("F", stage - 1, i)] if stage else []
    if kind == "W":
        return [("G", stage, i)]
    return [("F", stage, i)] + ([("G", stage + 1, i)] if stage < stages - 1 else [])


def result(op):
    return ("G" if op.kind in "BI" else op.kind, op.stage, op.microbatch)


SEEDS = st.integers(0, 2**32 - 1)  # everything but the sizes comes from a seed: it is quick


def any_placement(random, p, stages):
    """Any map of stages to ranks, each rank with at least one; one copy of the model or two."""
    copies = []
    for _ in range(random.randint(1, 2)):
        owners = [*range(p), *(random.randrange(p) for _ in range(stages - p))]
        random.shuffle(owners)
        copies.append(tuple(owners))
    return Placement("random", tuple(copies))


@st.composite
def schedules(draw, most_ranks=4, most_stages=6, most_microbatches=5):
    """A legal schedule: again and again, some rank runs something that could run now.

    Backwards are whole or split, and a forward and a backward that could both run may pair.
    """
    p, m = draw(st.integers(1, most_ranks)), draw(st.integers(1, most_microbatches))
    stages = draw(st.integers(p, most_stages))
    random = Random(draw(SEEDS))
    placement = any_placement(random, p, stages)
    splits, pairs = random.choice([0, 0.5, 1]), random.choice([0, 0.5])
    done, left, rows = set(), set(), [[] for _ in range(p)]
    for i in range(m):
        for stage in range(stages):
            split = random.random() < splits
            left.update(Op(kind, stage, i) for kind in ("FIW" if split else "FB"))
    owner = Schedule("random", rows, placement, m).owner
    while left:
        ready = sorted(op for op in left if done.issuperset(causes(op, stages)))
        item = random.choice(ready)
        rank = owner(item)
        partners = [op for op in ready if op.kind in "BI" and owner(op) == rank]
        if item.kind == "F" and partners and random.random() < pairs:
            item = Pair(item, random.choice(partners))
        rows[rank].append(item)
        left.difference_update(item.parts)
        done.update(map(result, item.parts))
    return Schedule("random", rows, placement, m)


@st.composite
def costs(draw, stages, lanes=False):
    """Any cost, the same for all stages or one for each: whole numbers, fractions, zeros. lanes:
    links and reductions take time too."""
    random = Random(draw(SEEDS))

    def number():
        return random.choice([random.randint(0, 5), Fraction(random.randint(0, 9), 6)])

    def some():
        return number() if random.random() < 0.5 else [number() for _ in range(stages)]

    return Cost(F=some(), B=some(), I=some(), W=some(), pair=some(), comm=number(),
                **({"link": number(), "sync": some()} if lanes else {}))  # fmt: skip


def longest_paths(schedule, cost):
    """{item: end}, by relaxing the graph of dependencies until nothing moves.

    Written without the package's clock and law: a plain Bellman-Ford for longest paths.
    """
    stages = schedule.stages
    owner = {item: rank for rank, row in enumerate(schedule.ranks) for item in row}
    maker = {result(op): item for item in owner for op in item.parts}
    edges = [
        (before, after, 0)
        for row in schedule.ranks
        for before, after in zip(row, row[1:], strict=False)
    ]
    edges += [
        (maker[cause], item, cost.comm if owner[maker[cause]] != owner[item] else 0)
        for item in owner
        for op in item.parts
        for cause in causes(op, stages)
    ]
    end = {item: Fraction(cost.of(item)) for item in owner}
    for _ in range(len(owner) + 1):
        moved = False
        for before, after, lag in edges:
            later = end[before] + lag + cost.of(after)
            if later > end[after]:
                end[after], moved = later, True
        if not moved:
            return end
    raise AssertionError("the graph has a cycle")
