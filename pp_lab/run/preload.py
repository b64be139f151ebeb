"""What the fork server does once, so that every rank is forked with it."""

import ctypes
import gc
import os
import pickle
import sys
import tempfile
from contextlib import suppress

import torch
import torch.fx.experimental.symbolic_shapes  # noqa: F401 - autograd.backward imports it late

from ..schedule.cost import Cost
from ..schedule.lower import lower
from ..schedule.schedule import loop
from ..schedule.schedules import one_f_one_b
from . import worker
from .problem import Problem

MICROBATCHES = 16  # Python makes a function faster once it has run a few times
KEPT = []  # what fills the holes of Python's heap
HUGE = 2 << 20  # bytes of a huge page
MADV_COLLAPSE, PR_SET_TIMERSLACK = 25, 29  # Linux's and glibc's numbers
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8


def rehearse():
    """Run a step here, on one stage: what Python and torch set up at first use, ranks inherit.

    Not where torch could have a GPU: its backward would start threads, and then nothing can fork.
    Random numbers are left as they were.
    """
    if torch.version.cuda or torch.version.hip or torch.backends.mps.is_built():
        return
    problem = Problem((2,), MICROBATCHES, 4 * MICROBATCHES, 16, "float64", "tanh", 0.1, 0)
    job = worker.Job(
        name="rehearsal",
        problem=problem,
        placement=loop(1),
        size=1,
        program=lower(one_f_one_b(1, MICROBATCHES)).ranks,
        recompute=None,
        steps=(),
        clock="virtual",
        cost=Cost(),
        pace=1.0,
        backend="gloo",
        tags=True,
        timeout=60.0,
    )
    with torch.random.fork_rng(devices=[]), tempfile.TemporaryDirectory() as folder:
        status = os.path.join(folder, "status")
        rank = worker.prepare(pickle.loads(pickle.dumps(job)), 0, torch.device("cpu"), status)
        worker.ready(job, rank)()
        pickle.dumps(worker.report(rank))


def fill(libc):
    """Use up the holes that imports have left in the heaps of C and of Python. What a rank
    allocates then lies together, instead of on pages each of which has to be copied for it."""
    libc.malloc.restype = ctypes.c_void_p
    for size in (*range(64 << 10, 1 << 10, -1024), *range(1024, 16, -16)):
        _in_a_row(lambda size=size: libc.malloc(ctypes.c_size_t(size)), size, 6)
    for size in range(48, 513, 16):  # Python's, for small objects
        _in_a_row(lambda size=size: _kept(size), size, (8 << 10) // size)


def _in_a_row(allocate, size, enough):
    """Allocate until `enough` blocks in a row lie side by side, or a megabyte is used up."""
    row, last = 0, 0
    for _ in range((1 << 20) // size):
        address = allocate()
        row = row + 1 if 0 < address - last <= size + 32 else 0
        last = address
        if row == enough:
            break


def _kept(size):
    """Where a new Python object of this size lies, which stays."""
    KEPT.append(bytes(size - sys.getsizeof(b"")))
    return id(KEPT[-1])


def lean():
    """Make ranks cheap: what makes forks, and pages that are copied after them, few and small.

    A fork copies the table of all pages, 45 000 small ones with torch imported, and the end of
    the process gives them back; in huge pages they are few. All threads share one heap, which
    has no holes, and what a step frees stays in it for the next. Sleeps become as exact as they
    can be. All of it is inherited by ranks; where a system lacks it, nothing changes.
    """
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)
    libc.mallopt(M_ARENA_MAX, 1)
    libc.mallopt(M_MMAP_THRESHOLD, 32 << 20)  # the most that glibc allows
    libc.mallopt(M_TRIM_THRESHOLD, 1 << 30)
    fill(libc)
    with open("/proc/self/maps") as maps:
        for line in maps:
            span, access, *_, name = [*line.split(), ""][:6]
            if access.startswith("rw") and name in ("", "[heap]"):
                start, end = (int(address, 16) for address in span.split("-"))
                start, end = -(-start // HUGE) * HUGE, end // HUGE * HUGE
                if start < end:
                    size = ctypes.c_size_t(end - start)
                    libc.madvise(ctypes.c_void_p(start), size, MADV_COLLAPSE)


with suppress(Exception):  # what is wrong here is wrong in a rank too, and is explained there
    rehearse()
gc.collect()
with suppress(OSError, AttributeError):
    lean()
gc.freeze()  # what is imported stays shared between the server and its ranks
