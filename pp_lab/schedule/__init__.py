"""The schedule room: what runs where, in which order, how long it takes; plain Python.

The law of dependence is `needs` in op.py; simulate.py lists the steps from a schedule to a trace.
"""

from . import schedules
from .bound import lower_bound, optimum
from .cost import Cost
from .errors import LabError, ScheduleError
from .grid import Grid
from .layers import Layers
from .lower import lower
from .op import Move, Op, Pair, needs
from .schedule import Placement, Schedule, bidirectional, loop, vshape
from .simulate import simulate
from .trace import Event, Trace
from .verify import verify

__all__ = [
    "Cost", "Event", "Grid", "LabError", "Layers", "Move", "Op", "Pair", "Placement", "Schedule",
    "ScheduleError", "Trace", "bidirectional", "loop", "lower", "lower_bound", "needs", "optimum",
    "schedules", "simulate", "verify", "vshape",
]  # fmt: skip
