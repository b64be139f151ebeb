"""When everything happened, simulated or measured, and what follows from it."""

import json
from bisect import bisect_right
from collections import defaultdict
from functools import cached_property
from itertools import repeat
from typing import NamedTuple

from .connect import Lane
from .cost import exact
from .op import Move, Op, Pair, needs
from .text import number, timeline_text
from .verify import activations


class Event(NamedTuple):
    """An item on a lane of a rank, from `start` to `end` (in the cost's unit, or in seconds)."""

    rank: int
    lane: str
    op: Op | Pair | Move
    start: object
    end: object


class Trace:
    """Events and what they amount to. Simulated and measured runs give the same kind.

    schedule: what ran, in the order in which it ran; events: `Event`s, rank by rank in order
    (or `Lane`s, in `ticks` of a unit: a simulation leaves the events until they are asked
    for); cost: the cost model, None where times were measured; clock: "simulated",
    "virtual", "wall" or "pace". Times are in the cost's unit; measured ones in seconds.
    held_bytes: for each rank the steps (time, bytes held from then on), where they were metered.
    """

    def __init__(self, schedule, events, cost=None, clock="simulated", ticks=1, held_bytes=None):
        self.held_bytes = held_bytes
        self.schedule, self.cost, self.clock, self._ticks = schedule, cost, clock, ticks
        events = list(events)
        if events and isinstance(events[0], Lane):
            self._lanes = events
        else:
            self.events, lanes = events, {}
            for event in events:
                lane = lanes.setdefault(event[:2], Lane(*event[:2], [], [], []))
                for column, value in zip(lane[2:], event[2:], strict=True):
                    column.append(value)
            self._lanes = list(lanes.values())

    @cached_property
    def events(self):
        """Every event, rank by rank in order."""
        time, made = self._time, []
        for rank, name, items, starts, ends in self._lanes:
            columns = repeat(rank), repeat(name), items, map(time, starts), map(time, ends)
            made += map(Event._make, zip(*columns, strict=False))
        if self._blocking:  # messages stand in their ranks' rows
            order = {item: k for row in self.schedule.ranks for k, item in enumerate(row)}
            made.sort(key=lambda event: (event.rank, order.get(event.op, len(order))))
        return made

    @property
    def _blocking(self):
        return self.cost is not None and self.cost.blocking

    @property
    def _time(self):
        """What turns ticks into a time."""
        ticks = self._ticks
        return exact if ticks == 1 else _Memo(lambda tick: exact(tick, ticks)).__getitem__

    @cached_property
    def ranks(self):
        """For each rank its compute events, in order."""
        rows = [[] for _ in range(self.schedule.p)]
        for event in self.events:
            if event.lane == "compute":
                rows[event.rank].append(event)
        return rows

    @cached_property
    def makespan(self):
        """From the start of the step to the end of the last op."""
        return self._time(max((lane.ends[-1] for lane in self._lanes if lane.ends), default=0))

    @property
    def _compute(self):
        """The lanes that count as work."""
        return [lane for lane in self._lanes if lane.name == "compute"]

    @cached_property
    def busy(self):
        """For each rank the time in which it computes."""
        busy = [0] * self.schedule.p
        for lane in self._compute:
            busy[lane.rank] += sum(lane.ends) - sum(lane.starts)
        return list(map(self._time, busy))

    @property
    def last_backwards(self):
        """For each rank {stage: when its last backward, or weight gradient, starts}: from then
        on its gradients become complete."""
        found = [{} for _ in range(self.schedule.p)]
        for lane in self._compute:
            for item, start in zip(lane.items, lane.starts, strict=True):
                found[lane.rank] |= {op.stage: start for op in item.parts if op.kind != "F"}
        return [{s: self._time(start) for s, start in last.items()} for last in found]

    @property
    def idle(self):
        """For each rank the time in which it does not compute, out of the makespan."""
        return [exact(self.makespan - busy) for busy in self.busy]

    @property
    def bubble(self):
        """Idle time over p * makespan: the part of all ranks' time that is lost."""
        whole = self.schedule.p * self.makespan
        return exact(sum(self.idle), whole) if whole else 0

    @property
    def bubble_over_ideal(self):
        """Idle time over busy time, the other definition in use: (p-1)/m for 1F1B."""
        ideal = sum(self.busy)
        return exact(sum(self.idle), ideal) if ideal else 0

    @property
    def span(self):
        """The longest rank's own time from its first op to its last.

        This is what the zero-bubble papers call cost. It is not the makespan: ranks may
        start late and end early.
        """
        spans = [lane.ends[-1] - lane.starts[0] for lane in self._compute if lane.ends]
        return self._time(max(spans, default=0))

    @cached_property
    def peak_activations(self):
        """For each rank, how many stage activations it holds at its worst moment.

        One lives from F to B, or to W where the backward is split.
        """
        return self.peaks()

    def peaks(self, freed="W"):
        """`peak_activations` under a named convention.

        freed: "W" (a split backward frees at its W), "B" (at its I, as the zero-bubble
        papers count), or "half" (half at each).
        """
        return [
            max(activations(self.schedule, rank, freed), default=0)
            for rank in range(self.schedule.p)
        ]

    def peak_bytes(self, model, freed="W"):
        """For each rank the bytes of its activations at the worst moment, for a `Model`."""
        return [exact(peak * model.stage_bytes(self.schedule.stages)) for peak in self.peaks(freed)]

    @cached_property
    def _made(self):
        """The event that makes each op's result available; a B serves as I and as W."""
        made = {}
        for event in self.events:
            if type(event.op) is Move:
                made[event.op] = event
            for op in event.op.parts:
                made[op] = event
                if op.kind == "B":
                    made[op._replace(kind="I")] = made[op._replace(kind="W")] = event
        return made

    @cached_property
    def _before(self):
        """For each event (by its id) the one that its rank ran before it.

        Messages that are a rendezvous hold their rank up, as ops do.
        """
        rows = defaultdict(list)
        for event in self.events:
            rows[event.rank, "compute" if self._blocking else event.lane].append(event)
        return {
            id(event): before
            for row in rows.values()
            for before, event in zip(row, row[1:], strict=False)
        }

    def needs(self, event):
        """What an event waited for: pairs (event, time at which its result arrived)."""
        if event.lane.startswith("to "):  # a link: the value, and the message before
            value = self._made.get(Op("F" if event.op.kind == "F" else "I", *event.op[2:]))
            return [(value, value.end)] if value else []
        if type(event.op) is Move:  # both ends wait until the other one is ready
            other = self._before.get(id(self._made.get(event.op.partner)))
            return [(other, other.end)] if other else []
        hop = self.cost.comm if self.cost else 0
        found = []
        for op in event.op.parts:
            for need in needs(op, self.schedule.stages):
                carried = "F" if need.kind == "F" else "B"
                message = self._made.get(Move("RECV", carried, op.stage, op.microbatch))
                sent = self._made.get(Move("SEND", carried, need.stage, op.microbatch))
                if need.stage != op.stage and message:
                    found.append((message, message.end))
                elif need.stage != op.stage and sent:
                    found.append((sent, sent.end + hop))
                elif cause := self._made.get(need):
                    found.append((cause, cause.end + (hop if cause.rank != event.rank else 0)))
        return found

    def _causes(self, event):
        """What an event waited for, its own rank included."""
        before = self._before.get(id(event))
        return self.needs(event) + ([(before, before.end)] if before else [])

    def critical_path(self):
        """Events that together take the whole makespan: shorten none and nothing ends sooner.

        From the last event back: each one started when the one before it ended, or when
        its result arrived. For a measured run, the latest of these.
        """
        if not self.events:
            return []
        path = [max(self.events, key=lambda e: e.end)]
        while causes := self._causes(path[-1]):
            path.append(max(causes, key=lambda cause: cause[1])[0])
        return path[::-1]

    def at(self, rank, time):
        """What a rank computes at `time`, and what it computes next; None where there is none."""
        row = self.ranks[rank]
        k = bisect_right(row, time, key=lambda event: event.start)
        running = row[k - 1] if k and time < row[k - 1].end else None
        return running, row[k] if k < len(row) else None

    def why_idle(self, rank, time):
        """A sentence: why `rank` computes nothing at `time`, and who is at the root of it."""
        if not 0 <= rank < self.schedule.p:
            return f"there is no rank {rank}: ranks are 0 to {self.schedule.p - 1}"
        row, name = self.ranks[rank], self.schedule.label
        if not 0 <= time < self.makespan:
            return f"time {number(time)} is outside the step, which takes {number(self.makespan)}"
        running, event = self.at(rank, time)
        if running:
            return (
                f"rank {rank} is not idle at {number(time)}: it runs {name(running.op)} "
                f"from {number(running.start)} to {number(running.end)}"
            )
        if event is None:
            last = (
                f"its last op, {name(row[-1].op)}, ended at {number(row[-1].end)}"
                if row
                else "it has no ops at all"
            )
            return f"rank {rank} has nothing left to do at {number(time)}: {last}"
        text = f"rank {rank} is idle until {number(event.start)}: its next op, {name(event.op)}, "
        waited = [(e, arrival) for e, arrival in self._causes(event) if arrival > time]
        if not waited:
            return text + "had all it needs; the rank itself was late"
        cause, arrival = max(waited, key=lambda pair: pair[1])
        if type(cause.op) is Move:
            text += f"comes after {cause.op}, which ends at {number(cause.end)}"
        else:
            text += f"needs {cause.op}, which rank {cause.rank} ends at {number(cause.end)}"
        if arrival > cause.end:
            text += f" and which arrives at {number(arrival)}"
        if cause.start > time:
            root = self._root(cause, time)
            if root is not cause:
                text += (
                    f"; at {number(time)} the chain that leads there stands at {root.op} "
                    f"on rank {root.rank}"
                )
        return text

    def _root(self, event, time):
        """Follow the causes back to what is running, or on its way, at `time`."""
        while event.start > time and (causes := self._causes(event)):
            event = max(causes, key=lambda cause: cause[1])[0]
        return event

    def to_chrome_trace(self, path):
        """Write a file that chrome://tracing and ui.perfetto.dev open: one process per rank.

        One unit of a cost model is shown as one millisecond.
        """
        scale = 1e6 if self.cost is None else 1e3
        records = []
        for rank in range(self.schedule.p):
            name = {"name": f"rank {rank}"}
            records.append(dict(ph="M", name="process_name", pid=rank, tid=0, args=name))
        for rank, lane, op, start, end in self.events:
            kinds = "".join(part.kind for part in op.parts) or "message"
            times = dict(ts=float(start) * scale, dur=float(end - start) * scale)
            records.append(dict(ph="X", name=str(op), cat=kinds, pid=rank, tid=lane, **times))
        with open(path, "w") as file:
            json.dump({"traceEvents": records, "displayTimeUnit": "ms"}, file)

    def __eq__(self, other):
        """The same events at the same times, however they came about."""
        return isinstance(other, Trace) and self.events == other.events

    __hash__ = None

    def __str__(self):
        return timeline_text(self)

    __repr__ = __str__


class _Memo(dict):
    """The same tick is asked for again and again: make its time once."""

    def __init__(self, make):
        self.make = make

    def __missing__(self, tick):
        value = self[tick] = self.make(tick)
        return value
