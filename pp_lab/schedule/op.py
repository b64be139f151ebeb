"""The nouns of a schedule and the one law that connects them.

An `Op` is one stage working on one micro-batch. Kinds and text form are those of
torch.distributed.pipelining: `2F0` is stage 2, forward, micro-batch 0.

    F   forward
    B   full backward: input gradient and weight gradient in one
    I   input gradient only (the zero-bubble papers call this B)
    W   weight gradient only

After the backwards of a step, what a stage found is summed over its copies (data parallelism,
or a bidirectional pipeline): `2R7` is the all-reduce of stage 2's gradients, micro-batch 7's the
last in them. It is on no rank's list, but on a lane of its own.

A `Pair` is a forward and a backward that overlap. A `Move` is one end of a message; where
messages are not spelled out, they follow from the law.

`needs` is the only place in the project where dependencies are written down.
"""

import re
from functools import lru_cache, partial
from itertools import repeat
from typing import NamedTuple

KINDS = "FBIW"
# What running an op of each kind makes available. A full backward is I and W in one,
# so whoever waits for an input gradient is served by a B as well.
PROVIDES = {"F": "F", "I": "I", "W": "W", "B": "IW"}

_OP = re.compile(r"(\d+)([FBIW])(\d+)")
_PAIR = re.compile(r"\((.+);(.+)\)OVERLAP_F_B")
_MOVE = re.compile(r"(\d+)(SEND|RECV)_([FB])(\d+)")


class Op(NamedTuple):
    """One stage's work on one micro-batch: `Op("F", 2, 0)`, written `2F0`."""

    kind: str
    stage: int
    microbatch: int

    def __str__(self):
        return f"{self.stage}{self.kind}{self.microbatch}"

    @property
    def parts(self):
        """The single ops in here; a `Pair` has two."""
        return (self,)

    @property
    def label(self):
        """Short name, for a picture in which the stage is clear from the place."""
        return f"{self.kind}{self.microbatch}"

    @property
    def lane(self):
        """Where it runs on its rank."""
        return "all-reduce" if self.kind == "R" else "compute"


class Pair(NamedTuple):
    """A forward and a backward of two micro-batches run as one overlapped step."""

    f: Op
    b: Op

    def __str__(self):
        return f"({self.f};{self.b})OVERLAP_F_B"

    @property
    def parts(self):
        return (self.f, self.b)

    @property
    def label(self):
        return f"{self.f.label}&{self.b.label}"

    lane = "compute"


class Move(NamedTuple):
    """One end of a message: `Move("SEND", "F", 0, 3)`, written `0SEND_F3`.

    The stage is the one whose rank acts: stage 0 sends its forward's result for micro-batch
    3, and stage 1 receives it with `1RECV_F3`. Gradients (kind B) go the other way.
    """

    action: str
    kind: str
    stage: int
    microbatch: int

    def __str__(self):
        return f"{self.stage}{self.label}"

    @property
    def parts(self):
        """No op in here: a message computes nothing."""
        return ()

    @property
    def label(self):
        return f"{self.action}_{self.kind}{self.microbatch}"

    @property
    def partner(self):
        """The other end of the message."""
        step = 1 if (self.action == "SEND") == (self.kind == "F") else -1
        action = "RECV" if self.action == "SEND" else "SEND"
        return Move(action, self.kind, self.stage + step, self.microbatch)

    lane = "comm"


class Node(NamedTuple):
    """A part of an op, where a stage is one layer of a mixture-of-experts model.

    `Node("F", 2, 0, "mlp")`, written `2F0.mlp`: the experts of layer 2, forward, micro-batch 0.
    The parts follow each other as in `PARTS`; those in `EXCHANGES` are the all-to-alls between
    the ranks that share the experts, and have no weights.
    """

    kind: str
    stage: int
    microbatch: int
    part: str

    def __str__(self):
        return f"{self.stage}{self.kind}{self.microbatch}.{self.part}"

    @property
    def parts(self):
        return (self,)

    @property
    def label(self):
        return f"{self.kind}{self.microbatch} {self.part}"

    @property
    def lane(self):
        return "all-to-all" if self.part in EXCHANGES else "compute"


PARTS = ("attn", "dispatch", "mlp", "combine")
EXCHANGES = ("dispatch", "combine")


def ops(kind: str, stage: int, microbatches: range) -> list[Op]:
    """One stage's ops of a kind, for each micro-batch. Faster than making them one by one."""
    fields = zip(repeat(kind), repeat(stage), _numbers(microbatches), strict=False)
    return list(map(partial(tuple.__new__, Op), fields))


@lru_cache(maxsize=8)
def _numbers(microbatches: range) -> tuple[int, ...]:
    """The same objects for all stages: a large schedule is smaller and faster to walk through."""
    return tuple(microbatches)


def parse(text: str) -> Op | Pair | Move:
    """Read an op (`2F0`), a pair (`(0F3;3B1)OVERLAP_F_B`) or a move (`0SEND_F3`).

    ValueError if it is none of them.
    """
    text = text.strip()
    if match := _PAIR.fullmatch(text):
        return Pair(parse(match[1]), parse(match[2]))
    if match := _OP.fullmatch(text):
        return Op(match[2], int(match[1]), int(match[3]))
    if match := _MOVE.fullmatch(text):
        return Move(match[2], match[3], int(match[1]), int(match[4]))
    raise ValueError(
        f"{text!r} is not an op: write stage, kind (F, B, I or W) and micro-batch, like 2F0"
    )


def needs(item: Op | Pair | Node, stages: int) -> tuple[Op | Node, ...]:
    """What must be finished before `item` can start, in a model of `stages` stages.

    A forward needs the forward of the stage before. A backward (B, or I) needs the
    stage's own forward and the input gradient of the stage after. A weight gradient
    needs the stage's own input gradient: it then has all that it multiplies. A reduction
    needs the last weight gradient. Nothing else ever needs another micro-batch. An `I` or a
    `W` in the answer is satisfied by a `B`.
    """
    if isinstance(item, Pair):
        return needs(item.f, stages) + needs(item.b, stages)
    if isinstance(item, Node):
        return _needs_of_part(item, stages)
    kind, stage, microbatch = item
    if kind == "F":
        return (Op("F", stage - 1, microbatch),) if stage > 0 else ()
    if kind in "WR":
        return (Op("I" if kind == "W" else "W", stage, microbatch),)
    own = Op("F", stage, microbatch)
    return (own, Op("I", stage + 1, microbatch)) if stage + 1 < stages else (own,)


def _needs_of_part(node, stages):
    """The same law for the parts of layers: forwards go along `PARTS`, gradients back."""
    if node.kind == "W":
        return (node._replace(kind="I"),)
    own = () if node.kind == "F" else (node._replace(kind="F"),)
    step, kind = (-1, "F") if node.kind == "F" else (1, "I")
    layer, position = divmod(PARTS.index(node.part) + step, len(PARTS))
    stage = node.stage + layer
    return own + (
        (Node(kind, stage, node.microbatch, PARTS[position]),) if 0 <= stage < stages else ()
    )
