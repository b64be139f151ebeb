"""Verdicts for the notebooks that nbval runs: a fresh process for each, ended in time.

The notebook of a submission holds one cell for each exercise, `ask("gpipe")`. Its kernel runs
no line of the learner's either: it asks the service, which lives in the grader's process. One
fork server, with torch in it, serves all judges, their sandboxes and their ranks.
"""

import contextlib
import json
import multiprocessing
import os
import secrets
import shutil
import sys
import tempfile
import threading
import types
from multiprocessing.connection import Client, Listener

from ..schedule import LabError

ADDRESS, KEY, SUBMISSION = "PP_LAB_GRADER", "PP_LAB_GRADER_KEY", "PP_LAB_SUBMISSION"
MIME = "application/vnd.pp_lab.score+json"
GRACE = 5  # seconds after its time is up in which a judge may still say so itself


class Verdict(dict):
    """What a cell of the notebook of checks shows."""

    def _repr_mimebundle_(self, include=None, exclude=None):
        return {MIME: dict(self), "text/plain": f"{self['points']:g} of {self['of']:g}"}


def ask(name):
    """In the kernel: the verdict on one exercise of this kernel's submission."""
    key = bytes.fromhex(os.environ[KEY])
    with Client(os.environ[ADDRESS], authkey=key) as line:
        line.send_bytes(json.dumps([os.environ[SUBMISSION], name]).encode())
        return Verdict(json.loads(line.recv_bytes()))


class Service:
    """Judges exercises for whoever knows the key. Use it as a context."""

    def __init__(self, preload):
        self.folder = tempfile.mkdtemp(prefix="pp_lab-grade-")
        self.tasks = {}  # (submission, name) -> (points, [drawn] or [drawn, shown])
        self._key = secrets.token_bytes(32)
        self._judges, self._lock = set(), threading.Lock()
        self._context = multiprocessing.get_context(
            "forkserver"
            if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
        )  # fmt: skip
        if self._context.get_start_method() == "forkserver":
            modules = ["pp_lab.run.preload", "pp_lab.grade.judge", *preload]
            self._context.set_forkserver_preload(modules)
            with _no_main():
                multiprocessing.forkserver.ensure_running()

    def __enter__(self):
        self._listener = Listener(os.path.join(self.folder, "line"), authkey=self._key, backlog=64)
        threading.Thread(target=self._listen, daemon=True).start()
        return self

    def __exit__(self, *_):
        self._listener.close()
        with self._lock:
            judges, self._judges = self._judges, None
        for process in judges:
            process.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def environment(self, submission):
        """For the process whose kernel will ask about one submission."""
        return {ADDRESS: self._listener.address, KEY: self._key.hex(), SUBMISSION: submission}

    def extras(self, path):
        """{exercise: points} of the instructor's checks in a file."""
        ours, theirs = self._context.Pipe(duplex=False)
        process = self._context.Process(target=_points, args=(theirs, str(path)))
        with self._lock, _no_main():
            process.start()
        theirs.close()
        try:
            found = ours.recv()
        except EOFError:
            found = "it ended the process"
        process.join()
        if not isinstance(found, dict) or not found:
            reason = "it has no @exercise functions" if isinstance(found, dict) else found
            raise LabError(f"{path} cannot be used for further checks: {reason}")
        return found

    def _listen(self):
        while True:
            try:
                line = self._listener.accept()
            except (multiprocessing.AuthenticationError, EOFError, ConnectionError):
                continue
            except OSError:
                return
            threading.Thread(target=self._answer, args=(line,), daemon=True).start()

    def _answer(self, line):
        with line, contextlib.suppress(EOFError, OSError):
            submission, name = json.loads(line.recv_bytes())
            points, tasks = self.tasks[submission, name]
            line.send_bytes(json.dumps(self.verdict(points, *tasks)).encode())

    def verdict(self, points, drawn, shown=None):
        """The verdict on one exercise. drawn, shown: the task with sizes that are drawn, and with
        those of the notebook.

        Most answers hold for all sizes, and are done after the first. Where one does not, the
        lower of the two results counts, and the learner hears that for the notebook's sizes.
        """
        hidden = self._judge(drawn)
        result = hidden
        if hidden.get("points", 0) < points:
            hidden.pop("figure", None)  # it would show the sizes to who does not yet hold them
        if shown is not None and hidden.get("points", 0) < points and not unsolved(hidden):
            result = self._judge(shown)
        marks = [r.get("points", 0) for r in (hidden, result)]
        verdict = {
            "points": min(marks),
            "of": points,
            "reasons": result.get("reasons", []),
            "figure": result.get("figure", ""),
            "hidden": hidden.get("reasons", []),
            "broken": hidden.get("broken") or result.get("broken"),
        }
        if verdict["points"] >= points:
            verdict["reasons"] = [["yes", HOLDS]]
        elif marks[0] < marks[1]:
            verdict["reasons"] = [*verdict["reasons"], ["no", SIZES]]
        return verdict

    def _judge(self, task):
        folder = tempfile.mkdtemp(dir=self.folder)
        ours, theirs = self._context.Pipe(duplex=False)
        process = self._context.Process(target=_enter, args=(theirs, {**task, "folder": folder}))
        try:
            with self._lock:
                if self._judges is None:
                    raise LabError("the grader is ending")
                with _no_main():
                    process.start()
                self._judges.add(process)
            theirs.close()
            if ours.poll(task["timeout"] + GRACE):
                return ours.recv()
            return {"points": 0, "reasons": [["no", LATE.format(task["timeout"])]]}
        except EOFError:
            return {"broken": "the judge's process ended without a verdict"}
        finally:
            if process.pid:
                process.kill()
                process.join()
                with self._lock:
                    (self._judges or set()).discard(process)
            shutil.rmtree(folder, ignore_errors=True)


def unsolved(result):
    return result.get("reasons") == [["note", "not attempted"]]


HOLDS = "all that is asked for holds, for sizes and seeds that were drawn when it was graded"
SIZES = (
    "it holds for the sizes and seeds of the notebook, but not for all of those that were drawn "
    "when it was graded. Does it compute the answer for every p and m, or know it for some?"
)
LATE = "no verdict within {:g} s: is there an endless loop, or a great deal of work?"


@contextlib.contextmanager
def _no_main():
    """Without it every new process would import the grader's main module, and all it needs."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _enter(connection, task):
    from .judge import enter  # torch, which the grader itself does not need

    enter(connection, task)


def _points(connection, path):
    from .judge import load

    try:
        checks = {n: c.points for n, c in vars(load(path)).items() if hasattr(c, "points")}
        connection.send(checks)
    except Exception as error:
        connection.send(f"{type(error).__name__}: {error}")
