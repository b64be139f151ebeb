"""A process that runs a learner's functions, under the limits that doors.py sets.

It is forked from a process that holds no secret of another learner, keeps nothing open but its
line to that process, and dies with it. The limits stop accidents and the usual tricks. They are
no prison: code that sets out to break Python itself needs a container around all of this.
"""

import contextlib
import inspect
import linecache
import os
import re
import signal
import traceback
from dataclasses import dataclass

from ..schedule import LabError
from . import doors
from .remote import THE_RANK, RemoteRank
from .wire import Closed, Wire, WireError

CELL = "<answer cell {}>"  # the file name of an answer, in tracebacks


class AnswerError(LabError):
    """A learner's function failed: what it raised, and on which of their lines."""


@dataclass(frozen=True)
class Sources:
    """What a sandbox runs before it is asked for anything.

    imports: the lab's own import cells; cells: pairs (name, source) of answers, the last one
    being that which is judged; folder: where it may write; closed: what it may not even read;
    deadline: by time.monotonic()
    """

    imports: str
    cells: tuple
    folder: str
    closed: tuple
    deadline: float


class Sandbox:
    """The side of those who ask."""

    def __init__(self, sources, rank=None):
        self.deadline = sources.deadline
        down, up = os.pipe(), os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                for number in (down[1], up[0]):
                    os.close(number)
                _live(Wire(down[0], up[1]), sources, rank)
            finally:
                os._exit(0)
        os.close(down[0])
        os.close(up[1])
        self.wire = Wire(up[0], down[1])
        try:
            ready = self.receive()
            # {name: [parameter names, kinds, whether each has a default]} and what went wrong.
            self.functions, self.failure = ready["functions"], ready["failure"]
        except (KeyError, TypeError):
            raise AnswerError("the answer cell did not end as Python cells do") from None

    def receive(self, keep=False):
        """The next message; raises AnswerError where there is none."""
        try:
            message = self.wire.receive(self.deadline, keep)
        except TimeoutError:
            raise AnswerError(
                "your code does not come to an end: is there an endless loop?"
            ) from None
        except Closed:
            raise AnswerError(f"your code ended its own process: {self._death()}") from None
        except WireError as error:
            raise AnswerError(f"your code gave what cannot be used: {error}") from None
        if not isinstance(message, dict):
            raise AnswerError("your code gave what cannot be used")
        return message

    def _death(self):
        _, status = os.waitpid(self.pid, 0)
        self.pid = None
        code = os.waitstatus_to_exitcode(status)
        if code == -signal.SIGXCPU:
            return "it took too much processor time"
        return signal.Signals(-code).name if code < 0 else f"exit code {code}"

    def close(self):
        """End it, and all that belongs to it."""
        for number in (self.wire.read, self.wire.write):
            with contextlib.suppress(OSError):
                os.close(number)
        if self.pid is not None:
            with contextlib.suppress(OSError):
                os.killpg(self.pid, signal.SIGKILL)
            with contextlib.suppress(OSError):
                os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self.pid = None


# ---- the other side


def _live(wire, sources, rank):
    """The life of a sandbox: close the doors, run the cells, then answer calls."""
    parent = os.getppid()
    doors.shut(wire, sources)
    if os.getppid() != parent:
        return  # it died before it could take this process with it
    functions, failure = _run_cells(sources)
    proxy = RemoteRank(rank, wire) if rank is not None else None
    wire.send({"functions": {n: _parameters(f) for n, f in functions.items()}, "failure": failure})
    while True:
        try:
            message = wire.receive(keep=True)
        except WireError:
            return
        arguments = [proxy if a == THE_RANK else a for a in message["arguments"]]
        try:
            if message["at"] is not None:
                proxy.at(*message["at"])
            value = functions[message["call"]](*arguments)
        except BaseException as error:
            wire.send({"raised": describe(error), "request": getattr(error, "_request", None)})
        else:
            grads = proxy.grads() if proxy is not None else None
            wire.send({"returned": value, "grads": grads}, keep=True)


def _run_cells(sources):
    """Run imports and answers; returns the functions, and how the last cell failed, or None."""
    names, failure = {"__name__": "__main__", "__builtins__": __builtins__}, None
    exec(compile(sources.imports, "<imports>", "exec"), names)
    for name, source in sources.cells:
        failure, file = None, CELL.format(name)
        try:
            code = compile(without_magics(source), file, "exec")
            linecache.cache[file] = (len(source), None, source.splitlines(True), file)
            exec(code, names)
        except BaseException as error:  # as in a notebook, the cells after it are run
            failure = describe(error)
    return {n: f for n, f in names.items() if callable(f)}, failure


def without_magics(source):
    """IPython's `%magic` and `!command` lines do nothing here."""
    return re.sub(r"^([ \t]*)[%!].*$", r"\1pass", source, flags=re.MULTILINE)


def _parameters(function):
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    return [[p.name, int(p.kind), p.default is not p.empty] for p in parameters]


def describe(error):
    """An exception as plain data: type, text, and the learner's line that it passed last."""
    text, line = str(error), ""
    if isinstance(error, SyntaxError):
        text, line = error.msg, f"line {error.lineno}: {(error.text or '').strip()}"
    frames = [
        f for f in traceback.extract_tb(error.__traceback__) if f.filename.startswith("<answer")
    ]
    if frames and not line:
        code = linecache.getline(frames[-1].filename, frames[-1].lineno).strip()
        line = f"line {frames[-1].lineno}, in {frames[-1].name}: {code}"
    unsolved = isinstance(error, NotImplementedError)
    return {"type": type(error).__name__, "text": text, "line": line, "unsolved": unsolved}
