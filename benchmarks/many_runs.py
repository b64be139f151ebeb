"""A thousand runs in a row: do memory, file descriptors or time grow?

    python benchmarks/many_runs.py [--runs 1000]

Prints, for each tenth of the runs: milliseconds per run (median), resident memory of this
process and of the rank server, and open file descriptors.
"""

import argparse
import statistics
import time

import psutil

import pp_lab as pp


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--runs", type=int, default=1000)
    runs = parser.parse_args().runs
    lab = pp.Lab(stages=2, microbatches=2)
    schedule = pp.schedules.one_f_one_b(2, 2)
    me = psutil.Process()
    print("runs  ms per run  MiB here  MiB server  descriptors")
    for tenth in range(10):
        times = []
        for _ in range(runs // 10):
            began = time.perf_counter()
            assert lab.check(lab.run(schedule)) == 1
            times.append(1000 * (time.perf_counter() - began))
        server = next(c for c in me.children() if "forkserver" in " ".join(c.cmdline()))
        print(f"{(tenth + 1) * (runs // 10):4}  {statistics.median(times):10.0f}"
              f"  {me.memory_info().rss / 2**20:8.1f}  {server.memory_info().rss / 2**20:10.1f}"
              f"  {me.num_fds():11}", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
