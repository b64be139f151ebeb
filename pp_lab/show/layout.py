"""From traces to a scene: title, lanes and memory strip of each rank, axis, legend."""

import textwrap
from dataclasses import dataclass
from math import floor, log10

from ..schedule import Event, Trace
from ..schedule.text import headline, in_bytes, number
from ..schedule.verify import activations
from .boxes import boxes, label_sizes, lanes, shares
from .palette import KINDS
from .scene import Line, Row, Scene, Swatch, Text

RIGHT = 66  # holds "peak 12"


@dataclass(frozen=True)
class Panel:
    """A trace, what was predicted for it, and the ops to mark in it."""

    trace: Trace
    predicted: Trace = None
    marks: tuple = ()

    @property
    def unit(self):
        """How much of the trace's time one unit of the prediction's time is.

        1 where both have the same unit. A run measured in seconds and a prediction in the
        units of a cost model share an axis once the prediction is stretched until both do
        the same amount of work.
        """
        if not self.predicted or in_seconds(self.trace) == in_seconds(self.predicted):
            return 1
        work, predicted = sum(self.trace.busy), sum(self.predicted.busy)
        return float(work / predicted) if work and predicted else 1

    @property
    def traces(self):
        """Pairs (trace, its unit)."""
        return [(self.trace, 1)] + ([(self.predicted, self.unit)] if self.predicted else [])

    @property
    def end(self):
        """When the panel's last op ends, on the trace's own clock."""
        return max(float(trace.makespan) * unit for trace, unit in self.traces)


def in_seconds(trace: Trace) -> bool:
    """Whether times are measured in seconds; otherwise they are in units of a cost model."""
    return trace.cost is None


def held(trace: Trace, rank: int) -> list[tuple[Event, int]]:
    """For each op of a rank how many activations the rank holds while it runs."""
    levels = zip(trace.schedule.ranks[rank], activations(trace.schedule, rank), strict=True)
    computed = (level for item, level in levels if item.parts)
    return list(zip(trace.ranks[rank], computed, strict=False))


def memory(trace: Trace, rank: int) -> list[tuple[float, int]]:
    """When it changes what a rank holds: pairs (time, from then on so many). Bytes where they were
    metered, else activations."""
    levels = {}  # of changes at the same time the last one counts
    if trace.held_bytes:
        levels |= {float(time): count for time, count in trace.held_bytes[rank]}
        return list(levels.items())
    for event, level in held(trace, rank):
        levels[float(event.start)] = level
        levels[float(event.end)] = level - sum(op.kind in "BW" for op in event.op.parts)
    return list(levels.items())


def _peak(trace, rank):
    """The most that a rank holds: bytes where they were metered, else activations."""
    if trace.held_bytes:
        return max((count for _, count in trace.held_bytes[rank]), default=0)
    return trace.peak_activations[rank]


def build(panels: list[Panel]) -> Scene:
    """Lay out panels, one under the other, over one time axis."""
    return _Layout(panels).scene


class _Layout:
    """Fills a scene from top to bottom; `y` is how far it is."""

    def __init__(self, panels):
        self.panels, self.scene, self.y = panels, Scene(), 6
        self.end = max(panel.end for panel in panels)
        traces = [pair for panel in panels for pair in panel.traces]
        self.lanes = {id(trace): lanes(trace) for trace, _ in traces}
        several = any(p.predicted or max(map(len, self.lanes[id(p.trace)])) > 1 for p in panels)
        self.left = 112 if several else 62
        self.scale = (self.scene.width - RIGHT - self.left) / (self.end or 1)
        # Strips in bytes have one scale, and those in activations another.
        self.peaks = {}
        for panel in panels:
            unit = panel.trace.held_bytes is not None
            most = max(_peak(panel.trace, rank) for rank in range(panel.trace.schedule.p))
            self.peaks[unit] = max(self.peaks.get(unit, 1), most)
        self.labels = label_sizes(
            [(self.lanes[id(trace)], unit * self.scale) for trace, unit in traces]
        )
        for panel in panels:
            self._title(panel)
            self._ranks(panel)
        if self.end:
            self._axis(panels[0].trace)
            self._legend()
        self.scene.height = round(self.y + 6)

    def _write(self, *args, **more):
        self.scene.texts.append(Text(*args, **more))

    def _x(self, time):
        return self.left + float(time) * self.scale

    def _title(self, panel):
        title, _, figures = headline(panel.trace).rpartition(": ")
        lines = [figures]
        if panel.predicted:
            same = "; equal, event for event" * (panel.trace == panel.predicted)
            lines.append(f"over the prediction: {headline(panel.predicted)}{same}")
        if panel.unit != 1:
            lines.append(
                f"one unit of the prediction is drawn as {number(panel.unit * 1000)} ms, "
                "so that both lanes hold the same work"
            )
        for line in textwrap.wrap(title, 100):
            self._write(10, self.y + 10.5, line, 13, bold=True)
            self.y += 17
        for line in lines:
            for piece in textwrap.wrap(line, 130):
                self._write(10, self.y + 9.5, piece, tone="faint")
                self.y += 15
        self.y += 8

    def _ranks(self, panel):
        trace, p = panel.trace, panel.trace.schedule.p
        tall = 26 if p <= 8 else 18 if p <= 16 else 12
        if not any(trace.events for trace, _ in panel.traces):
            self._write(self.left, self.y + 8, "nothing ran", 12, tone="faint")
            self.y += 32
            return
        found = [self.lanes[id(trace)] for trace, _ in panel.traces]
        for rank in range(p):
            self._write(10, self.y + tall / 2, f"rank {rank}", 11 if p <= 16 else 9, bold=True)
            mine = [of[rank] for of in found]
            for lane in dict.fromkeys(lane for of in mine for lane in of):
                for (owner, unit), of in zip(panel.traces, mine, strict=True):
                    if lane in of:
                        self._row(panel, owner, unit, rank, lane, of[lane], tall)
            self._memory(trace, rank, tall)
            self.y += tall / 3
        self.y += 10

    def _row(self, panel, trace, unit, rank, lane, drawn, tall):
        predicted = trace is not panel.trace
        name = {"simulated": "simulated", "virtual": "run"}.get(trace.clock, "measured")
        if predicted:
            name = "predicted" if lane == "compute" else f"predicted {lane}"
        elif lane != "compute":
            name = lane
        height = tall if lane == "compute" and not predicted else round(0.7 * tall)
        scale = self.scale * unit
        row = Row(
            trace,
            rank,
            lane,
            f"rank {rank}, {name}",
            self.y,
            height,
            self.left,
            self.left + float(trace.makespan) * scale,
        )
        if self.left > 100:
            self._write(self.left - 6, self.y + height / 2, name, 9, "end", "faint")
        if self.labels is None:
            row.shares = shares(row, drawn, scale)
            self.scene.ops += len(drawn)
        else:
            row.boxes = boxes(row, drawn, scale, self.labels, () if predicted else panel.marks)
        self.scene.rows.append(row)
        self.y += height + 2

    def _memory(self, trace, rank, tall):
        """The strip under a rank: what it holds, on one scale for all ranks."""
        height = round(0.7 * tall)
        self.y += 2 + height
        steps, metered = memory(trace, rank), trace.held_bytes is not None
        whole = self.peaks[metered]
        if steps:
            outline = [(self._x(steps[0][0]), self.y)]
            for time, level in steps:
                x = self.left + time * self.scale
                outline += [(x, outline[-1][1]), (x, self.y - height * level / whole)]
            self.scene.memory.append([*outline, (outline[-1][0], self.y)])
        self.scene.lines.append(Line(self.left, self.y, self._x(trace.makespan), self.y))
        x, most = self.scene.width - RIGHT + 8, _peak(trace, rank)
        text = in_bytes(most) if metered else f"peak {most}"
        self._write(x, self.y - height / 2, text, 11 if tall > 12 else 9)

    def _axis(self, trace):
        measured = in_seconds(trace)
        factor, unit = (1000, "ms") if measured and self.end < 1 else (1, "s")
        end, y = self.end * factor, self.y - 6
        step = _nice(end / 10)
        self.scene.lines.append(Line(self.left, y, self._x(self.end), y, "faint"))
        for k in range(floor(end / step * (1 + 1e-9)) + 1):
            x = self._x(k * step / factor)
            self.scene.lines.append(Line(x, y, x, y + 4, "faint"))
            self._write(x, y + 12, f"{k * step:.6g}", 10, "middle", "faint")
        text = f"time in {unit}, measured" if measured else "time in units of the cost model"
        self._write(self._x(self.end / 2), y + 27, text, 10, "middle", "faint")
        self.y = y + 42

    def _legend(self):
        """Swatches for what is there, and how to read a label; wraps at the right margin."""
        x = self.left
        for kind, text in self._entries():
            width = (22 if kind else 0) + len(text) * 0.56 * 10 + 14
            if x > self.left and x + width > self.scene.width:
                x, self.y = self.left, self.y + 18
            if kind:
                self.scene.swatches.append(Swatch(x, self.y, 16, 12, kind))
            self._write(x + (22 if kind else 0), self.y + 6, text, 10, tone="faint")
            x += width
        self.y += 14

    def _entries(self):
        rows = [row for ranks in self.lanes.values() for rank in ranks for row in rank.values()]
        faces = [face for row in rows for seen in row for face in seen.faces]
        kinds = {kind for kind, *_ in faces}
        entries = [
            (kind, f"{look.sign} {look.name}") for kind, look in KINDS.items() if kind in kinds
        ]
        held = " and ".join("bytes" if metered else "activations" for metered in self.peaks)
        entries += [("idle", "idle"), ("memory", f"{held} held, on one scale for all ranks")]
        if any(panel.marks for panel in self.panels):
            entries.append(("mark", "look here"))
        traces = [trace for panel in self.panels for trace, _ in panel.traces]
        if any(len(trace.schedule.placement.held_by(0)) > 1 for trace in traces):
            entries.append((None, "lighter: another stage of the same rank"))
        return entries + [(None, text) for text in self._reading(faces[0])]

    def _reading(self, face):
        """How to read what stands in a box."""
        if self.labels is None:
            return ["ops too narrow to draw: the height of a colour is its share of the time"]
        whole, sizes = self.labels.get("compute", (False, {}))
        if not any(sizes.values()):
            return []
        if not whole:
            return ["number: micro-batch"]
        kind, label, microbatch, op = face
        stage = "" if label == op.label else f"stage {op.stage}, "
        return [f"{label}: {stage}{KINDS[kind].name}, micro-batch {microbatch}"]


def _nice(step):
    """The least of 1, 2, 5, 10, 20, … (or their decimal fractions) that is not below `step`."""
    power = 10.0 ** floor(log10(step))
    return next(power * k for k in (1, 2, 5, 10) if power * k >= step * (1 - 1e-9))
