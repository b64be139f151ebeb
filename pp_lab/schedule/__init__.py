"""The schedule room: what runs where, in which order, how long it takes. No torch."""

from . import schedules
from .bound import lower_bound, optimum
from .cost import Cost
from .errors import LabError, ScheduleError
from .layers import Layers
from .lower import lower
from .model import Model
from .op import Move, Op, Pair, needs
from .schedule import Placement, Schedule, bidirectional, loop, vshape
from .trace import Event, Trace, simulate
from .verify import verify

__all__ = [
    "Cost", "Event", "LabError", "Layers", "Model", "Move", "Op", "Pair", "Placement", "Schedule",
    "ScheduleError", "Trace", "bidirectional", "loop", "lower", "lower_bound", "needs", "optimum",
    "schedules", "simulate", "verify", "vshape",
]  # fmt: skip
