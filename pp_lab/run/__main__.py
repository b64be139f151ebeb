"""Run a file's schedule or rank program on ranks that torchrun has started.

    torchrun --nproc-per-node 4 -m pp_lab.run my_schedule.py --schedule one_f_one_b -m 8

The file holds what a notebook cell would: a rank program `fn(rank)`, or a function `fn(p, m)`
that returns a `Schedule` or each rank's list of ops.
"""

import argparse
import os
import runpy
import sys

from ..schedule import Cost, Grid, LabError
from . import cluster
from .lab import Lab


def main(argv=None) -> int:
    parser = argparse.ArgumentParser(
        prog="torchrun … -m pp_lab.run", description=__doc__.split("\n")[0]
    )
    parser.add_argument("file", help="a Python file that defines the function")
    parser.add_argument("--schedule", help="the function's name, if the file has several")
    parser.add_argument(
        "--stages", type=int, help="stages of a pipeline; one per rank unless given"
    )
    parser.add_argument("--dp", type=int, default=1, help="data-parallel copies of the pipeline")
    parser.add_argument("-m", "--microbatches", type=int, default=8)
    parser.add_argument("--hidden", type=int, default=16)
    parser.add_argument("--dtype", default="float64", choices=["float64", "float32"])
    parser.add_argument("--clock", default="virtual", choices=["virtual", "wall", "pace"])
    parser.add_argument("--backend", choices=["gloo", "nccl"])
    parser.add_argument("--timeout", type=float, default=60, help="seconds for any one wait")
    parser.add_argument("--trace", help="write a trace for ui.perfetto.dev here")
    options = parser.parse_args(argv)
    try:
        pp = int(os.environ.get("WORLD_SIZE", 1)) // max(options.dp, 1)
        grid = Grid(dp=options.dp, pp=pp) if options.dp != 1 else None
        lab = Lab(
            options.stages or pp,
            options.microbatches,
            hidden=options.hidden,
            dtype=options.dtype,
            backend=options.backend,
        )
        program = chosen(options.file, options.schedule)
        run = lab.run(program, clock=options.clock, cost=Cost(F=1, B=2), timeout=options.timeout,
                      grid=grid, start=cluster.start)  # fmt: skip
    except LabError as error:
        print(error, file=sys.stderr)
        return 1
    if run is None:  # the first rank speaks for all
        return 0
    score = lab.check(run)
    print(run.trace)
    print(score, flush=True)
    if options.trace:
        run.trace.to_chrome_trace(options.trace)
    return 0 if score.passed else 1


def chosen(file, name):
    """The function called `name` in a file, or its only one."""
    try:
        found = runpy.run_path(file)
    except OSError as error:
        raise LabError(f"cannot read {file}: {error.strerror}") from None
    functions = {
        key: value
        for key, value in found.items()
        if callable(value) and getattr(value, "__module__", None) == "<run_path>"
    }
    if name is None and len(functions) == 1:
        return next(iter(functions.values()))
    if name not in functions:
        wanted = "name one with --schedule" if name is None else f"there is no {name} in it"
        raise LabError(f"{file} defines {', '.join(functions) or 'no function'}: {wanted}")
    return functions[name]


if __name__ == "__main__":
    sys.exit(main())
