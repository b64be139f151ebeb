"""The run room: the same schedule for real, on processes that exchange real messages.

Without torch this room can be imported, and its scores and errors used. `Lab`, `Run` and `P2POp`
are then stand-ins that say what is missing.
"""

from importlib import import_module

from .failures import RunError
from .late import has_torch, stand_in
from .score import Score

_HOMES = {"Lab": "lab", "P2POp": "rank", "Run": "lab"}

__all__ = ["Lab", "P2POp", "Run", "RunError", "Score"]


def __getattr__(name):
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = stand_in(name)
    if has_torch():
        value = getattr(import_module(f".{_HOMES[name]}", __name__), name)
    globals()[name] = value
    return value
