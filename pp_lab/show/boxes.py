"""From events to boxes: their looks, and labels no larger than fits."""

from collections import Counter
from functools import lru_cache
from typing import NamedTuple

from ..schedule import Event, Trace
from ..schedule.op import Move
from .palette import KINDS
from .scene import Box, Part

SIZES = (11, 10, 9, 8, 7)  # of the font
# Widths of the characters in labels, over the size of the font; the digits' is the default.
CHARACTERS, DIGIT = {"F": 0.575, "B": 0.686, "I": 0.295, "W": 0.989, "→": 0.838, "←": 0.838}, 0.636
NARROW = 1.5  # where most boxes are narrower than this, shares of time are drawn instead
BIN = 4  # width of the stretch of time whose shares are drawn


class Seen(NamedTuple):
    """What is seen of an event: from when to when, and for each op its face, which is
    (kind, whole label, shorter label, op)."""

    event: Event
    start: float
    end: float
    faces: list


def lanes(trace: Trace) -> list[dict[str, list[Seen]]]:
    """For each rank its lanes by name, compute first, each with what is seen there in order."""
    found = [{"compute": []} for _ in range(trace.schedule.p)]
    for event in trace.events:
        seen = Seen(event, float(event.start), float(event.end), _faces(trace.schedule, event.op))
        found[event.rank].setdefault(event.lane, []).append(seen)
    return found


def _faces(schedule, item):
    if isinstance(item, Move):
        stage = "" if schedule.label(item) == item.label else item.stage
        sign = KINDS[item.action].sign
        label = f"{stage}{item.kind}{item.microbatch}"
        return [(item.action, sign + label, label, item)]
    label = schedule.label
    return [(op.kind, label(op), str(op.microbatch), op) for op in item.parts]


def label_sizes(drawn):
    """How to label the boxes of each lane: {lane: (whole labels or not, {kind: font size})}.

    drawn: pairs (`lanes` of a trace, pixels per unit of its time). The ops of one kind share
    the largest size at which most of them hold their label. Where whole labels do not fit for
    every kind of a lane, all of the lane get the shorter one (of an op, the number of its
    micro-batch) or nothing. None where most boxes are too narrow to be drawn at all.
    """
    sized = [
        (lane, (seen.end - seen.start) * scale, seen.faces)
        for ranks, scale in drawn
        for rank in ranks
        for lane, row in rank.items()
        for seen in row
    ]
    widths = sorted(width for _, width, _ in sized if width > 0)
    if widths and widths[len(widths) // 2] < NARROW:
        return None
    alike = Counter(
        (lane, kind, _width(whole), _width(short), width)
        for lane, width, faces in sized
        for kind, whole, short, _ in faces
    )
    found = {}
    for (lane, kind, *widths), count in alike.items():
        found.setdefault(lane, {}).setdefault(kind, []).append((*widths, count))
    return {lane: _sizes(kinds) for lane, kinds in found.items()}


def _sizes(kinds):
    for column in (0, 1):
        sizes = {kind: _largest(texts, column) for kind, texts in kinds.items()}
        if all(sizes.values()):
            break
    return column == 0, sizes


def _largest(texts, column):
    """The largest size at which most texts of a column fit; 0 for none.

    texts: tuples (width of the whole label, of the shorter one, of the box, how many of them)
    """
    for size in SIZES:
        fit = sum(text[3] for text in texts if _fits(text[column], text[2], size))
        if fit >= 0.75 * sum(text[3] for text in texts):
            return size
    return 0


@lru_cache(maxsize=4096)
def _width(text):
    """The width of a text over the size of its font."""
    return sum(CHARACTERS.get(character, DIGIT) for character in text)


def _fits(width, box, size):
    return width * size + 1.5 <= box


@lru_cache(maxsize=4096)
def _size(text, box, most):
    """The largest size, but `most`, at which a text fits its box; 0 for none."""
    return next((s for s in SIZES if s <= most and _fits(_width(text), box, s)), 0)


def boxes(row, drawn, scale, labels, marks):
    """The boxes of a row. labels: what `label_sizes` says; marks: items to mark."""
    schedule = row.trace.schedule
    whole_labels, largest = labels.get(row.lane, (False, {}))
    shades = _shades(schedule, row.rank)
    made = []
    for event, start, end, faces in drawn:
        width = (end - start) * scale
        parts = []
        for kind, whole, short, op in faces:
            text = whole if whole_labels else short
            size = _size(text, width, min(largest[kind], row.height / len(faces) - 1))
            parts.append(Part(kind, shades(op), text if size else "", size))
        marked = bool(marks) and any(op in marks for *_, op in faces)
        made.append(Box(row.left + start * scale, width, tuple(parts), event, marked))
    return made


def _shades(schedule, rank):
    """A function of an op: how far down the rank's stages its stage is, from 0 to 1."""
    placement, m = schedule.placement, schedule.microbatches
    held = placement.held_by(rank)
    place = {stage: k / max(len(held) - 1, 1) for k, stage in enumerate(held)}
    copies = [placement.copy(i, m) for i in range(m)]
    return lambda op: place.get((copies[op.microbatch], op.stage), 0)


def shares(row, drawn, scale):
    """Outlines that show, for each short stretch of time, the share of each kind of op.

    The kinds stand on each other, the first at the top; what is left to the bottom is idle.
    """
    bins = max(1, round((row.right - row.left) / BIN))
    step = (row.right - row.left) / bins / scale
    spent = {kind: [0.0] * bins for kind in KINDS}
    for _, start, end, faces in drawn:
        for k in range(int(start / step), min(int(end / step), bins - 1) + 1):
            inside = min(end, (k + 1) * step) - max(start, k * step)
            for kind, *_ in faces:
                spent[kind][k] += inside / len(faces)
    edges = [row.left + k * step * scale for k in range(bins + 1)]
    top, outlines = [row.y] * bins, {}
    for kind, times in spent.items():
        if any(times):
            below = [y + row.height * time / step for y, time in zip(top, times, strict=True)]
            outlines[kind] = [*_stairs(edges, top), *reversed(_stairs(edges, below))]
            top = below
    return outlines


def _stairs(edges, levels):
    return [(x, level) for k, level in enumerate(levels) for x in edges[k : k + 2]]
