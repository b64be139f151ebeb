"""torch.distributed.pipelining's own runtime on schedules from CSV files.

    python tests/torch_runtime.py FOLDER SIZE M FORMAT …

runs FOLDER/FORMAT.csv for each format (compute_only, compute_comms) on SIZE ranks and writes
the gradients of each rank's stage to FOLDER/FORMAT.RANK.pt. Importing torch takes longer than
all else here, so it is done once and the ranks are forked before torch has done anything.
"""

import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

WIDTH, BATCH = 4, 16


def problem(stages):
    """The stages, the batch and the targets, in float64: the same in every process."""
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()).double() for _ in range(stages)]
    return blocks, *torch.randn(2, BATCH, WIDTH).double()


def work(rank, folder, size, m, forms):
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", size)
    dist.init_process_group(
        "gloo", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=60)
    )
    for form in forms:
        blocks, x, target = problem(size)
        stage = PipelineStage(blocks[rank], rank, size, torch.device("cpu"))
        runtime = _PipelineScheduleRuntime([stage], m, loss_fn=nn.functional.mse_loss)
        runtime._load_csv(f"{folder}/{form}.csv", format=form)
        first = [x] if rank == 0 else []
        last = {"target": target} if rank == size - 1 else {}
        runtime.step(*first, **last)
        gradients = [parameter.grad for parameter in blocks[rank].parameters()]
        torch.save(gradients, f"{folder}/{form}.{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    folder, size, m, *forms = sys.argv[1:]
    size, m = int(size), int(m)
    children = []
    for rank in range(1, size):
        if (child := os.fork()) == 0:
            work(rank, folder, size, m, forms)
            os._exit(0)
        children.append(child)
    work(0, folder, size, m, forms)
    sys.exit(max(os.waitpid(child, 0)[1] for child in children))
