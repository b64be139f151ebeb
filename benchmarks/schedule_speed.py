"""How fast the schedule room is: python benchmarks/schedule_speed.py

Each line is measured in this one run, as the best of a few; ratios compare lines of it.
"""

import os
import time
from contextlib import redirect_stdout
from functools import partial

from pp_lab.schedule import Cost, Schedule, schedules, simulate, verify

COST = Cost(F=1, B=2)


def best(function, times=5):
    """Seconds of the fastest of some runs."""
    seconds = []
    for _ in range(times):
        start = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def build_and_simulate(name, *sizes):
    """From nothing to makespan and bubble."""
    schedule = getattr(schedules, name)(*sizes)
    trace = simulate(schedule, COST.split(schedule.stages // schedule.p))
    return schedule, trace.makespan, trace.bubble


def line(what, value, target):
    print(f"{what:<66} {value:>12}   {target}")


def size(schedule):
    return sum(map(len, schedule.ranks))


def absolute():
    """The two large schedules, from building to the bubble."""
    for name, sizes in (("one_f_one_b", (64, 1024)), ("interleaved", (64, 1024, 2))):
        ops = size(build_and_simulate(name, *sizes)[0])
        seconds = best(partial(build_and_simulate, name, *sizes))
        line(f"{name}{sizes}: build and simulate {ops:,} ops", f"{seconds:.2f} s", "under 0.5 s")


def linear():
    """Eight times the micro-batches, eight times the ops."""
    for name, small, large in (
        ("one_f_one_b", (16, 512), (16, 4096)),
        ("interleaved", (16, 256, 2), (16, 2048, 2)),
    ):
        long, short = (
            best(partial(build_and_simulate, name, *sizes), 3) for sizes in (large, small)
        )
        ratio = long / short
        line(f"{name}: time of {large} over that of {small}", f"{ratio:.1f} x", "at most 10 x")


def against_torch():
    """torch's own way to lay out a schedule in time: get_schedule_ops with spacing."""
    from torch.distributed.pipelining._schedule_visualizer import get_schedule_ops

    p, m, v = 16, 512, 2
    ours = best(lambda: build_and_simulate("interleaved", p, m, v))
    with open(os.devnull, "w") as nothing, redirect_stdout(nothing):  # it prints every step
        theirs = best(lambda: get_schedule_ops("Interleaved1F1B", p, m, v, add_spacing=True), 1)
    line(f"interleaved{p, m, v}: torch's get_schedule_ops with spacing", f"{theirs:.2f} s", "")
    line(f"interleaved{p, m, v}: build and simulate", f"{ours:.3f} s", "")
    line("  how many times faster", f"{theirs / ours:.0f} x", "at least 50 x")


def refusal():
    """A large schedule with one op missing."""
    good = schedules.one_f_one_b(16, 512)
    wrong = Schedule(
        "wrong",
        [row[:-1] if rank == 7 else row for rank, row in enumerate(good.ranks)],
        good.placement,
        512,
    )

    def refuse():
        try:
            verify(wrong)
        except ValueError:
            return
        raise AssertionError("a schedule with a missing op was not refused")

    line(
        f"refusing {size(wrong):,} ops of which one is missing",
        f"{best(refuse):.2f} s",
        "under 1 s",
    )


def drawing():
    """The picture of a large timeline."""
    from pp_lab.show import timeline

    trace = simulate(schedules.one_f_one_b(16, 512), COST)
    seconds = best(lambda: timeline(trace).png, 2)
    line(
        f"drawing one_f_one_b(16, 512), {len(trace.events):,} ops",
        f"{seconds:.2f} s",
        "at most 2 s",
    )


if __name__ == "__main__":
    for section in (absolute, linear, refusal, drawing, against_torch):
        section()
