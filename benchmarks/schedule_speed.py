"""How fast the schedule room is: python benchmarks/schedule_speed.py [--against CHECKOUT]

Each line is measured in this one run, as the best of a few; ratios compare lines of it. With
--against, every figure is measured for another checkout too, in turns, each turn in processes of
its own that begin with the one or with the other; the median of the turns' ratios is printed.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from contextlib import redirect_stdout
from functools import partial

from pp_lab.schedule import Cost, Layers, Schedule, schedules, simulate, verify

COST = Cost(F=1, B=2)


def best(function, times=5, enough=0.0):
    """Seconds of the fastest of some runs: so many at least, and `enough` seconds of them."""
    seconds = []
    while len(seconds) < times or sum(seconds) < enough:
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


def refuse():
    """Refuse a large schedule with one op missing."""
    good = schedules.one_f_one_b(16, 512)
    rows = [row[:-1] if rank == 7 else row for rank, row in enumerate(good.ranks)]
    try:
        verify(Schedule("wrong", rows, good.placement, 512))
    except ValueError:
        return size(good) - 1
    raise AssertionError("a schedule with a missing op was not refused")


def refusal():
    """A large schedule with one op missing."""
    line(
        f"refusing {refuse():,} ops of which one is missing",
        f"{best(refuse):.2f} s",
        "under 1 s",
    )


def drawn(trace):
    from pp_lab.show import timeline

    return timeline(trace).png


def drawing():
    """The picture of a large timeline."""
    trace = simulate(schedules.one_f_one_b(16, 512), COST)
    line(
        f"drawing one_f_one_b(16, 512), {len(trace.events):,} ops",
        f"{best(lambda: drawn(trace), 2):.2f} s",
        "at most 2 s",
    )


def figures():
    """{name: function} of what is compared with another checkout."""
    pairs, blocking = Cost(F=1, B=2, pair=3), Cost(F=1, B=2, comm=1, blocking=True)
    small, linked = schedules.one_f_one_b(4, 8), Cost(F=1, B=2, comm=1, link=1)
    made = {
        f"{name}{sizes}": partial(build_and_simulate, name, *sizes)
        for name, sizes in (("one_f_one_b", (64, 1024)), ("interleaved", (64, 1024, 2)),
                            ("one_f_one_b", (16, 512)), ("zb_h1", (16, 512)))
    }  # fmt: skip
    wide, long = schedules.dualpipe(16, 256), schedules.one_f_one_b(16, 256)
    deep = schedules.combined_1f1b(4, 16, 2)
    picture = simulate(schedules.one_f_one_b(16, 512), COST)
    return made | {
        "a hundred small ones": lambda: [simulate(small, COST) for _ in range(100)],
        "dualpipe(16, 256), pairs": partial(simulate, wide, pairs),
        "one_f_one_b(16, 256) with links": partial(simulate, long, linked),
        "one_f_one_b(16, 256), rendezvous": partial(simulate, long, blocking),
        "combined_1f1b(4, 16, 2), nodes of two streams": partial(simulate, deep, Layers(ep=2)),
        "verify one_f_one_b(16, 256)": partial(verify, long),
        "refusal": refuse,
        "drawing one_f_one_b(16, 512)": lambda: drawn(picture),
    }


def against(checkout, turns):
    """Print the ratio of every figure, this checkout over another."""
    here, there = os.path.dirname(os.path.dirname(os.path.abspath(__file__))), checkout
    ratios = {}
    for turn in range(turns):
        found = {}
        for folder in (here, there) if turn % 2 == 0 else (there, here):
            command = [sys.executable, __file__, "--figures"]
            environment = {**os.environ, "PYTHONPATH": folder}
            done = subprocess.run(command, env=environment, capture_output=True, check=True)
            found[folder] = json.loads(done.stdout)
        for name, seconds in found[here].items():
            ratios.setdefault(name, []).append(seconds / found[there][name])
    print(f"{'seconds here over those there, ' + str(turns) + ' turns':<50} median   least  most")
    for name, of in ratios.items():
        print(f"{name:<50} {statistics.median(of):6.3f}  {min(of):6.3f} {max(of):5.3f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--against", metavar="CHECKOUT", help="a folder with another pp_lab in it")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--figures", action="store_true", help="print seconds as JSON, and no more")
    options = parser.parse_args()
    if options.figures:
        print(json.dumps({name: best(figure, 4, 0.3) for name, figure in figures().items()}))
    elif options.against:
        against(os.path.abspath(options.against), options.turns)
    else:
        for section in (absolute, linear, refusal, drawing, against_torch):
            section()
