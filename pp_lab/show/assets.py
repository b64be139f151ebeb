"""Draw the pictures in assets/ again: `python -m pp_lab.show.assets`."""

from pathlib import Path

from ..schedule import Cost, Trace, schedules, simulate
from .timeline import Timeline, stack, timeline

FOLDER = Path(__file__).parents[2] / "assets"  # of a checkout


def targets() -> dict[str, Trace]:
    """What the schedule exercises ask for, by exercise."""
    share = Cost(F=1, B=2)
    half, pairs = share.split(2), Cost(F=1, B=2, pair=3)
    return {
        "one_f_one_b": simulate(schedules.one_f_one_b(p=4, m=8), share),
        "interleaved": simulate(schedules.interleaved(p=4, m=8, v=2), half),
        "zb_h1": simulate(schedules.zb_h1(p=4, m=8), share),
        "zb_h2": simulate(schedules.zb_h2(p=4, m=8), share),
        "zb_v": simulate(schedules.zb_v(p=4, m=8), half),
        "dualpipe": simulate(schedules.dualpipe(p=4, m=8), pairs),
        "dualpipe_v": simulate(schedules.dualpipe_v(p=4, m=10), pairs.split(2)),
        "combined": simulate(schedules.combined_1f1b(p=4, m=8, v=2), pairs.split(2)),
    }


def pictures() -> dict[str, Timeline]:
    """Every picture, by the name of its file."""
    cost = Cost(F=1, B=2)
    gpipe, one_f_one_b = schedules.gpipe(p=4, m=8), schedules.one_f_one_b(p=4, m=8)
    made = {"readme.png": stack(simulate(gpipe, cost), simulate(one_f_one_b, cost))}
    return made | {f"target_{name}.png": timeline(trace) for name, trace in targets().items()}


def main():
    FOLDER.mkdir(exist_ok=True)
    for name, picture in pictures().items():
        picture.save(FOLDER / name)
        print(f"assets/{name}: {len(picture.png) / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
