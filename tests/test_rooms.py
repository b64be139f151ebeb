"""The four rooms of pp_lab, and the one direction in which they import each other."""

import ast
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "pp_lab"
MAY_IMPORT = {
    "schedule": set(),
    "show": {"schedule"},
    "run": {"schedule"},
    "course": {"schedule", "show", "run", "pp_lab"},  # "pp_lab": the public names, of all rooms
}


def imports(path, root=ROOT):
    """Every module that a file of pp_lab imports, at any depth, as an absolute dotted name.

    `from .. import x` counts as importing x, which may be a room.
    """
    package = path.parent.relative_to(root).parts
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            base += tuple(node.module.split(".")) if node.module else ()
            yield from (".".join((*base, alias.name)) for alias in node.names)


def room_of(module):
    """The room in a dotted name; "pp_lab" for the package's top, None for other packages."""
    parts = module.split(".")
    if parts[0] != "pp_lab":
        return None
    return parts[1] if len(parts) > 1 and parts[1] in MAY_IMPORT else "pp_lab"


def files(room):
    return sorted((PACKAGE / room).rglob("*.py"))


def test_every_folder_of_the_package_is_one_of_the_four_rooms():
    rooms = {path.parent.name for path in PACKAGE.glob("*/*.py")}
    assert rooms == set(MAY_IMPORT)


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_imports_go_in_one_direction(room):
    assert files(room)
    allowed = MAY_IMPORT[room] | {room, None}
    wrong = [
        f"{path.relative_to(ROOT)} imports {module}"
        for path in files(room) for module in imports(path) if room_of(module) not in allowed
    ]  # fmt: skip
    assert not wrong, f"{room} may import {sorted(MAY_IMPORT[room]) or 'no other room'}: {wrong}"


def test_the_schedule_room_imports_nothing_but_the_standard_library():
    """But for the solver that finds the optimum, which is an extra and loaded when it is used."""
    outside = {
        module.split(".")[0] for path in files("schedule") for module in imports(path)
        if room_of(module) is None and module.split(".")[0] not in sys.stdlib_module_names
    }  # fmt: skip
    assert outside <= {"ortools"}


@pytest.mark.parametrize(
    "line, module",
    [
        ("import torch.nn", "torch.nn"),
        ("from ..run.lab import Lab", "pp_lab.run.lab.Lab"),
        ("from .. import run", "pp_lab.run"),
        ("from . import clock", "pp_lab.schedule.clock"),
        ("import pp_lab", "pp_lab"),
        ("def f():\n    from pp_lab.show import timeline", "pp_lab.show.timeline"),
    ],
)
def test_an_import_is_seen_however_it_is_written(tmp_path, line, module):
    path = tmp_path / "pp_lab" / "schedule" / "x.py"
    path.parent.mkdir(parents=True)
    path.write_text(line)
    assert list(imports(path, root=tmp_path)) == [module]


WITHOUT = """
import sys
class Blocked:
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in {blocked}:
            raise ImportError("blocked: " + name)
sys.meta_path.insert(0, Blocked)
import pp_lab
from pp_lab import Cost, Op, Pair, Schedule, Trace, schedules, simulate, verify
import importlib, pkgutil
for module in pkgutil.iter_modules(pp_lab.schedule.__path__, "pp_lab.schedule."):
    importlib.import_module(module.name)
schedule = schedules.one_f_one_b(4, 8)
verify(schedule)
print(simulate(schedule, Cost(F=1, B=2)).makespan)
"""


def run(code):
    began = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    return done, time.perf_counter() - began


def test_the_schedule_room_works_without_torch_numpy_matplotlib_in_under_half_a_second():
    code = WITHOUT.format(blocked=("torch", "numpy", "matplotlib", "IPython", "ortools"))
    fastest = 9.0
    for _ in range(5):  # the machine may be busy with something else once, not five times
        done, seconds = run(code)
        assert (done.stdout, done.stderr) == ("33\n", "")
        fastest = min(fastest, seconds)
        if fastest < 0.5:
            break
    assert fastest < 0.5, f"the fastest of five took {fastest:.2f} s"


def test_importing_pp_lab_imports_neither_torch_nor_numpy_nor_matplotlib():
    heavy = "{'torch', 'numpy', 'matplotlib', 'IPython', 'ipywidgets', 'asyncio'}"
    done, _ = run(f"import sys, pp_lab; print(sorted({heavy} & sys.modules.keys()))")
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_every_public_name_is_there_and_an_unknown_one_is_an_attribute_error():
    import pp_lab

    for name in pp_lab.__all__:
        assert getattr(pp_lab, name) is not None
        assert name in dir(pp_lab)
    with pytest.raises(AttributeError, match="no_such_name"):
        pp_lab.no_such_name  # noqa: B018
