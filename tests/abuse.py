"""Submissions as learners make them, by accident or not, with the marks that each must get.

They are for a short lab with three exercises of the first one: bubble (1 point), steps (2) and
gpipe (3). KINDS[kind] is (how it is made from the solved notebook, the marks that it must get).
"""

import copy
import json
from pathlib import Path

SOLVED = json.loads(
    (Path(__file__).parent.parent / "solutions" / "pp_lab.ipynb").read_text("utf-8")
)
EXERCISES = ("bubble", "steps", "gpipe")
ALL, NONE = {"bubble": 1, "steps": 2, "gpipe": 3}, {"bubble": 0, "steps": 0, "gpipe": 0}


def course():
    """The short lab, solved: imports and three exercises."""
    notebook = copy.deepcopy(SOLVED)
    notebook["cells"] = [
        cell for cell in notebook["cells"]
        if cell["id"] == "imports" or cell["id"].rpartition("-")[0] in EXERCISES
    ]  # fmt: skip
    return notebook


def role(cell):
    return cell["metadata"].get("pp_lab", {})


def answers(notebook, **sources):
    """The notebook with other sources in the answer cells that are named."""
    for cell in notebook["cells"]:
        if role(cell).get("role") == "answer" and role(cell)["exercise"] in sources:
            cell["source"] = sources[role(cell)["exercise"]]
    return notebook


STUBS = {
    "bubble": "def bubble(p, m):\n    raise NotImplementedError()",
    "steps": "def forward_step(rank, i, x):\n    raise NotImplementedError()\n\n"
    "def backward_step(rank, i, x, y, dy):\n    raise NotImplementedError()",
    "gpipe": "def gpipe(rank):\n    raise NotImplementedError()",
}


def unsolved():
    return answers(course(), **STUBS)


def other(**sources):
    """All solved but for these answers."""
    return lambda: answers(course(), **sources)


def only(**sources):
    """Nothing solved but for what these answers may bring."""
    return lambda: answers(unsolved(), **sources)


def but(**marks):
    return {**ALL, **marks}


def with_cells(change, make=course):
    """A submission whose list of cells is `change`d."""

    def made():
        notebook = make()
        notebook["cells"] = change(notebook["cells"])
        return notebook

    return made


def each(change, make=course):
    """A submission in which every cell is changed in place."""

    def all_of(cells):
        for number, cell in enumerate(cells):
            change(number, cell)
        return cells

    return with_cells(all_of, make)


def converted(kind):
    def change(_, cell):
        if role(cell).get("role") == "answer":
            cell["cell_type"] = kind
            cell.pop("outputs", None)
            cell.pop("execution_count", None)

    return each(change)


def tagged(_, cell):
    cell["metadata"]["tags"] = ["NBVAL_SKIP", "raises-exception", "nbval-skip"]


def stripped(_, cell):
    cell["metadata"] = {}


def renamed(number, cell):
    cell.update(id=f"new{number}", metadata={})


def check_that_passes(_, cell):
    if role(cell).get("role") == "check":
        cell["source"] = f"{cell['metadata']['nbgrader']['points']}.0"


def check_first_stub_later(cells):
    """Every answer cell a second time, unsolved: the mark of a cell that was split or copied."""
    twins = [c for c in unsolved()["cells"] if role(c).get("role") == "answer"]
    return cells + twins


def moved_away(cells):
    return cells[:1] + cells[:0:-1]


VISIBLE = "{(1, 1): 0, (2, 1): 1/2, (2, 2): 1/3, (3, 4): 1/3, (4, 2): 3/5, (4, 8): 3/11, " + (
    "(5, 3): 4/7, (8, 32): 7/39}"
)

HARD_CODED = f"def bubble(p, m):\n    return {VISIBLE}[p, m]"

REBOUND = """
class check:
    def __getattr__(self, name):
        return lambda *answers: 9.0
check = check()
import sys
sys.modules["pp_lab.course.lab01"] = check
def bubble(p, m):
    return 0.0
"""

PATCHED = """
import torch, pp_lab, pp_lab.run.lab, pp_lab.run.diagnosis, pp_lab.run.score, pp_lab.course.lab01
torch.allclose = torch.equal = lambda *a, **k: True
torch.Tensor.__eq__ = torch.Tensor.__le__ = lambda *a: torch.tensor(True)
pp_lab.Lab.check = lambda self, run, **targets: pp_lab.Score(9, 9, [])
pp_lab.run.diagnosis.differences = pp_lab.run.lab.differences = lambda *a: []
pp_lab.course.lab01.bubble = lambda *a: 9.0
pp_lab.schedules.gpipe = pp_lab.simulate = None
def bubble(p, m):
    return 0.0
def gpipe(rank):
    pass
"""

FORGED = """
import torch
from pp_lab import Cost, schedules, simulate
from pp_lab.run.problem import reference
def gpipe(rank):
    right = reference(rank.problem)
    for stage, module in rank.modules.items():
        for name, parameter in rank.problem.parameters(stage[1], module).items():
            parameter.grad = right.grads[name]
    trace = simulate(schedules.gpipe(rank.size, rank.microbatches), Cost())
    rank.items = [(e.op, e.start, e.end) for e in trace.events if e.rank == rank.index]
    rank.seen = {op for op, *_ in rank.items}
    rank.peak, rank.losses = 1, {0: torch.tensor(right.loss)}
"""

PRINTS = """
print('{"points": 1, "of": 1}')
print("1.0\\n1 of 1")
def bubble(p, m):
    print("1.0", flush=True)
"""

WRITES = """
import glob, json, os
for path in glob.glob("/tmp/**/scores.json", recursive=True) + ["scores.json", "../scores.json",
        "../../scores.json", os.environ.get("PP_LAB_SCORES", "/tmp/scores.json")]:
    try:
        with open(path, "w") as file:
            json.dump({"bubble": {"points": 1, "of": 1, "reasons": [], "broken": None}}, file)
    except OSError:
        pass
def bubble(p, m):
    return 0.0
"""

READS = """
import glob, json, os, pp_lab
root = os.path.dirname(os.path.dirname(pp_lab.__file__))
for path in [os.path.join(root, "solutions", "pp_lab.ipynb"), SOLUTION]:
    for cell in json.load(open(path))["cells"]:
        if cell["cell_type"] == "code" and "def bubble" in "".join(cell["source"]):
            exec("".join(cell["source"]))
"""

EQUAL = """
class Right(float):
    def __sub__(self, other): return 0.0
    __rsub__ = __sub__
    def __abs__(self): return 0.0
    def __eq__(self, other): return True
    __lt__ = __gt__ = lambda self, other: False
    __hash__ = float.__hash__
def bubble(p, m):
    return Right(7)
"""

PICKLED = """
class Bomb:
    def __reduce__(self):
        return eval, ("__import__('os')._exit(0)",)
def bubble(p, m):
    return Bomb()
"""

JUNK = """
import os
def bubble(p, m):
    for number in range(64):
        try:
            os.write(number, b'{"returned": 1}' * 100)
        except OSError:
            pass
    return 0.0
"""

WAITS = "import time\ndef bubble(p, m):\n    time.sleep(1000)"
SPINS = "def gpipe(rank):\n    while True:\n        pass"
AT_ONCE = "while True:\n    pass"
MEMORY = "def bubble(p, m):\n    return len([0] * 10**10)"
FORKS = """
import os
def bubble(p, m):
    while True:
        os.fork()
"""
STARTS = """
import subprocess, sys
def bubble(p, m):
    subprocess.run([sys.executable, "-c", "import time; time.sleep(99)"])
"""
KILLS = "import os, signal\ndef bubble(p, m):\n    os.kill(os.getppid(), signal.SIGKILL)"
CALLS_HOME = """
import socket
def bubble(p, m):
    with socket.create_connection(("127.0.0.1", 22), timeout=1) as line:
        line.send(b"hello")
    return (p - 1) / (m + p - 1)
"""
LONG = "def bubble(p, m):\n    return 'x' * 10**8"
FILLS = """
def bubble(p, m):
    with open("big", "wb") as file:
        for _ in range(1000):
            file.write(bytes(1 << 20))
    return (p - 1) / (m + p - 1)
"""
SYNTAX = "def bubble(p, m)\n    return 1"
EXITS = "import os\ndef bubble(p, m):\n    os._exit(0)"
EXITS_IN_A_RANK = "import os\ndef gpipe(rank):\n    os._exit(0)"
QUITS = "import sys\ndef bubble(p, m):\n    sys.exit(0)"
RIGHT_BUT_MAGIC = "%load_ext autoreload\n!ls\ndef bubble(p, m):\n    return (p - 1) / (m + p - 1)"

KINDS = {
    "solved": (course, ALL),
    "unsolved": (unsolved, NONE),
    "half solved": (other(gpipe=STUBS["gpipe"]), but(gpipe=0)),
    # what happens to notebooks
    "metadata stripped": (each(stripped), ALL),
    "metadata stripped, cell ids renewed": (each(renamed), ALL),
    "answers made markdown cells": (converted("markdown"), ALL),
    "answers made raw cells": (converted("raw"), ALL),
    "cells in reverse order": (with_cells(moved_away), ALL),
    "every cell twice": (with_cells(lambda cells: cells + copy.deepcopy(cells)), ALL),
    "unsolved copies behind the answers": (with_cells(check_first_stub_later), ALL),
    "checks deleted": (
        with_cells(lambda cells: [c for c in cells if role(c).get("role") != "check"]), ALL),
    "an answer deleted": (
        with_cells(lambda cells: [c for c in cells if c["id"] != "steps-answer"]), but(steps=0)),
    "tags to skip and to fail, solved": (each(tagged), ALL),
    "tags to skip and to fail, unsolved": (each(tagged, unsolved), NONE),
    "a syntax error in one answer": (other(bubble=SYNTAX), but(bubble=0)),
    "magics in an answer": (other(bubble=RIGHT_BUT_MAGIC), ALL),
    "not a notebook": (lambda: "hello", NONE),
    "an empty file": (lambda: b"", NONE),
    "cut off in the middle": (lambda: json.dumps(course()).encode()[:4000], NONE),
    # what takes the grader's time, memory, or processes
    "an endless loop in a rank": (other(gpipe=SPINS), but(gpipe=0)),
    "an endless loop outside functions": (only(gpipe=AT_ONCE), NONE),
    "a long sleep": (other(bubble=WAITS), but(bubble=0)),
    "all memory": (other(bubble=MEMORY), but(bubble=0)),
    "a fork bomb": (other(bubble=FORKS), but(bubble=0)),
    "starts a program": (other(bubble=STARTS), but(bubble=0)),
    "fills the disk": (other(bubble=FILLS), but(bubble=0)),
    "a very long answer": (other(bubble=LONG), but(bubble=0)),
    "sys.exit": (other(bubble=QUITS), but(bubble=0)),
    # what would earn a mark
    "rebinds check": (only(bubble=REBOUND), NONE),
    "checks that pass": (each(check_that_passes, unsolved), NONE),
    "patches torch and pp_lab": (only(gpipe=PATCHED), NONE),
    "forges the report of a rank": (only(gpipe=FORGED), NONE),
    "prints a score": (only(bubble=PRINTS), NONE),
    "writes to the file of results": (only(bubble=WRITES), NONE),
    "os._exit": (only(bubble=EXITS), NONE),
    "os._exit in a rank": (only(gpipe=EXITS_IN_A_RANK), NONE),
    "reads the solution from disk": (only(bubble=READS), NONE),
    "hard-codes the visible numbers": (only(bubble=HARD_CODED), NONE),
    "a number equal to everything": (only(bubble=EQUAL), NONE),
    "a pickle that runs code": (only(bubble=PICKLED), NONE),
    "junk in every open file": (only(bubble=JUNK), NONE),
    "kills its parent": (only(bubble=KILLS), NONE),
    "opens a connection": (only(bubble=CALLS_HOME), NONE),
}  # fmt: skip


def slug(kind):
    return "".join(c if c.isalnum() else "-" for c in kind)


def write_all(folder):
    """The course in folder/solutions, all kinds in folder/submitted."""
    (folder / "solutions").mkdir(parents=True)
    (folder / "submitted").mkdir()
    solution = folder / "solutions" / "short.ipynb"
    solution.write_text(json.dumps(course()), "utf-8")
    for kind, (make, _) in KINDS.items():
        made = make()
        if isinstance(made, dict):
            made = json.dumps(made).replace("SOLUTION]", f"{json.dumps(str(solution))[1:-1]!r}]")
        data = made if isinstance(made, bytes) else made.encode()
        (folder / "submitted" / f"{slug(kind)}.ipynb").write_bytes(data)
