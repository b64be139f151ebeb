"""Grade one submission: nbval runs a notebook of checks, one for each exercise."""

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell, new_notebook

from ..course.release import write
from ..schedule import LabError
from . import plugin
from .assemble import SubmissionError, assemble, best_course

ROOT = Path(__file__).resolve().parents[2]  # holds pp_lab/, and solutions/ beside it
SURPLUS = 60  # seconds for nbval and its kernel, beyond those of the exercises


class Grader:
    """Grades submissions, each in processes of its own."""

    def __init__(self, courses, service, seed, timeout, extra=None, closed=(), junit=None):
        self.courses, self.service, self.seed = courses, service, seed
        self.timeout, self.extra, self.junit = timeout, extra, junit
        self.closed = [str(p.resolve()) for p in closed if p]
        self.extras = service.extras(extra) if extra else {}
        self.processes = set()
        self.ending = False

    def digest(self, data):
        """Of all that a result depends on."""
        sources = sorted(ROOT.glob("pp_lab/**/*.py"))
        parts = [data, self.seed.encode(), str(self.timeout).encode(),
                 self.extra.read_bytes() if self.extra else b"",
                 *(c.path.read_bytes() for c in self.courses),
                 *(p.read_bytes() for p in sources)]  # fmt: skip
        return hashlib.sha256(b"\0".join(hashlib.sha256(p).digest() for p in parts)).hexdigest()

    def grade(self, name, data):
        """The result of one submission. Never raises but for an interrupt."""
        began = time.monotonic()
        result = {"submission": name, "error": None, "remarks": [], "exercises": {}}
        course = self.courses[0]
        assembled = None
        try:
            course = best_course(self.courses, data)
            assembled = assemble(course, data)
            result["remarks"] = assembled.remarks
            verdicts = self._verdicts(name, course, assembled)
        except SubmissionError as error:
            result["error"], verdicts = f"not graded: {error}", {}
        except Exception as error:  # one submission must not stop the others
            result["error"], verdicts = f"not graded: {type(error).__name__}: {error}", {}
        for exercise, of, title in self.items(course):
            verdict = verdicts.get(exercise)
            if verdict is None or verdict["broken"]:
                why = verdict["broken"] if verdict else result["error"] or "there was no verdict"
                result["error"] = result["error"] or f"{exercise}: {why}"
                verdict = {"points": 0, "of": of, "reasons": [["note", "not graded"]],
                           "hidden": [], "broken": why}  # fmt: skip
            result["exercises"][exercise] = {"title": title, **verdict}
        result["points"] = sum(e["points"] for e in result["exercises"].values())
        result["of"] = sum(e["of"] for e in result["exercises"].values())
        result["lab"], result["seconds"] = course.path.stem, round(time.monotonic() - began, 1)
        return result, course, assembled

    def items(self, course):
        """(name, points, title) of all that is judged."""
        for e in course.exercises:
            yield e.name, e.points, e.title
            if e.name in self.extras:
                yield f"{e.name} (extra)", self.extras[e.name], f"{e.title}: further tests"

    def _tasks(self, name, course, assembled):
        for e in course.exercises:
            task = {
                "name": e.name, "imports": course.imports, "check": e.check, "extra": None,
                "cells": assembled.sources(e, course), "seed": None,
                "closed": self.closed, "timeout": self.timeout,
            }  # fmt: skip
            hidden = {**task, "seed": f"{self.seed} {name}"}
            yield e.name, e.points, [hidden, task]
            if e.name in self.extras:
                extra = {**hidden, "extra": str(self.extra.resolve())}
                yield f"{e.name} (extra)", self.extras[e.name], [extra]

    def _verdicts(self, name, course, assembled):
        """{exercise: verdict}, from nbval's run of a notebook that asks for them."""
        cells, seconds = [], SURPLUS
        for exercise, points, tasks in self._tasks(name, course, assembled):
            self.service.tasks[name, exercise] = points, tasks
            seconds += len(tasks) * (self.timeout + 10)
            cells.append(
                new_code_cell(
                    f"from pp_lab.grade.service import ask\nask({exercise!r})",
                    metadata={"pp_lab": {"exercise": exercise}},
                )
            )
        with tempfile.TemporaryDirectory(prefix="pp_lab-nbval-") as folder:
            nbformat.write(new_notebook(cells=cells), Path(folder, f"{name}.ipynb"))
            scores = Path(folder, "scores.json")
            said = self._nbval(name, folder, scores, seconds)
            if not scores.exists():
                raise LabError(f"nbval did not come to its end: {said[-500:]}")
            if self.junit is not None:
                write(self.junit / f"{name}.xml", Path(folder, "junit.xml").read_text("utf-8"))
            return json.loads(scores.read_text("utf-8"))

    def _nbval(self, name, folder, scores, seconds):
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        environment = {
            **os.environ, **self.service.environment(name), plugin.SCORES: str(scores),
            "PYTHONPATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": "",
            "IPYTHONDIR": folder, "JUPYTER_NO_CONFIG": "1",
        }  # fmt: skip
        command = [
            sys.executable, "-m", "pytest", "-q", "-p", plugin.__name__, "-p", "nbval.plugin",
            "-p", "no:cacheprovider", "--nbval-lax", "--nbval-current-env", "-c", os.devnull,
            "--rootdir", folder, "--junitxml", "junit.xml", f"{name}.ipynb",
        ]  # fmt: skip
        if self.ending:
            raise LabError("the grader is ending")
        process = subprocess.Popen(
            command, cwd=folder, env=environment, start_new_session=True, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, errors="replace",
        )  # fmt: skip
        self.processes.add(process)
        try:
            return process.communicate(timeout=seconds)[0]
        except subprocess.TimeoutExpired:
            return f"it took more than {seconds:g} s"
        finally:
            self.processes.discard(process)
            end(process)

    def stop(self):
        """End all that is under way."""
        self.ending = True
        for process in list(self.processes):
            end(process)


def end(process):
    """Kill a process that leads its session, and what belongs to it."""
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
