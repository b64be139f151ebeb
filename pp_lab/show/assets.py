"""Draw the pictures in assets/ again: `python -m pp_lab.show.assets`."""

from pathlib import Path

from ..schedule import Cost, schedules, simulate
from .timeline import Timeline, stack

FOLDER = Path(__file__).parents[2] / "assets"  # of a checkout


def pictures() -> dict[str, Timeline]:
    """Every picture, by the name of its file."""
    cost = Cost(F=1, B=2)
    gpipe, one_f_one_b = schedules.gpipe(p=4, m=8), schedules.one_f_one_b(p=4, m=8)
    return {"readme.png": stack(simulate(gpipe, cost), simulate(one_f_one_b, cost))}


def main():
    FOLDER.mkdir(exist_ok=True)
    for name, timeline in pictures().items():
        timeline.save(FOLDER / name)
        print(f"assets/{name}: {len(timeline.png) / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
