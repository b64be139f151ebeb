"""How long ranks take to start: ours against torch.multiprocessing.spawn.

    python benchmarks/start_speed.py [--pairs 5]

Both start four fresh processes, join them on gloo, run one 1F1B step (m = 8) of the same small
MLP, and bring the gradients home. First runs are each in a Python of their own that has torch
imported already, in turn; later runs in one. Prints seconds, and the ratios of the pairs.
"""

import argparse
import statistics
import subprocess
import sys
import time

STARTED = """
import sys, time
import torch, torch.distributed
sys.path.insert(0, {here!r})
import start_speed
began = time.perf_counter()
start_speed.{name}()
print(time.perf_counter() - began)
"""


def ours():
    import pp_lab as pp

    lab = pp.Lab(stages=4, microbatches=8)
    run = lab.run(pp.schedules.one_f_one_b(4, 8))
    assert lab.check(run) == 1


def spawned():
    """The same job on spawned processes, without a check."""
    import tempfile

    import torch

    import pp_lab as pp
    from pp_lab.run.lab import Lab

    jobs = []
    with tempfile.TemporaryDirectory() as folder:
        lab = Lab(stages=4, microbatches=8)
        lab.run(pp.schedules.one_f_one_b(4, 8), start=lambda job: jobs.append(job) or [])
        torch.multiprocessing.spawn(_rank, args=(jobs[0], folder), nprocs=4)


def _rank(index, job, folder):
    from dataclasses import replace

    from pp_lab.run import worker

    job = replace(job, folder=folder)
    rank = worker.prepare(job, index, worker._join(job, index), f"{folder}/status{index}")
    worker.ready(job, rank)()
    worker.report(rank)


def first(name):
    import os

    code = STARTED.format(here=os.path.dirname(os.path.abspath(__file__)), name=name)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    return float(done.stdout.split()[-1])


def spread(values, digits=2):
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to " \
           f"{max(values):.{digits}f})"  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--pairs", type=int, default=5)
    options = parser.parse_args()
    pairs = [(first("ours"), first("spawned")) for _ in range(options.pairs)]
    mine, theirs = zip(*pairs, strict=True)
    print(f"first run: ours {spread(mine)} s, spawn {spread(theirs)} s, ratio "
          f"{spread([a / b for a, b in pairs])}")  # fmt: skip

    import pp_lab as pp

    lab = pp.Lab(stages=4, microbatches=8)
    schedule = pp.schedules.one_f_one_b(4, 8)
    lab.check(lab.run(schedule))
    later = []
    for _ in range(20):
        began = time.perf_counter()
        assert lab.check(lab.run(schedule)) == 1
        later.append(time.perf_counter() - began)
    print(f"later runs, check included: {spread([1000 * t for t in later], 0)} ms, spawn takes "
          f"{statistics.median(theirs) / statistics.median(later):.1f} times as long")  # fmt: skip
    eight = pp.Lab(stages=8, microbatches=1)
    starts = []
    for _ in range(10):
        began = time.perf_counter()
        eight.run(lambda rank: None)
        starts.append(1000 * (time.perf_counter() - began))
    print(f"eight ranks start, join and end: {spread(starts, 0)} ms")


if __name__ == "__main__":
    main()
