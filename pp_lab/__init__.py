"""pp_lab: learn pipeline parallelism by running it.

The schedule room (no torch) is here at once; what needs torch or matplotlib is loaded when
it is first used, so that `import pp_lab` stays quick.
"""

import importlib

from .schedule import *  # noqa: F403
from .schedule import __all__ as _schedule_names

_LAZY = {
    "Lab": "run", "P2POp": "run", "Run": "run", "RunError": "run", "Score": "run",
    "timeline": "show",
}  # fmt: skip

__all__ = [*_schedule_names, *_LAZY]


def __getattr__(name):
    if name in _LAZY:
        value = globals()[name] = getattr(importlib.import_module(f".{_LAZY[name]}", __name__), name)
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__():
    return sorted({*globals(), *_LAZY})
