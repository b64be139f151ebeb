"""The code in README.md does what README.md says."""

import doctest
import re
import subprocess
import sys
from pathlib import Path

from pp_lab.run import launch

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
FENCE = re.compile(r"^```(python|pycon)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_code_in_the_readme_prints_what_stands_there(monkeypatch):
    """In order and with shared names: `python` is executed, `pycon` is compared."""
    monkeypatch.setattr(launch, "_announced", True)  # the first run of a session says so
    names = {"__name__": "__main__"}
    runner = doctest.DocTestRunner(verbose=False, optionflags=doctest.REPORT_NDIFF)
    report = []
    for match in FENCE.finditer(README):
        language, code = match.groups()
        line = README[: match.start()].count("\n") + 1
        if language == "python":
            exec(compile(code, "README.md", "exec"), names)
        else:
            test = doctest.DocTestParser().get_doctest(code, names, "README", "README.md", line)
            runner.run(test, out=report.append, clear_globs=False)
            names.update(test.globs)
    assert runner.tries > 10
    assert runner.failures == 0, "".join(report)


def test_the_commands_print_what_the_readme_shows():
    commands = re.findall(r"^```\n\$ (python .+)\n…\n((?:.+\n)+)```", README, re.MULTILINE)
    assert commands
    for command, shown in commands:
        arguments = [sys.executable, *command.split()[1:]]
        printed = subprocess.run(arguments, capture_output=True, text=True, check=True).stdout
        assert printed.endswith(shown)
