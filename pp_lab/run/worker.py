"""The life of one rank process: join, run, report to the parent, end when told.

The fork server has imported this module (preload.py); every rank is forked with torch in it.
"""

import contextlib
import faulthandler
import fcntl
import io
import os
import pickle
import shutil
import signal
import socket
import sys
import threading
import time
import traceback
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing import parent_process

import cloudpickle
import torch
import torch.distributed as dist

from ..schedule.cost import Cost
from ..schedule.grid import Grid
from ..schedule.layers import Layers
from ..schedule.schedule import Placement
from .execute import Plan
from .failures import StepError, TransportError
from .groups import reduce_gradients
from .meter import Meter, Reading
from .nodes import NodePlan
from .problem import Problem, finish
from .rank import Rank
from .rank_clocks import CudaClock, PaceClock, VirtualClock, WallClock
from .transport import Transport

REPORT_AFTER = 0.25  # seconds in one wait after which a rank says for whom it waits


@dataclass(frozen=True)
class Job:
    """What every rank of a run is told."""

    name: str
    problem: Problem
    placement: Placement
    size: int
    program: object  # a function of a Rank, or each rank's row of a schedule
    recompute: object  # None, or a function (stage, micro-batch) -> bool
    steps: tuple  # pairs ("forward_step" or "backward_step", function)
    clock: str
    cost: Cost | Layers
    pace: float
    backend: str
    tags: bool
    timeout: float
    grid: Grid | None = None  # the ranks' layout; None: one pipeline
    meter: Meter | None = None  # of the bytes held, where they are asked for
    folder: str = ""  # where the processes of one machine meet


@dataclass
class Report:
    """What one rank brings home."""

    items: list
    losses: dict
    results: dict  # copy -> Result
    seen: set
    peak: int
    not_finite: tuple | None  # (time, op) of the first op that gave NaN or infinity
    sent: int
    sent_bytes: int
    links: list  # (lane, move, start, end) of messages that took time on a link
    traffic: dict  # group -> [calls, bytes]
    sharded: dict  # parameter -> the dimension in which it is cut, where it is
    held_bytes: list | None = None  # (time, bytes from then on), where they were metered
    unwaited: list = field(default_factory=list)


def main(connection, index):
    """Entry point of a rank process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what an interrupt means
    _end_with_parent()
    folder, data = connection.recv()
    # What only the operating system still sees of this process: C libraries' last words, the
    # line it is in when asked by a signal, and (in Rank) the last call that it made.
    os.dup2(_file(folder, f"stderr{index}"), 2)
    faulthandler.register(signal.SIGUSR1, _file(folder, f"stack{index}"), all_threads=True)
    link = _Link(connection, index, folder)
    sys.stdout = sys.stderr = _Lines(link)
    try:
        # The learner's functions come as bytes: what fails in unpacking them is their error.
        job = cloudpickle.loads(data)
        report = _run(job, index, link)
    except BaseException as error:
        link.failed(error)
    else:
        sys.stdout.flush()
        link.send("done", pickle.dumps(report))
    with contextlib.suppress(EOFError, OSError):
        connection.recv()  # the parent lets all ranks go at once
    os._exit(0)


def _file(folder, name):
    """A file of this rank's that stays open to its end."""
    return os.open(os.path.join(folder, name), os.O_CREAT | os.O_WRONLY)


def _run(job, index, link):
    rank = prepare(job, index, _join(job, index), os.path.join(job.folder, f"status{index}"))
    link.watch(rank)
    program = ready(job, rank)
    link.send("joined")
    rank.clock.begin(link.connection.recv())
    program()
    link.rank = None  # what follows is ours, not the learner's
    return report(rank)


def prepare(job, index, device, status):
    """The `Rank` for a process that has joined its group; `status`: see `Transport`."""
    torch.set_num_threads(1)
    cost = job.cost.on(index) if isinstance(job.cost, Layers) else job.cost
    clock = {
        "virtual": lambda: VirtualClock(cost),
        "wall": CudaClock if device.type == "cuda" else WallClock,
        "pace": lambda: PaceClock(cost, job.pace, (index + 0.5) / job.size / 3),
    }[job.clock]()
    longest = max(dtype.itemsize * torch.Size(shape).numel() for shape, dtype in job.problem.shapes)
    capacity = max(longest * job.problem.microbatches, 1 << 16)
    # Between ranks of one schedule both sides know what comes; a learner's program may err, and
    # where messages take time, the time at which they were sent travels with them.
    timed = job.clock == "virtual" or job.clock == "pace" and (job.cost.comm or job.cost.link)
    bare = not callable(job.program) and not timed
    transport = Transport(index, job.size, capacity, device, job.tags, clock, status, bare)
    placement = job.placement
    if job.grid:  # this rank's own pipelines
        owners = [job.grid.coordinates(rank)["pp"] for rank in placement.copies[0]]
        placement = job.grid.placement(owners, index)
    given = (job.problem, placement, clock, transport, job.steps, job.recompute, job.grid)
    rank = Rank(index, *given)
    if job.meter:
        rank.meter = Reading(rank, job.meter)
    return rank


def ready(job, rank):
    """A function that runs the learner's program, or this rank's row of the schedule."""
    if callable(job.program):
        return lambda: job.program(rank)
    if isinstance(job.cost, Layers):
        return NodePlan(rank, job.program[rank.index], job.cost).run
    plan = Plan(rank, job.program[rank.index])
    if rank.device.type == "cpu":  # before the clock starts; NCCL could not run a barrier behind it
        plan.post()

    def run():
        plan.run()
        reduce_gradients(rank)

    return run


def report(rank):
    """End the step, and sum up what the rank did."""
    transport = rank.transport
    unwaited = [repr(r) for r in transport.outstanding]
    unwaited += [repr(r) for r in transport.reductions if not r.done]
    sent, sent_bytes, links = transport.sent, transport.sent_bytes, rank.sent()
    items = rank.clock.settled(rank.items)
    return Report(
        items=items,
        losses={i: rank.counts * v.item() for i, v in rank.losses.items()},
        results={} if unwaited else _finish(rank),
        seen=rank.seen,
        peak=rank.peak,
        not_finite=rank.not_finite,
        sent=sent,
        sent_bytes=sent_bytes,
        links=links,
        traffic=rank.groups.traffic,
        sharded=rank.sharded,
        held_bytes=rank.meter.steps(items) if rank.meter else None,
        unwaited=unwaited,
    )


def _join(job, index):
    """Join the process group of this run; returns the rank's device."""
    loopback = next((n for _, n in socket.if_nameindex() if n in ("lo", "lo0")), None)
    if loopback:
        os.environ["GLOO_SOCKET_IFNAME"] = os.environ["NCCL_SOCKET_IFNAME"] = loopback
    device = torch.device("cpu")
    if job.backend == "nccl":
        device = torch.device("cuda", index)
        torch.cuda.set_device(device)
    # The parent ends a run that takes too long; the group's own limit must not come first.
    store = dist.FileStore(os.path.join(job.folder, "store"), job.size)
    dist.init_process_group(
        job.backend,
        store=store,
        rank=index,
        world_size=job.size,
        timeout=timedelta(seconds=job.timeout + 60),
    )
    return device


def _finish(rank):
    """Add up the copies' gradients, where there are several, and take the optimizer step."""
    copies = {copy for copy, _ in rank.modules}
    if rank.grid.dp == 1 and len(rank.placement.copies) > 1:
        _sum_copies(rank)
    results = {}
    for copy in copies:
        modules = {s: module for (c, s), module in rank.modules.items() if c == copy}
        loss = sum(v.item() for _, v in sorted(rank.losses.items())) if rank.losses else None
        result = finish(rank.problem, modules, loss)
        for tensors in (result.grads, result.weights):
            for name, tensor in tensors.items():
                tensors[name] = None if tensor is None else tensor.cpu().numpy()
        results[copy] = result
    return results


def _sum_copies(rank):
    """Every copy of a stage ends up with the sum of all copies' gradients."""
    transport, copies = rank.transport, rank.placement.copies
    held = {
        (stage, name, copy): parameter
        for (copy, stage), module in rank.modules.items()
        for name, parameter in rank.problem.parameters(stage, module).items()
        if not (rank.has_own_experts and ".experts." in name)
    }
    terms = {k: torch.zeros_like(p) if p.grad is None else p.grad for k, p in held.items()}
    transport.make_room(max((p.numel() * p.element_size() for p in held.values()), default=0))
    sends = []
    for stage, name, copy in sorted(held):
        for peer in sorted({owners[stage] for owners in copies} - {rank.index}):
            what = f"copy {copy}'s gradient of {name}"
            sends.append(transport.isend(terms[stage, name, copy], peer, copy, what))
    for stage, name in sorted({key[:2] for key in held}):
        like = next(p for key, p in held.items() if key[:2] == (stage, name))
        for copy, owners in enumerate(copies):
            if owners[stage] != rank.index:
                theirs = terms[stage, name, copy] = torch.empty_like(like)
                what = f"copy {copy}'s gradient of {name}"
                transport.irecv(theirs, owners[stage], copy, what).wait()
    for request in sends:
        request.wait()
    for (stage, name, _), parameter in held.items():
        parts = [terms[stage, name, copy] for copy in range(len(copies))]
        parameter.grad = sum(parts[1:], parts[0].clone())


class _Link:
    """A rank's line to the parent: prints, failures, and, while it waits, for whom."""

    def __init__(self, connection, index, folder):
        self.connection, self.index, self.folder = connection, index, folder
        self.rank = None
        self._lock = threading.Lock()

    def send(self, kind, *content):
        with self._lock, contextlib.suppress(OSError):
            self.connection.send((kind, *content))

    def watch(self, rank):
        self.rank = rank
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self):
        """End with the parent, whatever the rank is doing; say so when the rank is stuck."""
        orphaned = parent_process().sentinel
        told = None
        from multiprocessing.connection import wait

        while not wait([orphaned], timeout=0.1):
            transport = self.rank and self.rank.transport
            waiting = transport and transport.waiting
            if waiting != told and told is not None:
                told = None
                self.send("moving")
            if waiting and told is None and time.monotonic() - waiting[1] > REPORT_AFTER:
                told = waiting
                done = [item.label for item, *_ in self.rank.items]
                self.send(
                    "waiting",
                    describe(waiting[0]),
                    transport.place,
                    [describe(r) for r in list(transport.outstanding)],
                    done,
                )
        shutil.rmtree(self.folder, ignore_errors=True)
        os._exit(1)

    def failed(self, error):
        rank = self.rank
        with contextlib.suppress(Exception):
            sys.stdout.flush()
        frames = traceback.extract_tb(error.__traceback__)
        self.send(
            "failed",
            {
                "type": type(error).__name__,
                "text": str(error),
                "ours": isinstance(error, (StepError, TransportError)),
                "unsolved": isinstance(error, NotImplementedError),
                "lost peer": isinstance(error, RuntimeError)
                and "onnection" in str(error)
                and not isinstance(error, (StepError, TransportError)),
                "frames": [(f.filename, f.lineno, f.name, f.line) for f in frames],
                "place": rank.transport.place if rank else "while starting",
                "now": rank.now if rank else None,
            },
        )


def describe(request):
    """A request as plain data, for the parent: (verb, peer, tag, what)."""
    if hasattr(request, "peer"):
        return (request.verb, request.peer, request.tag, request.what)
    return (request.verb, None, request.number, request.members)


class _Lines(io.TextIOBase):
    """sys.stdout of a rank: whole lines go to the parent, with the rank's time."""

    def __init__(self, link):
        self.link, self.rest = link, ""

    def writable(self):
        return True

    def write(self, text):
        *lines, self.rest = (self.rest + text).split("\n")
        for line in lines:
            self._line(line)
        return len(text)

    def flush(self):
        if self.rest:
            self._line(self.rest)
            self.rest = ""

    def _line(self, line):
        rank = self.link.rank
        self.link.send("print", rank.now if rank else 0, line)


def _end_with_parent():
    """Die when the kernel dies, even in a loop that never gives a thread its turn.

    The parent's end of the sentinel pipe closes when it dies. With O_ASYNC the operating
    system then sends SIGIO, whose default action ends the process. A parent-death signal
    would not do: the parent of this process is the fork server.
    """
    sentinel = parent_process().sentinel
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    with contextlib.suppress(OSError, AttributeError):
        fcntl.fcntl(sentinel, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(sentinel, fcntl.F_SETFL, fcntl.fcntl(sentinel, fcntl.F_GETFL) | os.O_ASYNC)
