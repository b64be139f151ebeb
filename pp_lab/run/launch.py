"""Start fresh rank processes, watch over them, and end every run: with its reports, or with
one sentence that says what happened. Never with a hang, never with a process left behind.
"""

import multiprocessing
import os
import pickle
import signal
import sys
import tempfile
import time
import types
from contextlib import contextmanager, suppress
from dataclasses import replace
from multiprocessing.connection import wait

import cloudpickle

from . import failures
from .failures import NotAttempted, RunError, RunInterrupted
from .worker import main as rank_main

QUIET = 0.3  # seconds without news after which waiting ranks are taken at their word
GRACE = 0.15  # seconds in which the failures of other ranks are collected
LIVE_AFTER = 2.0  # seconds after which what ranks print is shown at once, not at the end


def server():
    """The context of the fork server, which is started (without waiting) if it is not there.

    Where a system has no fork server, ranks are spawned: the same, but seconds slower.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["pp_lab.run.preload"])
    with _no_main():
        multiprocessing.forkserver.ensure_running()
    return context


_announced = False


def launch(job, echo=print):
    """Run a `worker.Job` on job.size fresh processes; returns their `worker.Report`s in order.

    What ranks print goes to `echo`, a line at a time, marked with the rank. Raises RunError.
    """
    global _announced
    if not _announced:
        _announced = True
        stream = None if "ipykernel" in sys.modules else sys.stderr
        print(
            "pp_lab: first run of this session, starting the rank server …", file=stream, flush=True
        )
    with _folder() as folder:
        job = replace(job, folder=folder)
        try:
            data = cloudpickle.dumps(job)
        except Exception as error:
            raise RunError(
                f"the function cannot be sent to the ranks: {error}. It, or something "
                "global that it uses, holds an open file, a lock, a thread or the "
                "like: make that inside the function"
            ) from None
        ranks = []
        try:
            try:
                for index in range(job.size):
                    ranks.append(_start(index))
            except (OSError, EOFError) as error:
                raise RunError(
                    f"rank {len(ranks)} could not be started: {error}. Is the machine out of "
                    "memory, processes or open files? `python -m pp_lab.doctor` looks"
                ) from None
            for rank in ranks:
                with suppress(OSError):
                    rank.connection.send((folder, data))
            return _Watch(ranks, job, echo).until_done()
        except KeyboardInterrupt:
            raise RunInterrupted(
                "the run was stopped, and its processes with it. "
                + "; ".join(
                    f"rank {r.index} was {failures.status(folder, r.index)}"
                    for r in ranks
                    if r.report is None
                )
            ) from None
        finally:
            _end(ranks)


@contextmanager
def _folder():
    """A private folder in which the ranks of one run meet."""
    try:
        folder = tempfile.TemporaryDirectory(prefix="pp_lab-")
    except OSError as error:
        raise RunError(
            f"no folder can be made for the ranks to meet in: {error}. Set TMPDIR to a folder "
            "that exists, can be written and has some space left"
        ) from None
    with folder as name:
        yield name


class _Rank:
    """What the parent knows of a rank."""

    def __init__(self, index, process, connection):
        self.index, self.process, self.connection = index, process, connection
        self.joined = False
        self.report = self.failure = self.waiting = None
        self.open = True  # its line to us


def _start(index):
    context = server()
    ours, theirs = context.Pipe()
    process = context.Process(
        target=rank_main, args=(theirs, index), daemon=True, name=f"pp_lab rank {index}"
    )
    with _no_main():
        process.start()
    theirs.close()
    return _Rank(index, process, ours)


def _end(ranks):
    """No process of the run is left when this returns."""
    for rank in ranks:
        if rank.report is not None:
            with suppress(OSError):
                rank.connection.send("end")
    done = all(rank.report is not None for rank in ranks)
    for rank in ranks:
        if not done or not wait([rank.process.sentinel], timeout=1.0):
            rank.process.kill()
    for rank in ranks:
        rank.process.join()
        rank.process.close()
        rank.connection.close()


@contextmanager
def _no_main():
    """multiprocessing would import the learner's script again in every rank, and run it again
    where it has no main guard. cloudpickle ships what is needed, so there is no need to."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


class _Watch:
    """Reads what the ranks report until all are done, or until it is clear that they won't be."""

    def __init__(self, ranks, job, echo):
        self.ranks, self.job, self.echo = ranks, job, echo
        self.lines = []
        self.began = self.news = time.monotonic()
        self.deadline = None

    def until_done(self):
        try:
            while any(rank.report is None for rank in self.ranks):
                self._read(0.05 if self.lines or self._all_waiting() else 0.2)
                self._show_lines(live=time.monotonic() - self.began > LIVE_AFTER)
                if self.deadline is None and all(rank.joined for rank in self.ranks):
                    self._go()
                self._look_for_trouble()
        finally:
            self._show_lines(live=True)
        self._look_at_leftovers()
        return [rank.report for rank in self.ranks]

    def _go(self):
        """Everybody has joined: name the moment at which all start."""
        zero = time.monotonic() + (0 if self.job.clock == "virtual" else 0.01)
        for rank in self.ranks:
            with suppress(OSError):
                rank.connection.send(zero)
        self.deadline = zero + self.job.timeout

    def _read(self, timeout):
        sources = {rank.connection: rank for rank in self.ranks if rank.open}
        for connection in wait(list(sources), timeout):
            rank = sources[connection]
            try:
                kind, *content = connection.recv()
            except (EOFError, OSError):
                rank.open = False
                continue
            if kind == "print":
                self.lines.append((content[0], rank.index, len(self.lines), content[1]))
                continue
            self.news = time.monotonic()
            if kind == "joined":
                rank.joined = True
            elif kind == "waiting":
                rank.waiting = failures.Waiting(*content)
            elif kind == "moving":
                rank.waiting = None
            elif kind == "failed":
                rank.failure = content[0]
            elif kind == "done":
                rank.report, rank.waiting = pickle.loads(content[0]), None

    def _show_lines(self, live):
        """In order of the ranks' clocks, so that the same run prints the same text."""
        if live:
            for _, rank, _, line in sorted(self.lines):
                self.echo(f"[rank {rank}] {line}")
            self.lines.clear()

    def _all_waiting(self):
        return all(rank.waiting or rank.report for rank in self.ranks)

    def _look_for_trouble(self):
        if any(rank.failure or not rank.open for rank in self.ranks):
            limit = time.monotonic() + GRACE
            while time.monotonic() < limit:
                self._read(0.02)
            raise self._failure()
        quiet = self._all_waiting() and time.monotonic() - self.news > QUIET
        if quiet and (stuck := failures.deadlock(self._waits(), self.job.tags)):
            raise RunError(*stuck)
        if self.deadline is None:
            if time.monotonic() - self.began > max(self.job.timeout, 30):
                late = [rank.index for rank in self.ranks if not rank.joined]
                raise RunError(
                    f"ranks {late} did not get ready in {max(self.job.timeout, 30):g} s. Is the "
                    "machine out of memory or very busy? `python -m pp_lab.doctor` looks"
                )
        elif time.monotonic() > self.deadline:
            self._ask_where()
            raise RunError(
                *failures.too_long(
                    self.job,
                    self._waits(),
                    {r.index: failures.stack(self.job, r.index) for r in self._unfinished()},
                )
            )

    def _unfinished(self):
        return [rank for rank in self.ranks if rank.report is None]

    def _waits(self):
        """For each rank its `Waiting`, or "done", or None where it is at work."""
        return ["done" if r.report else r.waiting for r in self.ranks]

    def _ask_where(self):
        for rank in self._unfinished():
            with suppress(OSError):
                os.kill(rank.process.pid, signal.SIGUSR1)
        time.sleep(0.1)

    def _failure(self):
        """The first cause, not what it did to the others."""
        failed = {r.index: r.failure for r in self.ranks if r.failure}
        causes = {i: f for i, f in failed.items() if not f["lost peer"]}
        lost = [r for r in self.ranks if not r.open and not r.failure and not r.report]
        if causes:
            first = min(causes, key=lambda i: (causes[i]["now"] is None, causes[i]["now"] or 0, i))
            kind = NotAttempted if causes[first]["unsolved"] else RunError
            return kind(*failures.exception(first, causes, self.job))
        if lost:
            rank = lost[0]
            rank.process.join(1.0)
            return RunError(*failures.death(rank.index, rank.process.exitcode, self.job.folder))
        first = min(failed)
        return RunError(*failures.exception(first, failed, self.job))

    def _look_at_leftovers(self):
        for rank in self.ranks:
            if rank.report.unwaited:
                raise RunError(*failures.unwaited(rank.index, rank.report.unwaited))
