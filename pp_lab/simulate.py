"""The command: python -m pp_lab.simulate 1f1b -p 4 -m 8

`pp_lab.simulate` is also the function that this command calls. So that the function is what
one gets under that name, whether or not this file was imported, importing it gives the
function (the last line).
"""

import argparse
import sys
from fractions import Fraction

from .schedule import Cost, Schedule, schedules, simulate
from .schedule.table import table

NAMES = {
    "gpipe": schedules.gpipe,
    "1f1b": schedules.one_f_one_b,
    "eager-1f1b": schedules.eager_1f1b,
    "interleaved": schedules.interleaved,
    "looped-bfs": schedules.looped_bfs,
    "zb-h1": schedules.zb_h1,
    "zb-h2": schedules.zb_h2,
    "zb-v": schedules.zb_v,
    "v-half": schedules.v_half,
    "v-min": schedules.v_min,
    "dualpipe": schedules.dualpipe,
    "dualpipe-v": schedules.dualpipe_v,
    "combined-1f1b": schedules.combined_1f1b,
}
CHUNKED = ("interleaved", "looped-bfs", "combined-1f1b")


def main(arguments=None):
    """Simulate what the command line asks for and print the timeline and the figures."""
    options = _parser().parse_args(arguments)
    try:
        cost = _cost(options.cost)
        asked = [_schedule(name, options) for name in [options.schedule, *options.compare]]
        figures = table(asked, cost)
    except (ValueError, OSError) as error:
        sys.exit(f"pp_lab.simulate: {error}")
    trace = figures.traces[0]
    for each in figures.traces:
        print(each)
    print(f"\n{figures}")
    if not options.compare:
        slow = [f"{e.op} on rank {e.rank}" for e in trace.critical_path()]
        short = slow if len(slow) <= 12 else [*slow[:6], "…", *slow[-5:]]
        print(f"\ncritical path, {len(slow)} ops: {', '.join(short)}")
    if options.csv:
        asked[0].to_csv(options.csv)
    if options.trace:
        trace.to_chrome_trace(options.trace)
    if options.png:
        from .show import stack

        stack(*figures.traces).save(options.png)


def _parser():
    parser = argparse.ArgumentParser(
        prog="python -m pp_lab.simulate",
        description="Time a pipeline schedule and print its timeline.",
        epilog=f"Schedules: {', '.join(NAMES)}, or a CSV file of torch.distributed.pipelining.",
    )
    parser.add_argument("schedule", help="a name, or a CSV file")
    parser.add_argument("-p", type=int, default=4, help="ranks (default 4)")
    parser.add_argument("-m", type=int, default=8, help="micro-batches (default 8)")
    parser.add_argument(
        "-v",
        type=int,
        default=2,
        metavar="V",
        help="chunks per rank, where a schedule has them (default 2)",
    )
    parser.add_argument(
        "--cost",
        default="F=1,B=2",
        metavar="F=1,B=2,…",
        help="of a rank's whole share: F B I W pair comm link sync, and blocking=1 for "
        "messages that are a rendezvous; numbers like 1, 1/3 or 0.5",
    )
    parser.add_argument(
        "--compare",
        nargs="+",
        default=[],
        metavar="SCHEDULE",
        help="more schedules, for a table side by side",
    )
    parser.add_argument("--png", metavar="FILE", help="write the picture")
    parser.add_argument("--csv", metavar="FILE", help="write torch.distributed.pipelining's CSV")
    parser.add_argument("--trace", metavar="FILE", help="write a trace for ui.perfetto.dev")
    return parser


def _schedule(name, options):
    """The schedule of that name, or in that file."""
    if name.endswith(".csv"):
        return Schedule.from_csv(name)
    key = name.lower().replace("_", "-")
    if key not in NAMES:
        raise ValueError(f"there is no schedule {name!r}: choose from {', '.join(NAMES)}")
    sizes = (options.p, options.m, options.v) if key in CHUNKED else (options.p, options.m)
    return NAMES[key](*sizes)


def _cost(text):
    """A Cost from F=1,B=2,comm=1/4."""
    values = {}
    for part in text.replace(",", " ").split():
        name, _, value = part.partition("=")
        try:
            values[name] = float(value) if "." in value or "e" in value else Fraction(value)
        except (ValueError, ZeroDivisionError):
            raise ValueError(
                f"--cost: {part!r} is not a name and a number, like F=1 or comm=1/4"
            ) from None
    try:
        return Cost(**values)
    except TypeError:
        known = "F, B, I, W, pair, comm, blocking"
        wrong = ", ".join(name for name in values if name not in known.split(", "))
        raise ValueError(f"--cost: a cost has no {wrong}, only {known}") from None


if __name__ == "__main__":
    main()
else:
    sys.modules[__name__] = simulate
