"""What two streams gain over one, measured and predicted: combined 1F1B of expert layers.

    python benchmarks/overlap.py [--unit 0.02]

Real processes and real all-to-alls over gloo, each node stretched to `unit` seconds per unit of
cost. The gain is the time that the second stream saves; 1 means all of what was predicted.
"""

import argparse

import torch

import pp_lab as pp
from pp_lab import Layers, schedules, simulate
from pp_lab.run.moe import MoELayer

CASES = [
    ("p=1, EP 2, 2 layers", schedules.combined_1f1b(1, 8), 2, 1),
    ("p=1, EP 2, a=1.5", schedules.combined_1f1b(1, 8), 2, 1.5),
    ("p=2, EP 2, v=2", schedules.combined_1f1b(2, 4, 2), 1, 1),
    ("p=2, EP 2, v=2, a=0.5", schedules.combined_1f1b(2, 4, 2), 1, 0.5),
]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--unit", type=float, default=0.02, help="seconds per unit of cost")
    options = parser.parse_args()
    print("| case | one stream, measured/predicted | two streams | gain, measured/predicted |")
    print("|---|---|---|---|")
    for name, schedule, layers, a2a in CASES:
        m, times = 2 * schedule.microbatches, []
        data = torch.randn(2, 4 * m, 8, dtype=torch.float64)
        for streams in (1, 2):
            model = Layers(layers, a2a=a2a, streams=streams, ep=2)
            blocks = [MoELayer(8, 4, seed=k) for k in range(schedule.stages * layers)]
            lab = pp.Lab(schedule.stages, m, blocks=blocks, inputs=data[0], targets=data[1])
            run = lab.run(schedule, cost=model, clock="pace", pace=options.unit)
            assert lab.check(run) == 1
            times.append((run.trace.makespan, float(simulate(schedule, model).makespan)))
        (one, predicted_one), (two, predicted_two) = times
        gain = (one - two) / (predicted_one - predicted_two)
        print(
            f"| {name} | {one:.1f}/{predicted_one:g} = {one / predicted_one:.3f} | "
            f"{two:.1f}/{predicted_two:g} = {two / predicted_two:.3f} | {gain:.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
