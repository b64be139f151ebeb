"""The same run on ranks that torchrun has started, on any number of machines.

torchrun starts the processes, restarts and kills them; torch.distributed connects them. Each
process carries out its own rank, and the first one brings home what all report.
"""

import os
import sys
import tempfile
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from ..schedule.errors import LabError
from . import worker

PATIENCE = 10  # seconds in one wait after which a rank says for whom it waits


class ClusterError(LabError, RuntimeError):
    """The ranks that torchrun started do not fit the run."""


def start(job):
    """Carry out this process's rank of a `worker.Job`; returns all reports, in order, on the
    first rank, and None on the others. For `Lab.run(…, start=cluster.start)`."""
    if "RANK" not in os.environ:
        raise ClusterError(
            "this process was not started by torchrun. Start it with torchrun --nproc-per-node "
            f"{job.size} -m pp_lab.run FILE, or use lab.run in a notebook"
        )
    index, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if size != job.size:
        raise ClusterError(
            f"torchrun started {size} ranks, and {job.name} is for {job.size}: start "
            f"--nproc-per-node times --nnodes = {job.size}, or give other --stages"
        )
    device = _device(job.backend)
    dist.init_process_group(job.backend, timeout=timedelta(seconds=job.timeout))
    try:
        with tempfile.TemporaryDirectory(prefix="pp_lab-") as folder:
            status = os.path.join(folder, "status")
            rank = worker.prepare(job, index, device, status)
            threading.Thread(target=_watch, args=(rank,), daemon=True).start()
            try:
                program = worker.ready(job, rank)
                dist.barrier()
                rank.clock.begin(time.monotonic())  # machines' clocks differ: the barrier aligns
                program()
                report = worker.report(rank)
            except Exception as error:
                print(f"[rank {index}] {rank.transport.place}: {type(error).__name__}: {error}",
                      file=sys.stderr, flush=True)  # fmt: skip
                raise
        reports = [None] * size if index == 0 else None
        dist.gather_object(report, reports)
        dist.barrier()  # nobody takes its groups down while others still use theirs
        return reports
    finally:
        dist.destroy_process_group()


def _device(backend):
    """This process's device: with NCCL the GPU of its number on this machine."""
    if backend != "nccl":
        return torch.device("cpu")
    local, here = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    if here > torch.cuda.device_count():
        raise ClusterError(
            f"{here} ranks on this machine, but {torch.cuda.device_count()} GPUs. NCCL cannot "
            "share a GPU between ranks: start fewer ranks here, or use --backend gloo"
        )
    torch.cuda.set_device(local)
    return torch.device("cuda", local)


def _watch(rank):
    """Say for whom this rank waits, once it has waited long: the others cannot be asked."""
    told = None
    while True:
        time.sleep(0.5)
        waiting = rank.transport.waiting
        if waiting and waiting != told and time.monotonic() - waiting[1] > PATIENCE:
            told = waiting
            print(f"[rank {rank.index}] has waited for {PATIENCE} s {rank.transport.place}, for "
                  f"{waiting[0]!r}", file=sys.stderr, flush=True)  # fmt: skip
