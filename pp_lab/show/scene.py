"""What stands where on a timeline, before anyone paints it.

One scene is painted twice, as a PNG (picture.py) and as a live SVG (live.py, live.js), so the
two show the same thing. Time runs to the right, y down; the unit is a pixel.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from ..schedule import Event, Trace


class Text(NamedTuple):
    """A line of text whose middle height is y; anchor is "start", "middle" or "end"."""

    x: float
    y: float
    text: str
    size: float = 11
    anchor: str = "start"
    tone: str = "ink"
    bold: bool = False


class Line(NamedTuple):
    """A thin straight line."""

    x1: float
    y1: float
    x2: float
    y2: float
    tone: str = "rule"


class Swatch(NamedTuple):
    """A sample in the legend: of a kind of op, or of "idle", "memory" or "mark"."""

    x: float
    y: float
    width: float
    height: float
    kind: str


class Part(NamedTuple):
    """One op in a box; a box of a `Pair` has two, the forward above the backward."""

    kind: str
    shade: float  # from 0, the rank's first stage, to 1, its last
    label: str  # empty where none fits
    size: float


class Box(NamedTuple):
    """One event. A marked one is the culprit of an error."""

    x: float
    width: float
    parts: tuple[Part, ...]
    event: Event
    marked: bool = False


@dataclass
class Row:
    """One lane of one rank: its boxes or, where those are too narrow, outlines of shares.

    `right` is where the trace's step ends. `shares` maps a kind to an outline whose height is
    the share of the time that the kind takes.
    """

    trace: Trace
    rank: int
    lane: str
    name: str
    y: float
    height: float
    left: float
    right: float
    boxes: list[Box] = field(default_factory=list)
    shares: dict[str, list[tuple[float, float]]] = field(default_factory=dict)


@dataclass
class Scene:
    """Everything to paint. `memory` are the outlines of the strips under the lanes.

    `ops` is the number of ops that are shown as shares, because they are too many for boxes.
    """

    width: int = 960
    height: float = 0
    texts: list[Text] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    memory: list[list[tuple[float, float]]] = field(default_factory=list)
    swatches: list[Swatch] = field(default_factory=list)
    ops: int = 0
