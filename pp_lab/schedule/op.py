"""The two nouns of a schedule and the one law that connects them.

An `Op` is one stage working on one micro-batch. Kinds and text form are those of
torch.distributed.pipelining: `2F0` is stage 2, forward, micro-batch 0.

    F   forward
    B   full backward: input gradient and weight gradient in one
    I   input gradient only (the zero-bubble papers call this B)
    W   weight gradient only

`needs` is the only place in the project where dependencies are written down.
"""

import re
from typing import NamedTuple

KINDS = "FBIW"
# What running an op of each kind makes available. A full backward is I and W in one,
# so whoever waits for an input gradient is served by a B as well.
PROVIDES = {"F": "F", "I": "I", "W": "W", "B": "IW"}

_OP = re.compile(r"(\d+)([FBIW])(\d+)")
_PAIR = re.compile(r"\((.+);(.+)\)OVERLAP_F_B")


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


def parse(text: str) -> Op | Pair:
    """Read an op (`2F0`) or a pair (`(0F3;3B1)OVERLAP_F_B`); ValueError if it is neither."""
    text = text.strip()
    if match := _PAIR.fullmatch(text):
        return Pair(parse(match[1]), parse(match[2]))
    if match := _OP.fullmatch(text):
        return Op(match[2], int(match[1]), int(match[3]))
    raise ValueError(
        f"{text!r} is not an op: write stage, kind (F, B, I or W) and micro-batch, like 2F0"
    )


def needs(item: Op | Pair, stages: int) -> tuple[Op, ...]:
    """What must be finished before `item` can start, in a model of `stages` stages.

    A forward needs the forward of the stage before. A backward (B, or I) needs the
    stage's own forward and the input gradient of the stage after. A weight gradient
    needs the stage's own input gradient: it then has all that it multiplies. Nothing
    ever needs another micro-batch. An `I` in the answer is satisfied by a `B`.
    """
    if isinstance(item, Pair):
        return needs(item.f, stages) + needs(item.b, stages)
    kind, stage, microbatch = item
    if kind == "F":
        return (Op("F", stage - 1, microbatch),) if stage > 0 else ()
    if kind == "W":
        return (Op("I", stage, microbatch),)
    own = Op("F", stage, microbatch)
    return (own, Op("I", stage + 1, microbatch)) if stage + 1 < stages else (own,)
