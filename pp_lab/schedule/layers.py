"""Layers of a mixture-of-experts model on the clock: two streams, and an all-to-all on one.

An op of a schedule becomes the nodes of its layers (see `Node`), in the order in which Megatron
enqueues them (model_chunk_schedule_plan.py at commit d98e8a64): compute on one stream,
all-to-alls on the other. A node starts when its stream is free and what it needs is there; an
all-to-all also waits until every rank that shares the experts has come to it.
"""

from dataclasses import dataclass, replace

from .clock import clock
from .connect import connect
from .cost import checked, ticks_of
from .op import EXCHANGES, PARTS, Node, Op, Pair
from .schedule import Placement, Schedule

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

    def of(self, node):
        """The duration of a node (on the first expert-parallel rank, see `on`)."""
        if node.part in EXCHANGES:
            return self.a2a
        return {"attn": self.attn, "mlp": self.mlp[0]}[node.part] * (2 if node.kind == "B" else 1)

    def on(self, rank):
        """The costs as a rank sees them: its own expert-parallel rank's."""
        return replace(self, ep=1, mlp=(self.mlp[rank % self.ep],))

    def pieces(self, stage):
        """The nodes of a stage, which here is one layer, for one micro-batch. An all-to-all has
        no weights."""
        return [
            Node(kind, stage, 0, part)
            for part in PARTS
            for kind in ("FI" if part in EXCHANGES else "FIBW")
        ]

    def in_ticks(self):
        """See `Cost.in_ticks`."""
        ticks = ticks_of([self.attn, *self.mlp, self.a2a, self.comm])
        mlp = tuple(x * ticks for x in self.mlp)
        scaled = {name: getattr(self, name) * ticks for name in ("attn", "a2a", "comm")}
        return ticks, self if ticks == 1 else replace(self, mlp=mlp, **scaled)

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

    The schedule is legal. Every layer is a stage of its own. With ep > 1, rank r of the pipeline
    is the ranks r*ep … r*ep + ep-1, and micro-batch i of the e-th of them is e*m + i, as for any
    copies of a model.
    """
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


def pair_time(model):
    """How long a pair of a stage takes by itself, from what its two ops need to its last node."""
    pair = Pair(Op("F", 0, 1), Op("B", 0, 0))
    row = nodes(pair, model.layers, model.split)
    alone = Schedule("pair", [row], Placement("loop", ((0,) * model.layers,)), 2)
    lanes = [
        (
            {
                kind: {place: _beside(rule, kind) for place, rule in places.items()}
                for kind, places in queue.rules.items()
            },
            queue.tasks,
        )
        for queue in connect(alone, model.on(0))
    ]
    spans, _ = clock(lanes, 2)
    return max(ends[-1] for _, ends in spans)


def _beside(rule, kind):
    """The rule of a backward's node where the forward that it needs is long done."""
    if kind[0] == "F":
        return rule
    return rule._replace(needs=[need for need in rule.needs if need[0][0][0] != "F"])
