"""What needs torch is loaded when it is first used, and says so where there is none."""

from importlib import import_module

from ..schedule.errors import LabError


class NoTorch(LabError, ImportError):
    """Something that runs for real was asked for, and torch is not installed."""

    def __init__(self, what="this"):
        super().__init__(
            f"{what} computes with tensors, on real processes, and needs torch, which is not "
            "installed here: schedules, simulate, verify, plans, pictures and all exercises that a "
            "simulation can judge work without it; `pip install torch` brings the rest"
        )


def has_torch():
    """Whether torch can be imported."""
    try:
        import_module("torch")
    except ImportError:
        return False
    return True


class Late:
    """A module that needs torch, imported when something of it is asked for. NoTorch then, where
    there is none."""

    def __init__(self, module):
        self.__dict__["_module"] = module

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        if not has_torch():
            raise NoTorch
        return getattr(import_module(self._module), name)

    def __reduce__(self):
        return Late, (self._module,)


def stand_in(name):
    """What `name` is without torch: a class of which nothing can be made, and that says why."""

    def __init__(self, *arguments, **named):
        raise NoTorch(f"pp_lab.{name}")

    return type(name, (), {"__init__": __init__, "__doc__": "Needs torch, which is not installed."})
