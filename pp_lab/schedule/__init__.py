"""The schedule room: what runs where, in which order, how long it takes. No torch."""

from . import schedules
from .cost import Cost
from .errors import LabError, ScheduleError
from .op import Op, Pair, needs
from .schedule import Placement, Schedule, loop
from .trace import Event, Trace, simulate
from .verify import verify

__all__ = [
    "Cost", "Event", "LabError", "Op", "Pair", "Placement", "Schedule", "ScheduleError", "Trace",
    "loop", "needs", "schedules", "simulate", "verify",
]
