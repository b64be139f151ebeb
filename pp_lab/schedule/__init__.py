"""The schedule room: what runs where, in which order, how long it takes. No torch."""

from . import schedules
from .bound import lower_bound, optimum
from .choose import Estimate, ranked
from .cost import Cost
from .errors import LabError, ScheduleError
from .grid import Grid
from .layers import Layers
from .lower import lower
from .model import Model
from .network import Cluster, Config, Network, configurations
from .op import Move, Op, Pair, needs
from .schedule import Placement, Schedule, bidirectional, loop, vshape
from .trace import Event, Trace, simulate
from .verify import verify

__all__ = [
    "Cluster", "Config", "Cost", "Estimate", "Event", "Grid", "LabError", "Layers", "Model",
    "Move", "Network", "Op", "Pair", "Placement", "Schedule", "ScheduleError", "Trace",
    "bidirectional", "configurations", "loop", "lower", "lower_bound", "needs", "optimum",
    "ranked", "schedules", "simulate", "verify", "vshape",
]  # fmt: skip
