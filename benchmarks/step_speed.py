"""A wall-clock training step: ours, torch.distributed.pipelining's, and a lean one by hand.

    python benchmarks/step_speed.py [--hidden 256 1024] [--turns 11]

Four ranks on gloo, 16 micro-batches, 8 blocks of Linear + ReLU, float32, one thread per rank.
All three run in the same rank processes, three steps each in turn, so that each ratio compares
steps that were taken in the same moment; who begins changes from turn to turn. The same model,
data and schedule; the gradients of a step must be equal. Prints medians, and the ratios' median,
minimum and maximum.
"""

import argparse
import contextlib
import io
import statistics
import sys

import pp_lab as pp
from pp_lab.schedule.lower import lower

P, M = 4, 16
STEPS = 3  # in a row, as in training: one time is their mean
FAMILY = {  # our schedule, torch's class, chunks per rank, whether they are placed in a V
    "GPipe": (pp.schedules.gpipe(P, M), "ScheduleGPipe", 1, False),
    "1F1B": (pp.schedules.one_f_one_b(P, M), "Schedule1F1B", 1, False),
    "interleaved": (pp.schedules.interleaved(P, M, 2), "ScheduleInterleaved1F1B", 2, False),
    "ZB-V": (pp.schedules.zb_v(P, M), "ScheduleZBVZeroBubble", 2, True),
    "DualPipeV": (pp.schedules.dualpipe_v(P, M), "ScheduleDualPipeV", 2, True),
}


def duel(schedule, torch_class, turns, by_hand):
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
        for number in range(turns + 1):
            grads = {}
            first = number % len(kinds)
            for name, step in (list(kinds.items()) * 2)[first : first + len(kinds)]:
                step()  # what the kind before left in the caches is not ours to measure
                dist.barrier()
                began = time.perf_counter()
                for _ in range(STEPS):
                    grads[name] = step()
                dist.barrier()
                if rank.index == 0 and number > 0:
                    print(name, (time.perf_counter() - began) / STEPS)
            for name, found in grads.items():
                for a, b in zip(grads["ours"], found, strict=True):
                    if number == 0 and not torch.allclose(a, b, rtol=1e-4, atol=1e-7):
                        raise AssertionError(f"{name} has other gradients")
        rank.saved.clear()

    return program


def lean(rank, module, dist, torch, time):
    """1F1B by hand, lean: all receives posted at once, sends waited for at the end."""
    for p in module.parameters():
        p.grad = None
    r, m = rank.index, M
    shape = rank.shape
    warmup = min(rank.size - 1 - r, m)
    xs, saved, sends = {}, {}, []

    def post(kind, i):
        if (kind == "x" and r == 0) or (kind == "dy" and r == P - 1):
            return
        buffer = torch.empty(shape)
        peer = r - 1 if kind == "x" else r + 1
        xs[kind, i] = buffer, dist.irecv(buffer, peer, tag=2 * i + (kind == "dy") + 1)

    def get(kind, i):
        buffer, work = xs.pop((kind, i))
        work.wait()
        return buffer

    def forward(i):
        x = rank._inputs[i] if r == 0 else get("x", i).requires_grad_()
        y = module(x)
        if r == P - 1:
            y = torch.nn.functional.mse_loss(y, rank._targets[i]) / m
        else:
            sent = y.detach()
            sends.append((sent, dist.isend(sent, r + 1, tag=2 * i + 1)))
        saved[i] = x, y

    def backward(i):
        x, y = saved.pop(i)
        torch.autograd.backward(y, None if r == P - 1 else get("dy", i))
        if r > 0:
            sends.append((x.grad, dist.isend(x.grad, r - 1, tag=2 * i + 2)))

    for i in range(m):
        post("x", i), post("dy", i)
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
    parser.add_argument("--turns", type=int, default=11)
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
                    duel(schedule, torch_class, options.turns, name == "1F1B"),
                    clock="wall",
                    timeout=600,
                    tags=True,  # as when a schedule is run
                    placement=schedule.placement,
                )
            times = {"ours": [], "torch": []}
            for line in printed.getvalue().splitlines():  # [rank 0] KIND SECONDS
                kind, seconds = line.removeprefix("[rank 0] ").rsplit(" ", 1)
                times.setdefault(kind, []).append(1000 * float(seconds))
            print(
                f"  {name:12}",
                *(f"{k} {statistics.median(v):.1f}" for k, v in times.items()),
                sep="  ",
                end="",
            )
            for kind in list(times)[1:]:
                ratios = [a / b for a, b in zip(times["ours"], times[kind], strict=True)]
                print(
                    f"  ours/{kind} {statistics.median(ratios):.3f} "
                    f"({min(ratios):.3f} to {max(ratios):.3f})",
                    end="",
                )
            print(flush=True)


if __name__ == "__main__":
    sys.exit(main())
