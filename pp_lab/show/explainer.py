"""What a reader asks of a picture, in sentences: what did this op need, why is this rank idle?"""

from ..schedule import Event, Trace
from ..schedule.text import in_bytes, number
from .layout import held, in_seconds


class Explainer:
    """Answers for one trace."""

    def __init__(self, trace: Trace):
        self.trace = trace
        self.unit = " s" if in_seconds(trace) else ""
        self.served = {}  # for each event (by its id) those that needed it
        for event in trace.events:
            for cause, _ in trace.needs(event):
                self.served.setdefault(id(cause), []).append(event)
        self.held = {
            id(event): level
            for rank in range(trace.schedule.p)
            for event, level in held(trace, rank)
        }

    def op(self, event: Event) -> str:
        """What an op needed, what needed it, and what its rank holds meanwhile."""
        text = (
            f"{self.trace.schedule.label(event.op)} on rank {event.rank}, "
            f"from {self._time(event.start)} to {self._time(event.end)}. "
        )
        needed = [
            f"{written(e.op)} (rank {e.rank}, there at {self._time(arrival)})"
            for e, arrival in self.trace.needs(event)
        ]
        text += f"It needed {listed(needed)}. " if needed else "It needed no other op. "
        served = [
            f"{written(e.op)} (rank {e.rank}, started at {self._time(e.start)})"
            for e in sorted(self.served.get(id(event), ()), key=lambda e: e.start)
        ]
        text += f"Needed by {listed(served)}." if served else "No other op needed it."
        if level := self.held.get(id(event)):
            text += f" Rank {event.rank} holds {level} activation{'s' * (level != 1)}"
            if self.trace.held_bytes:
                steps = dict(self.trace.held_bytes[event.rank])
                text += f", {in_bytes(steps[event.start])} at most," * (event.start in steps)
            text += " meanwhile."
        return text

    def idle(self, rank: int, lane: str, time) -> str:
        """Why nothing happens on a lane at `time`."""
        if lane != "compute":
            return f"Nothing is under way on rank {rank}'s lane {lane} at {self._time(time)}."
        text = self.trace.why_idle(rank, time)
        return text[0].upper() + text[1:] + "."

    def _time(self, x):
        return number(x) + self.unit


def written(item):
    """An op, or both ops of a pair, with their stages."""
    return "&".join(map(str, item.parts)) or str(item)


def listed(words):
    """a, b and c"""
    return ", ".join(words[:-1]) + " and " + words[-1] if len(words) > 1 else "".join(words)
