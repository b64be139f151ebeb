"""The judge of one exercise: a fresh process that evaluates the check and runs no line of the
learner's. The check is the lab's own, or the instructor's; where it calls the learner's
functions, it calls stand-ins (answer.py)."""

import ast
import contextlib
import importlib.util
import multiprocessing.forkserver
import os
import tempfile
import time

import torch

from ..course.exercise import drawn
from ..run import Score, launch
from .answer import Answer, exception, sandbox_for
from .sandbox import AnswerError, Sources

ALWAYS_THERE = set(dir(__builtins__) if not isinstance(__builtins__, dict) else __builtins__)


def judge(task):
    """The verdict on one exercise, as plain data.

    task: {"name", "imports", "cells", "check", "extra", "seed", "folder", "closed", "timeout"};
    seed None: the sizes of the notebook; extra: path of the instructor's checks, or None
    """
    torch.set_num_threads(1)
    share_server()
    tempfile.tempdir = task["folder"]  # of the runs; it is removed even if this process is killed
    room = os.path.join(task["folder"], "answer")
    os.mkdir(room)
    sources = Sources(
        imports=task["imports"],
        cells=tuple((name, source) for name, source in task["cells"]),
        folder=room,
        closed=tuple(task["closed"]),
        deadline=time.monotonic() + task["timeout"],
    )
    try:
        score = _score(task, sources)
    except AnswerError as error:
        score = Score(0, 0, [("no", str(error))])
    except NotImplementedError:
        score = Score(0, 0, [("note", "not attempted")])
    finally:
        with contextlib.suppress(AnswerError):
            sandbox_for(sources).close()
    return {
        "points": float(score),
        "reasons": [list(reason) for reason in score.reasons],
        "figure": score.figure.html if score.figure is not None else "",
    }


def share_server():
    """Have this process's ranks forked from the grader's server, which has torch in it.

    multiprocessing hands its address down, and then starts a server of one's own all the same.
    """
    inherited = multiprocessing.forkserver._forkserver
    if getattr(inherited, "_forkserver_address", None):
        inherited.ensure_running = multiprocessing.forkserver.ensure_running = lambda: None
    launch._announced = True  # so nobody waits for it


def _score(task, sources):
    sandbox = sandbox_for(sources)
    if sandbox.failure:
        raise exception(sandbox.failure)
    names = {"__name__": "check"}
    exec(compile(task["imports"], "<imports>", "exec"), names)
    tree = ast.parse(task["check"])
    for name in free_names(tree):
        if name in names or name in ALWAYS_THERE:
            continue
        if name not in sandbox.functions:
            raise AnswerError(
                f"there is no function {name} in the answer cell: was it renamed, or moved to "
                "another cell?"
            )
        names[name] = Answer(name, sources, sandbox.functions[name])
    *before, last = tree.body
    if task["extra"]:
        # The instructor's check of the same name, with the same arguments.
        last.value.func = ast.Attribute(ast.Name("extra", ast.Load()), task["name"], ast.Load())
        names["extra"] = load(task["extra"])
        ast.fix_missing_locations(tree)
    with drawn(task["seed"]):
        exec(compile(ast.Module(before, []), "<check>", "exec"), names)
        return eval(compile(ast.Expression(last.value), "<check>", "eval"), names)


def free_names(tree):
    """The names that a check reads, in order."""
    return dict.fromkeys(
        node.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    )


def load(path):
    """The module of an instructor's checks."""
    spec = importlib.util.spec_from_file_location("hidden_checks", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def enter(connection, task):
    """Entry point of the process."""
    try:
        connection.send(judge(task))
    except Exception as error:  # ours, not the learner's: say so, and give no mark away
        connection.send({"broken": f"{type(error).__name__}: {error}"})
    connection.close()
