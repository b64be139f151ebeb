"""How long the explorer takes from a moved slider to a new picture.

    python benchmarks/explorer.py [-p 8] [-m 32]

Simulation, picture, figures and sentence, for each schedule of the family; without the browser.
"""

import argparse
import statistics
import time

from pp_lab.show.explore import FAMILY, Choice, view


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("-p", type=int, default=8)
    parser.add_argument("-m", type=int, default=32)
    options = parser.parse_args()
    slowest = 0
    for name in FAMILY:
        times = []
        for step in range(12):
            began = time.perf_counter()
            seen = view(Choice(name, options.p, options.m, W=1 + step / 4, time=step))
            times.append(1000 * (time.perf_counter() - began))
            assert seen.picture, seen.sentence
        print(
            f"{name:22} {statistics.median(times):5.0f} ms ({min(times):.0f} to {max(times):.0f})"
        )
        slowest = max(slowest, statistics.median(times))
    print(f"slowest median {slowest:.0f} ms for p={options.p} m={options.m}; the target is 100 ms")


if __name__ == "__main__":
    main()
