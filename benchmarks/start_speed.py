"""How long ranks take to start: ours against torch.multiprocessing.spawn.

    python benchmarks/start_speed.py [--pairs 5]

Both start four fresh processes, join them on gloo, run one 1F1B step (m = 8) of the same small
MLP, and bring the gradients home. First runs are each in a Python of their own that has torch
imported already, in turn; later runs in one. Prints seconds, and the ratios of the pairs; and,
in turn with ours, what bare processes take that are forked by the same server, join gloo and end:
no run can take less.
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


def bare(count):
    """Processes of the rank server that do nothing but join gloo."""
    import tempfile

    import start_speed  # this file, under a name by which a process can import it

    from pp_lab.run.launch import _no_main, server

    context = server()
    with tempfile.TemporaryDirectory() as folder, _no_main():
        lines, processes = [], []
        for index in range(count):
            ours, theirs = context.Pipe()
            process = context.Process(target=start_speed._join, args=(theirs, index, count, folder))
            process.start()
            lines.append(ours)
            processes.append(process)
        for line in lines:
            line.recv()
        for line in lines:
            line.send("end")
        for process in processes:
            process.join()


def _join(line, index, size, folder):
    import os

    import torch
    import torch.distributed as dist

    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", size)
    dist.init_process_group("gloo", store=store, rank=index, world_size=size)
    line.send("joined")
    line.recv()
    os._exit(0)


def in_turn(times, *jobs):
    """For each job its milliseconds, taken one after the other."""
    taken = [[] for _ in jobs]
    for _ in range(times):
        for job, found in zip(jobs, taken, strict=True):
            began = time.perf_counter()
            job()
            found.append(1000 * (time.perf_counter() - began))
    return taken


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
    later, floor = in_turn(20, lambda: lab.check(lab.run(schedule)), lambda: bare(4))
    print(f"later runs, check included: {spread(later, 0)} ms, spawn takes "
          f"{1000 * statistics.median(theirs) / statistics.median(later):.1f} times as long; four "
          f"bare processes {spread(floor, 0)} ms")  # fmt: skip
    eight = pp.Lab(stages=8, microbatches=1)
    starts, floor = in_turn(10, lambda: eight.run(lambda rank: None), lambda: bare(8))
    print(f"eight ranks start, join and end: {spread(starts, 0)} ms; eight bare processes "
          f"{spread(floor, 0)} ms")  # fmt: skip


if __name__ == "__main__":
    main()
