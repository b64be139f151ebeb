"""From events to boxes: their looks, and labels no larger than fits."""

from functools import lru_cache

from ..schedule.op import Move
from .palette import KINDS
from .scene import Box, Part

SIZES = (11, 10, 9, 8, 7)  # of the font
# Widths of the characters in labels, over the size of the font; the digits' is the default.
CHARACTERS, DIGIT = {"F": 0.575, "B": 0.686, "I": 0.295, "W": 0.989, "→": 0.838, "←": 0.838}, 0.636
NARROW = 1.5  # where most boxes are narrower than this, shares of time are drawn instead
BIN = 4  # width of the stretch of time whose shares are drawn


def faces(schedule, item):
    """What is seen of an item: for each of its ops (kind, whole label, shorter label, op)."""
    if isinstance(item, Move):
        stage = "" if schedule.label(item) == item.label else item.stage
        sign = KINDS[item.action].sign
        label = f"{stage}{item.kind}{item.microbatch}"
        return [(item.action, sign + label, label, item)]
    label = schedule.label
    return [(op.kind, label(op), str(op.microbatch), op) for op in item.parts]


def label_sizes(traces):
    """How to label the boxes of each lane: {lane: (whole labels or not, {kind: font size})}.

    traces: pairs (trace, pixels per unit of its time). The ops of one kind share the largest
    size at which most of them hold their label. Where whole labels do not fit for every kind
    of a lane, all of the lane get the shorter one (of an op, the number of its micro-batch) or
    nothing. None where most boxes are too narrow to be drawn at all.
    """
    sized = [
        (trace, event, (float(event.end) - float(event.start)) * scale)
        for trace, scale in traces
        for event in trace.events
    ]
    widths = sorted(width for *_, width in sized if width > 0)
    if widths and widths[len(widths) // 2] < NARROW:
        return None
    found = {}
    for trace, event, width in sized:
        for kind, whole, short, _ in faces(trace.schedule, event.op):
            lane = found.setdefault(event.lane, {})
            lane.setdefault(kind, []).append((_width(whole), _width(short), width))
    return {lane: _sizes(kinds) for lane, kinds in found.items()}


def _sizes(kinds):
    for column in (0, 1):
        sizes = {
            kind: _largest([(box[column], box[2]) for box in boxes])
            for kind, boxes in kinds.items()
        }
        if all(sizes.values()):
            break
    return column == 0, sizes


def _largest(texts):
    """The largest size at which most texts, pairs (width, width of box), fit; 0 for none."""
    for size in SIZES:
        if sum(_fits(*text, size) for text in texts) >= 0.75 * len(texts):
            return size
    return 0


@lru_cache(maxsize=4096)
def _width(text):
    """The width of a text over the size of its font."""
    return sum(CHARACTERS.get(character, DIGIT) for character in text)


def _fits(width, box, size):
    return width * size + 1.5 <= box


def boxes(row, events, scale, labels, marks):
    """The boxes of a row. labels: what `label_sizes` says; marks: items to mark."""
    schedule = row.trace.schedule
    whole_labels, largest = labels.get(row.lane, (False, {}))
    shades = _shades(schedule, row.rank)
    made = []
    for event in events:
        width = (float(event.end) - float(event.start)) * scale
        seen = faces(schedule, event.op)
        parts = []
        for kind, whole, short, op in seen:
            text = whole if whole_labels else short
            most = min(largest[kind], row.height / len(seen) - 1)
            size = next((s for s in SIZES if s <= most and _fits(_width(text), width, s)), 0)
            parts.append(Part(kind, shades(op), text if size else "", size))
        marked = any(op in marks for *_, op in seen)
        made.append(Box(row.left + float(event.start) * scale, width, tuple(parts), event, marked))
    return made


def _shades(schedule, rank):
    """A function of an op: how far down the rank's stages its stage is, from 0 to 1."""
    held = schedule.placement.held_by(rank)
    place = {stage: k / max(len(held) - 1, 1) for k, stage in enumerate(held)}

    def shade(op):
        copy = schedule.placement.copy(op.microbatch, schedule.microbatches)
        return place.get((copy, op.stage), 0)

    return shade


def shares(row, events, scale):
    """Outlines that show, for each short stretch of time, the share of each kind of op.

    The kinds stand on each other, the first at the top; what is left to the bottom is idle.
    """
    bins = max(1, round((row.right - row.left) / BIN))
    step = (row.right - row.left) / bins / scale
    spent = {kind: [0.0] * bins for kind in KINDS}
    for event in events:
        start, end = float(event.start), float(event.end)
        seen = faces(row.trace.schedule, event.op)
        for k in range(int(start / step), min(int(end / step), bins - 1) + 1):
            inside = min(end, (k + 1) * step) - max(start, k * step)
            for kind, *_ in seen:
                spent[kind][k] += inside / len(seen)
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
