"""pp_lab: learn pipeline parallelism by running it.

The schedule room (no torch) is here at once; what needs torch or matplotlib is loaded when
it is first used, so that `import pp_lab` stays quick.
"""

import importlib
import sys

from .schedule import *  # noqa: F403
from .schedule import __all__ as _schedule_names

_LAZY = {
    "Cluster": "plan", "Config": "plan", "Estimate": "plan", "Model": "plan", "Network": "plan",
    "configurations": "plan", "ranked": "plan",
    "Lab": "run", "P2POp": "run", "Run": "run", "RunError": "run", "Score": "run",
    "blueprint": "show", "chart": "show", "compare": "show", "stack": "show",
    "timeline": "show",
    "explore": "show.widget",
}  # fmt: skip

__all__ = [*_schedule_names, *_LAZY]


def __getattr__(name):
    if name in _LAZY:
        value = globals()[name] = getattr(
            importlib.import_module(f".{_LAZY[name]}", __name__), name
        )
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__():
    return sorted({*globals(), *_LAZY})


def _show_traces_as_timelines():
    """In a notebook, a `Trace` on the last line of a cell is shown as its timeline."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if shell is not None:
        shell.display_formatter.mimebundle_formatter.for_type(
            Trace,  # noqa: F405
            lambda trace, include=None, exclude=None: importlib.import_module(
                ".show", __name__
            ).bundle(trace),
        )


_show_traces_as_timelines()
