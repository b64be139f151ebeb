"""A wall-clock training step: ours, torch.distributed.pipelining's, and a lean one by hand.

    python benchmarks/step_speed.py [--hidden 256 1024] [--steps 15]

Four ranks on gloo, 16 micro-batches, 8 blocks of Linear + ReLU, float32, one thread per rank.
All three run in the same rank processes, step by step in turn, so that each ratio compares
steps that were taken in the same moment. The same model, data and schedule; the gradients of a
step must be equal. Prints medians, and the ratios' median, minimum and maximum.
"""

import argparse
import contextlib
import io
import statistics
import sys

import pp_lab as pp
from pp_lab.schedule.lower import lower

P, M = 4, 16
FAMILY = {  # our schedule, torch's class, chunks per rank, whether they are placed in a V
    "GPipe": (pp.schedules.gpipe(P, M), "ScheduleGPipe", 1, False),
    "1F1B": (pp.schedules.one_f_one_b(P, M), "Schedule1F1B", 1, False),
    "interleaved": (pp.schedules.interleaved(P, M, 2), "ScheduleInterleaved1F1B", 2, False),
    "ZB-V": (pp.schedules.zb_v(P, M), "ScheduleZBVZeroBubble", 2, True),
    "DualPipeV": (pp.schedules.dualpipe_v(P, M), "ScheduleDualPipeV", 2, True),
}


def duel(schedule, torch_class, steps, by_hand):
    """A rank program that times steps of each kind in turn; prints seconds, rank 0 for all."""
    rows = lower(schedule).ranks

    def program(rank):
        import time

        import torch
        import torch.distributed as dist
        from torch.distributed import pipelining

        from pp_lab.run.execute import Plan

        def fresh(parameters):
            for parameter in parameters:
                parameter.grad = None

        plan, rank.transport.bare = Plan(rank, rows[rank.index]), True
        mine = [p for module in rank.modules.values() for p in module.parameters()]

        def ours():
            fresh(mine)
            rank.seen.clear(), rank.items.clear()
            plan.run()
            return [p.grad for p in mine]

        stages, theirs = [], []
        for _, k in rank.modules:
            module = rank.problem.module(k)
            theirs += module.parameters()
            stages.append(pipelining.PipelineStage(module, k, rank.stages, rank.device))
        one = len(stages) == 1 and torch_class in ("ScheduleGPipe", "Schedule1F1B")
        runtime = getattr(pipelining.schedules, torch_class)(
            stages[0] if one else stages, M, loss_fn=torch.nn.functional.mse_loss
        )
        inputs = [torch.cat(rank._inputs)] if rank._inputs else []
        target = {"target": torch.cat(rank._targets)} if rank._targets else {}

        def torchs():
            fresh(theirs)
            runtime.step(*inputs, **target)
            return [p.grad for p in theirs]

        kinds = {"ours": ours, "torch": torchs}
        if by_hand:
            hand = rank.problem.module(rank.index)
            kinds["by hand"] = lambda: lean(rank, hand, dist, torch, time)
        for number in range(steps + 2):
            grads = {}
            for name, step in kinds.items():
                dist.barrier()
                began = time.perf_counter()
                grads[name] = step()
                dist.barrier()
                if rank.index == 0 and number > 1:
                    print(name, time.perf_counter() - began)
            for name, found in grads.items():
                for a, b in zip(grads["ours"], found, strict=True):
                    if number == 0 and not torch.allclose(a, b, rtol=1e-4, atol=1e-7):
                        raise AssertionError(f"{name} has other gradients")
        rank.saved.clear()

    return program


def lean(rank, module, dist, torch, time):
    """1F1B by hand, as lean as it gets: receives posted early, sends never waited for early."""
    for p in module.parameters():
        p.grad = None
    r, m = rank.index, M
    shape = rank.shape
    warmup = min(rank.size - 1 - r, m)
    xs, saved, sends = {}, {}, []

    def post(kind, i):
        if i >= m or (kind == "x" and r == 0) or (kind == "dy" and r == P - 1):
            return
        buffer = torch.empty(shape)
        peer = r - 1 if kind == "x" else r + 1
        xs[kind, i] = buffer, dist.irecv(buffer, peer, tag=2 * i + (kind == "dy") + 1)

    def get(kind, i):
        buffer, work = xs.pop((kind, i))
        work.wait()
        return buffer

    def forward(i):
        post("x", i + 1)
        x = rank._inputs[i] if r == 0 else get("x", i).requires_grad_()
        y = module(x)
        if r == P - 1:
            y = torch.nn.functional.mse_loss(y, rank._targets[i]) / m
        else:
            sent = y.detach()
            sends.append((sent, dist.isend(sent, r + 1, tag=2 * i + 1)))
        saved[i] = x, y

    def backward(i):
        post("dy", i + 1)
        x, y = saved.pop(i)
        torch.autograd.backward(y, None if r == P - 1 else get("dy", i))
        if r > 0:
            sends.append((x.grad, dist.isend(x.grad, r - 1, tag=2 * i + 2)))

    post("x", 0), post("dy", 0)
    for i in range(warmup):
        forward(i)
    for k in range(m - warmup):
        forward(warmup + k)
        backward(k)
    for k in range(m - warmup, m):
        backward(k)
    for _, work in sends:
        work.wait()
    return [p.grad for p in module.parameters()]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--hidden", type=int, nargs="*", default=[256, 1024])
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--only", nargs="*", default=list(FAMILY), choices=list(FAMILY))
    options = parser.parse_args()
    for hidden in options.hidden:
        rows = 32 if hidden <= 256 else 64
        print(f"hidden {hidden}, {rows} rows per micro-batch, ms per step")
        for name in options.only:
            schedule, torch_class, v, _ = FAMILY[name]
            lab = pp.Lab(
                P * v,
                M,
                blocks=8,
                hidden=hidden,
                batch=rows * M,
                dtype="float32",
                activation="relu",
            )
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                lab.run(
                    duel(schedule, torch_class, options.steps, name == "1F1B"),
                    clock="wall",
                    timeout=600,
                    placement=schedule.placement,
                )
            times = {}
            for line in printed.getvalue().splitlines():  # [rank 0] KIND SECONDS
                kind, seconds = line.removeprefix("[rank 0] ").rsplit(" ", 1)
                times.setdefault(kind, []).append(1000 * float(seconds))
            print(
                f"  {name:12}",
                *(f"{k} {statistics.median(v):.1f}" for k, v in times.items()),
                sep="  ",
                end="",
            )
            for kind in times.keys() - {"ours"}:
                ratios = [a / b for a, b in zip(times["ours"], times[kind], strict=True)]
                print(
                    f"  ours/{kind} {statistics.median(ratios):.3f} "
                    f"({min(ratios):.3f} to {max(ratios):.3f})",
                    end="",
                )
            print(flush=True)


if __name__ == "__main__":
    sys.exit(main())
