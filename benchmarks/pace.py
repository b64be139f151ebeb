"""Measured over predicted, for the whole family: real time, real messages, declared durations.

    python benchmarks/pace.py [--png FILE] [--unit 0.02]

Four ranks, m = 8 (10 for DualPipeV), each op stretched to `unit` seconds per unit of cost.
Prints, for each schedule, the measured makespan over the simulated one, and the median.
"""

import argparse
import statistics

import pp_lab as pp
from pp_lab import Cost, schedules, simulate


def family():
    """(schedule, cost), with durations of a whole rank's share F=1, B=2; chunks cost their part,
    in whole units, so that no op is shorter than a unit."""
    one, chunk = Cost(F=1, B=2), Cost(F=1, B=2, pair=3)
    for make in (schedules.gpipe, schedules.one_f_one_b, schedules.eager_1f1b, schedules.zb_h1,
                 schedules.zb_h2):  # fmt: skip
        yield make(4, 8), one
    yield schedules.interleaved(4, 8, 2), chunk
    yield schedules.looped_bfs(4, 8, 2), chunk
    for make in (schedules.zb_v, schedules.v_half, schedules.v_min, schedules.dualpipe):
        yield make(4, 8), chunk
    yield schedules.dualpipe_v(4, 10), chunk
    yield schedules.combined_1f1b(4, 8, 2), chunk


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--unit", type=float, default=0.02, help="seconds per unit of cost")
    parser.add_argument("--png", help="draw 1F1B, measured over predicted, here")
    options = parser.parse_args()
    ratios = []
    for schedule, cost in family():
        lab = pp.Lab(schedule.stages, schedule.microbatches)
        run = lab.run(schedule, clock="pace", cost=cost, pace=options.unit)
        assert lab.check(run) == 1
        predicted = simulate(schedule, cost)
        ratios.append(run.trace.makespan / predicted.makespan)
        print(f"{schedule.name:26} predicted {float(predicted.makespan):6.1f}  measured "
              f"{run.trace.makespan:6.1f}  ratio {ratios[-1]:.3f}", flush=True)  # fmt: skip
        if options.png and schedule.name == "1F1B":
            pp.timeline(run.trace, predicted=predicted).save(options.png)
    print(f"median over the family: {statistics.median(ratios):.3f} "
          f"({min(ratios):.3f} to {max(ratios):.3f})")  # fmt: skip


if __name__ == "__main__":
    main()
