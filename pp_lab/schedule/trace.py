"""When everything happened, simulated or measured, and what follows from it."""

import json
from functools import cached_property
from itertools import repeat
from math import lcm
from typing import NamedTuple

from .clock import clock
from .cost import Cost, exact
from .op import Op, Pair, needs
from .schedule import Schedule
from .text import number, timeline_text
from .verify import activations, check_runs, tasks


class Event(NamedTuple):
    """An op on a lane of a rank, from `start` to `end` (in the cost's unit, or in seconds)."""

    rank: int
    lane: str
    op: Op | Pair
    start: object
    end: object


def simulate(schedule: Schedule, cost: Cost = Cost()) -> "Trace":
    """Time a schedule. Exact for ints and Fractions, and linear in the number of ops.

    Each rank runs its ops in order, each as soon as the rank is free and everything it
    needs has arrived; a value from another rank arrives `cost.comm` after it was made.
    Raises ScheduleError for a schedule that cannot run to its end.
    """
    # Whole ticks instead of fractions: the same numbers, counted with fast ints.
    ticks = 1
    if not any(isinstance(x, float) for x in cost.numbers()):
        ticks = lcm(*(x.denominator for x in cost.numbers()))

    def whole(x):
        return x if isinstance(x, float) else int(x * ticks)

    lanes, task_needs = tasks(schedule, lag=whole(cost.comm))
    duration = {}
    durations = []
    for row in schedule.ranks:
        for item in row:
            key = item[:2] if type(item) is Op else (item.f.stage, item.b.kind, item.b.stage)
            if key not in duration:
                duration[key] = whole(cost.of(item))
            durations.append(duration[key])
    starts, ends = clock(lanes, task_needs, durations)
    if None in ends:
        check_runs(schedule, lanes, task_needs)
    if ticks > 1:
        value = {t: exact(t, ticks) for t in {*starts, *ends}}
        starts, ends = [value[t] for t in starts], [value[t] for t in ends]
    events = []
    for rank, (row, lane) in enumerate(zip(schedule.ranks, lanes, strict=True)):
        times = slice(lane.start, lane.stop)
        events += map(Event._make, zip(repeat(rank), repeat("compute"), row,
                                       starts[times], ends[times]))
    return Trace(schedule, events, cost, "simulated")


class Trace:
    """Events and what they amount to. Simulated and measured runs give the same kind.

    schedule: what ran, in the order in which it ran; events: `Event`s, rank by rank in order;
    cost: the cost model, None where times were measured; clock: "simulated", "virtual",
    "wall" or "pace". Times are in the cost's unit; measured ones in seconds.
    """

    def __init__(self, schedule, events, cost=None, clock="simulated"):
        self.schedule, self.events, self.cost, self.clock = schedule, list(events), cost, clock

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
        return max((event.end for event in self.events), default=0)

    @cached_property
    def busy(self):
        """For each rank the time in which it computes."""
        return [sum(e.end - e.start for e in row) for row in self.ranks]

    @property
    def idle(self):
        """For each rank the time in which it does not compute, out of the makespan."""
        return [_plain(self.makespan - busy) for busy in self.busy]

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
        return _plain(max((row[-1].end - row[0].start for row in self.ranks if row), default=0))

    @property
    def peak_activations(self):
        """For each rank, how many stage activations it holds at its worst moment.

        One lives from F to B, or to W where the backward is split.
        """
        return [max(activations(self.schedule, rank), default=0)
                for rank in range(self.schedule.p)]

    @cached_property
    def _made(self):
        """The event that makes each op's result available; a B serves as I and as W."""
        made = {}
        for event in self.events:
            for op in event.op.parts:
                made[op] = event
                if op.kind == "B":
                    made[op._replace(kind="I")] = made[op._replace(kind="W")] = event
        return made

    def needs(self, event):
        """What an event waited for: pairs (event, time at which its result arrived)."""
        hop = self.cost.comm if self.cost else 0
        found = (self._made.get(op) for op in needs(event.op, self.schedule.stages))
        return [(e, e.end + (hop if e.rank != event.rank else 0)) for e in found if e]

    def critical_path(self):
        """Events that together take the whole makespan: shorten none and nothing ends sooner.

        From the last event back: each one started when the one before it ended, or when
        its result arrived. For a measured run, the latest of these.
        """
        if not self.events:
            return []
        before = {id(e): previous for row in self.ranks
                  for previous, e in zip(row, row[1:], strict=False)}
        event = max(self.events, key=lambda e: e.end)
        path = [event]
        while True:
            causes = [(arrival, e) for e, arrival in self.needs(event)]
            if id(event) in before:
                causes.append((before[id(event)].end, before[id(event)]))
            if not causes:
                return path[::-1]
            event = max(causes, key=lambda cause: cause[0])[1]
            path.append(event)

    def why_idle(self, rank, time):
        """A sentence: why `rank` computes nothing at `time`, and who is at the root of it."""
        if not 0 <= rank < self.schedule.p:
            return f"there is no rank {rank}: ranks are 0 to {self.schedule.p - 1}"
        row, name = self.ranks[rank], self.schedule.label
        if not 0 <= time < self.makespan:
            return f"time {number(time)} is outside the step, which takes {number(self.makespan)}"
        running = next((e for e in row if e.start <= time < e.end), None)
        if running:
            return (f"rank {rank} is not idle at {number(time)}: it runs {name(running.op)} "
                    f"from {number(running.start)} to {number(running.end)}")
        event = next((e for e in row if e.start > time), None)
        if event is None:
            last = f"its last op, {name(row[-1].op)}, ended at {number(row[-1].end)}" if row \
                else "it has no ops at all"
            return f"rank {rank} has nothing left to do at {number(time)}: {last}"
        text = f"rank {rank} is idle until {number(event.start)}: its next op, {name(event.op)}, "
        waited = [(e, arrival) for e, arrival in self.needs(event) if arrival > time]
        if not waited:
            return text + "had all it needs; the rank itself was late"
        cause, arrival = max(waited, key=lambda pair: pair[1])
        text += (f"needs {cause.op}, which rank {cause.rank} ends at {number(cause.end)}")
        if arrival > cause.end:
            text += f" and which arrives at {number(arrival)}"
        if cause.start > time:
            root = self._root(cause, time)
            if root is not cause:
                text += (f"; at {number(time)} the chain that leads there stands at {root.op} "
                         f"on rank {root.rank}")
        return text

    def _root(self, event, time):
        """Follow the causes back to what is running, or on its way, at `time`."""
        position = {id(e): k for row in self.ranks for k, e in enumerate(row)}
        while event.start > time:
            causes = [(arrival, e) for e, arrival in self.needs(event)]
            if k := position[id(event)]:
                previous = self.ranks[event.rank][k - 1]
                causes.append((previous.end, previous))
            if not causes:
                break
            event = max(causes, key=lambda cause: cause[0])[1]
        return event

    def to_chrome_trace(self, path):
        """Write a file that chrome://tracing and ui.perfetto.dev open: one process per rank.

        One unit of a cost model is shown as one millisecond.
        """
        scale = 1e6 if self.cost is None else 1e3
        records = [{"name": "process_name", "ph": "M", "pid": rank, "tid": 0,
                    "args": {"name": f"rank {rank}"}} for rank in range(self.schedule.p)]
        records += [{"name": str(e.op), "cat": "".join(op.kind for op in e.op.parts), "ph": "X",
                     "pid": e.rank, "tid": e.lane, "ts": float(e.start) * scale,
                     "dur": float(e.end - e.start) * scale} for e in self.events]
        with open(path, "w") as file:
            json.dump({"traceEvents": records, "displayTimeUnit": "ms"}, file)

    def __eq__(self, other):
        """The same events at the same times, however they came about."""
        return isinstance(other, Trace) and self.events == other.events

    __hash__ = None

    def __str__(self):
        return timeline_text(self)

    __repr__ = __str__


def _plain(x):
    """An exact number as an int where it is whole, and so that it formats everywhere."""
    return x if isinstance(x, (int, float)) else exact(x)
