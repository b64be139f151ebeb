"""Layers of a mixture-of-experts model on the clock: two streams, and an all-to-all on one.

An op of a schedule becomes the nodes of its layers (see `Node`), in the order in which Megatron
enqueues them (model_chunk_schedule_plan.py at commit d98e8a64): compute on one stream,
all-to-alls on the other. A node starts when its stream is free and what it needs is there; an
all-to-all also waits until every rank that shares the experts has come to it.
"""

from dataclasses import dataclass, replace

from .clock import Rule, clock
from .cost import checked, exact
from .op import EXCHANGES, PARTS, Node, Op, Pair, needs
from .schedule import Placement, Schedule
from .timing import timed

# A forward layer beside a backward layer of another micro-batch. "W" is the weight gradient,
# which nothing waits for: it fills the time of the all-to-all that comes after.
TOGETHER = (
    ("I", "combine"), ("F", "attn"), ("I", "mlp"), ("F", "dispatch"), ("W", "mlp"),
    ("I", "dispatch"), ("F", "mlp"), ("F", "combine"), ("I", "attn"), ("W", "attn"),
)  # fmt: skip


@dataclass(frozen=True)
class Layers:
    """What a stage's op consists of, and what it costs.

    layers: of each stage; attn, mlp: duration of a forward, and as much of the input gradient
    and of the weight gradient; mlp may be one number per expert-parallel rank (a hot expert);
    a2a: of an all-to-all, dispatch or combine; comm: latency of a hop between pipeline ranks.
    streams: 2, or 1 where all-to-alls stand in the way of compute; split: the weight gradient
    is a node of its own (delay_wgrad_compute), else part of the backward's.
    ep: expert-parallel ranks, each with micro-batches of its own, for every pipeline rank.
    """

    layers: int = 1
    attn: object = 1
    mlp: object = 1
    a2a: object = 1
    comm: object = 0
    streams: int = 2
    split: bool = True
    ep: int = 1

    blocking, link, sync = False, 0, 0  # messages take their latency only: see `Cost`

    def __post_init__(self):
        for name in ("layers", "ep"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"{name}={value!r}: give a whole number, 1 at least")
        if self.streams not in (1, 2):
            raise ValueError(f"streams={self.streams!r}: compute and all-to-all share 1, or have 2")
        mlp = self.mlp if isinstance(self.mlp, (list, tuple)) else (self.mlp,) * self.ep
        if len(mlp) != self.ep:
            raise ValueError(f"mlp has {len(mlp)} durations for {self.ep} expert-parallel ranks")
        object.__setattr__(self, "mlp", checked("mlp", mlp))
        for name in ("attn", "a2a", "comm"):
            value = checked(name, getattr(self, name))
            if value is None or isinstance(value, tuple):
                raise ValueError(f"{name}={value} is not a duration: give one number")
            object.__setattr__(self, name, value)

    def of(self, node, ep=0):
        """The duration of a node on an expert-parallel rank."""
        if node.part in EXCHANGES:
            return self.a2a
        return {"attn": self.attn, "mlp": self.mlp[ep]}[node.part] * (2 if node.kind == "B" else 1)

    def on(self, rank):
        """The costs as a rank of a run sees them: its own expert-parallel rank's."""
        return replace(self, ep=1, mlp=(self.mlp[rank % self.ep],))

    def __str__(self):
        mlp = "/".join(map(str, dict.fromkeys(self.mlp)))
        return (
            f"layers={self.layers} attn={self.attn} mlp={mlp} a2a={self.a2a}"
            + (f" comm={self.comm}" if self.comm else "")
            + (", one stream" if self.streams == 1 else "")
            + ("" if self.split else ", W not split off")
        )


def nodes(item, layers, split=True):
    """The nodes of an op or a pair in the order in which they are enqueued.

    The stage has `layers` layers, numbered through the model. In a pair, the forward goes up
    the layers while the backward goes down, side by side.
    """
    made = []
    forward = next((op for op in item.parts if op.kind == "F"), None)
    backward = next((op for op in item.parts if op.kind != "F"), None)
    for k in range(layers):
        for kind, part in TOGETHER:
            if kind == "F":
                op, layer = forward, k
            else:
                op, layer = backward, layers - 1 - k
                kind = _kind(op, kind, part, split)
            if op is not None and kind:
                made.append(Node(kind, op.stage * layers + layer, op.microbatch, part))
    return made


def _kind(op, kind, part, split):
    """Which node of a backward a turn of `TOGETHER` stands for in `op`, or None."""
    if op is None or op.kind == "B" and split or op.kind == kind:
        return kind
    if op.kind == "B" and kind == "I":
        return "I" if part in EXCHANGES else "B"
    return None


def spread(schedule, model):
    """A schedule of ops as one of nodes, each rank's in the order in which they are enqueued.

    It is verified first. Every layer is a stage of its own. With ep > 1, rank r of the pipeline
    is the ranks r*ep … r*ep + ep-1, and micro-batch i of the e-th of them is e*m + i, as for any
    copies of a model.
    """
    timed(schedule, lambda item: 1)
    placement, m, ep = schedule.placement, schedule.microbatches, model.ep
    if ep > 1 and len(placement.copies) > 1:
        raise ValueError(
            f"{schedule.name} has {len(placement.copies)} copies of the model: give ep=1"
        )
    copies = [
        tuple(rank * ep + e for rank in owners for _ in range(model.layers))
        for owners in placement.copies
        for e in range(ep)
    ]
    rows = [
        [
            node._replace(microbatch=node.microbatch + e * m)
            for item in row
            for node in nodes(item, model.layers, model.split)
        ]
        for row in schedule.ranks
        for e in range(ep)
    ]
    return Schedule(schedule.name, rows, Placement(placement.name, tuple(copies)), m * ep)


def time_layers(schedule, model):
    """The events of a schedule whose ops are layers: (schedule of the nodes that compute, lanes).

    The lanes are (rank, "compute" or "all-to-all", nodes, starts, ends).
    """
    whole = spread(schedule, model)
    m = schedule.microbatches
    lanes, queues = [], []
    for rank, row in enumerate(whole.ranks):
        rules = _rules(whole, rank, model)
        for mine in [row] if model.streams == 1 else by_lane(row).values():
            lanes.append((rank, mine))
            queues.append((rules, list(_tasks(mine, whole, m, model.ep))))
    spans, _ = clock(queues, m)
    result = []
    for (rank, mine), (_, tasks), (starts, ends) in zip(lanes, queues, spans, strict=True):
        assert len(ends) == len(tasks), "a legal schedule's nodes cannot wait for each other"
        real = [k for k, task in enumerate(tasks) if task[0][0] != "gate"]
        moments = {node: (starts[k], ends[k]) for node, k in zip(mine, real, strict=True)}
        for name, of in by_lane(mine).items():
            if of:
                result.append((rank, name, of, *map(list, zip(*map(moments.get, of), strict=True))))
    return computing(whole), result


def computing(schedule):
    """A schedule of nodes without its all-to-alls."""
    rows = [by_lane(row)["compute"] for row in schedule.ranks]
    return Schedule(schedule.name, rows, schedule.placement, schedule.microbatches)


def by_lane(row, key=lambda item: item):
    """{stream: what runs on it, in order}, compute first. key: gives an entry's op or node."""
    found = {"compute": [], "all-to-all": []}
    for entry in row:
        found.setdefault(lane_of(key(entry)), []).append(entry)
    return found


def lane_of(item):
    """The stream on which an op or a node runs."""
    if getattr(item, "kind", None) == "R":
        return "all-reduce"
    return "all-to-all" if getattr(item, "part", None) in EXCHANGES else "compute"


def _tasks(row, schedule, m, ep):
    """The nodes of a lane as tasks; before an all-to-all between ranks, a gate tells the others
    that this rank has come to it."""
    for node in row:
        copy = schedule.placement.copy(node.microbatch, schedule.microbatches)
        task = (node.kind, node.part), (copy, node.stage), node.microbatch % m
        if ep > 1 and node.part in EXCHANGES:
            yield ("gate", *task[0]), *task[1:]
        yield task


def _rules(schedule, rank, model):
    """What each node of a rank needs, makes and takes, at each place."""
    found, stages = {}, schedule.stages
    for copy, stage in schedule.placement.held_by(rank):
        owners, place = schedule.placement.copies[copy], (copy, stage)
        for part in PARTS:
            for kind in "FIBW":
                node = Node(kind, stage, 0, part)
                waits = [
                    (
                        (need.kind, need.part, (copy, need.stage)),
                        model.comm if owners[need.stage] != rank else 0,
                    )
                    for need in needs(node, stages)
                ]
                makes = [(k, part, place) for k in ("IW" if kind == "B" else kind)]
                if model.ep > 1 and part in EXCHANGES:
                    arrived = ("arrived", kind, part, place)
                    found.setdefault(("gate", kind, part), {})[place] = Rule(waits, [arrived], 0)
                    waits = [
                        (("arrived", kind, part, (other, stage)), 0) for other in range(model.ep)
                    ]
                rule = Rule(waits, makes, exact(model.of(node, rank % model.ep)))
                found.setdefault((kind, part), {})[place] = rule
    return found


def pair_time(model):
    """How long a pair of a stage takes by itself, from what its two ops need to its last node."""
    pair = Pair(Op("F", 0, 1), Op("B", 0, 0))
    row = nodes(pair, model.layers, model.split)
    alone = Schedule("pair", [row], Placement("loop", ((0,) * model.layers,)), 2)
    rules = {
        kind: {
            place: rule._replace(
                needs=[n for n in rule.needs if n[0][0] == kind[0] or n[0][0] == "I"]
            )
            for place, rule in places.items()
        }
        for kind, places in _rules(alone, 0, replace(model, ep=1, mlp=model.mlp[:1])).items()
    }
    streams = [row] if model.streams == 1 else by_lane(row).values()
    spans, _ = clock([(rules, list(_tasks(mine, alone, 2, 1))) for mine in streams], 2)
    return max(ends[-1] for _, ends in spans)
