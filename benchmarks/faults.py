"""Every fault that the tests provoke: the sentence that the user sees, and the seconds it took.

    python benchmarks/faults.py [pytest's arguments]

Runs the tests of faults and of other models, and prints what `Lab.run` raised in each. Faults of
the kernel itself (interrupt, restart, a full disk) are in tests/test_run_lifecycle.py, whose
seconds `pytest --durations=0` shows.
"""

import sys
import textwrap
import time
from pathlib import Path

import pytest

import pp_lab as pp
from pp_lab.schedule import LabError

TESTS = Path(__file__).resolve().parents[1] / "tests"


class Listener:
    """A plugin of pytest that writes down what runs raise."""

    def __init__(self):
        self.rows, self.test = [], None

    @pytest.hookimpl
    def pytest_runtest_setup(self, item):
        self.test = item.name

    def listen(self, run):
        def listened(lab, *args, **kwargs):
            began = time.monotonic()
            try:
                return run(lab, *args, **kwargs)
            except (LabError, RuntimeError, NotImplementedError) as error:
                said = str(error).partition("\n")[0]
                self.rows.append((self.test, time.monotonic() - began, said))
                raise

        return listened


def main():
    listener = Listener()
    pp.Lab.run = listener.listen(pp.Lab.run)
    chosen = sys.argv[1:] or [str(TESTS / f"test_run_{name}.py") for name in ("faults", "models")]
    code = pytest.main(["-q", "-p", "no:nbval", "-o", "addopts=", *chosen], plugins=[listener])
    for test, seconds, said in listener.rows:
        print(f"{seconds:5.2f} s  {test.removeprefix('test_').replace('_', ' ')}")
        print(textwrap.fill(said, 100, initial_indent=" " * 9, subsequent_indent=" " * 9))
    longest = max(seconds for _, seconds, _ in listener.rows)
    print(f"{len(listener.rows)} faults, the longest wait {longest:.2f} s")
    return code


if __name__ == "__main__":
    sys.exit(main())
