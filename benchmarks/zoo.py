"""What every wrong answer in the zoo hears: for each exercise its points, answers and messages.

    python benchmarks/zoo.py [lab02 …] [--all]

Prints one message for each exercise, or with --all that of every wrong answer. The tests hold
each to the message that is meant for it (tests/test_course_zoo.py).
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from test_course_zoo import ZOOS, exercises  # noqa: E402 - lies beside the tests


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("labs", nargs="*", default=list(ZOOS), help="lab01 and so on")
    parser.add_argument("--all", action="store_true", help="the message of every wrong answer")
    options = parser.parse_args()
    print("| lab | exercise | points | wrong | right | what a wrong answer hears |")
    print("|---|---|---|---|---|---|")
    for lab in options.labs:
        module, zoo = ZOOS[lab]
        for name, check in exercises(module).items():
            wrong = zoo.WRONG[name]
            shown = wrong if options.all else wrong[len(wrong) // 2 :][:1]
            for answers in shown:
                (kind, said) = check(*answers[:-1]).reasons[-1]
                assert kind == "no", name
                text = said.partition("\n")[0].replace("|", "\\|")
                print(f"| {lab} | {name} | {check.points} | {len(wrong)} | "
                      f"{len(zoo.RIGHT[name])} | {text} |", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
