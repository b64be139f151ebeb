"""Times of real runs on this machine: the first run in a kernel, later runs, and pace.

    python benchmarks/run_times.py

Prints medians with minimum and maximum. Times depend on the machine and on what else it is
doing; the pace ratio is measured over predicted makespan of the same run.
"""

import statistics
import subprocess
import sys
import time

FIRST = """
import time
began = time.perf_counter()
import pp_lab as pp
lab = pp.Lab(stages=4, microbatches=8)
run = lab.run(pp.schedules.one_f_one_b(4, 8))
assert lab.check(run) == 1
print(time.perf_counter() - began)
"""


def spread(values, unit, digits):
    low, high = min(values), max(values)
    return (
        f"{statistics.median(values):.{digits}f} {unit} "
        f"(min {low:.{digits}f}, max {high:.{digits}f}, {len(values)} times)"
    )


def cold():
    """Seconds from `import pp_lab` to a checked first run, in a new Python."""
    done = subprocess.run([sys.executable, "-c", FIRST], capture_output=True, text=True, check=True)
    return float(done.stdout)


def main():
    print(f"cold first run, imports included: {spread([cold() for _ in range(3)], 's', 2)}")
    import pp_lab as pp

    lab = pp.Lab(stages=4, microbatches=8)
    schedule = pp.schedules.one_f_one_b(4, 8)
    lab.run(schedule)
    warm = []
    for _ in range(15):
        began = time.perf_counter()
        assert lab.check(lab.run(schedule)) == 1
        warm.append(1000 * (time.perf_counter() - began))
    print(f"warm run, fresh ranks, check included: {spread(warm, 'ms', 0)}")
    for name, make in (("GPipe", pp.schedules.gpipe), ("1F1B", pp.schedules.one_f_one_b)):
        predicted = pp.simulate(make(4, 8)).makespan
        ratios = [
            lab.run(make(4, 8), clock="pace", pace=0.02).trace.makespan / predicted
            for _ in range(5)
        ]
        print(
            f"pace, {name} p=4 m=8, 20 ms per unit: measured over predicted {spread(ratios, '', 3)}"
        )


if __name__ == "__main__":
    main()
