"""The doctor: it finds what is wrong with a machine, and says what to do about it."""

import os
import re
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest

import pp_lab
from pp_lab.course import doctor

ROOT = Path(__file__).parent.parent


def run_doctor(path=None):
    """Run it as a user does, with `path` in front of what is installed."""
    environment = os.environ | ({"PYTHONPATH": str(path)} if path else {})
    return subprocess.run(
        [sys.executable, "-m", "pp_lab.doctor"],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60,
    )  # fmt: skip


def fake(folder, name, code):
    """A package that takes the place of the installed one for whoever has `folder` first."""
    (folder / name).mkdir()
    (folder / name / "__init__.py").write_text(code)
    return folder


def only(findings):
    """The single finding of a check."""
    (finding,) = findings
    return finding


def test_on_a_good_machine_it_ends_with_0_in_under_30_seconds():
    began = time.monotonic()
    done = run_doctor()
    assert time.monotonic() - began < 30
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert done.stdout.endswith("No problems: run `make lab`\n")
    assert f"torch {metadata.version('torch')}" in done.stdout
    assert re.search(r"four ranks, one step of 1F1B, every gradient right: [\d.]+ s", done.stdout)
    assert re.search(r"NCCL for runs of up to|all runs use gloo on the CPU", done.stdout)


def test_a_torch_that_cannot_be_imported_is_one_line_not_a_traceback(tmp_path):
    path = fake(tmp_path, "torch", "raise ImportError('libtorch_cpu.so: file too short')")
    done = run_doctor(path)
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.count("problem ") == 1
    assert (
        "problem  torch cannot be imported (ImportError: libtorch_cpu.so: file too short): run "
        "`make clean lab`"
    ) in done.stdout
    assert done.stdout.endswith("1 problem\n")


def test_a_broken_matplotlib_is_reported_and_the_ranks_are_tried_all_the_same(tmp_path):
    done = run_doctor(fake(tmp_path, "matplotlib", "1 / 0"))
    assert (done.returncode, done.stderr) == (1, "")
    assert "matplotlib.pyplot cannot be imported (ZeroDivisionError" in done.stdout
    assert "four ranks, one step of 1F1B, every gradient right" in done.stdout


def test_a_torch_that_kills_the_process_is_named_with_the_signal(tmp_path, monkeypatch):
    crash = "import os, signal; os.kill(os.getpid(), signal.SIGILL)"
    monkeypatch.setenv("PYTHONPATH", str(fake(tmp_path, "torch", crash)))
    status, text = list(doctor.trial())[-1]
    assert status == "problem"
    assert text.startswith("importing torch ended the process with SIGILL")


def test_a_torch_that_never_comes_back_is_ended_with_all_that_it_started(tmp_path, monkeypatch):
    stuck = (
        "import os, pathlib, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(99)'])\n"
        f"pathlib.Path({str(tmp_path)!r}, 'pids').write_text(f'{{os.getpid()}} {{child.pid}}')\n"
        "time.sleep(99)"
    )
    monkeypatch.setenv("PYTHONPATH", str(fake(tmp_path, "torch", stuck)))
    monkeypatch.setattr(doctor, "SECONDS", 4)
    began = time.monotonic()
    status, text = list(doctor.trial())[-1]
    assert time.monotonic() - began < 30
    assert status == "problem"
    assert text.startswith("importing torch was not done after 4 s")
    psutil = pytest.importorskip("psutil")
    for pid in map(int, (tmp_path / "pids").read_text().split()):
        assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == "zombie"


def test_without_any_package_it_still_imports():
    code = "import pp_lab.course.doctor, pp_lab.doctor"
    done = subprocess.run([sys.executable, "-S", "-c", code], cwd=ROOT, capture_output=True)
    assert done.stderr == b""


def test_a_package_outside_the_tested_range_is_a_problem_and_so_is_a_missing_one(monkeypatch):
    installed = metadata.version

    def version(name):
        if name == "numpy":
            raise metadata.PackageNotFoundError(name)
        return {"torch": "2.9.1+cpu"}.get(name) or installed(name)

    monkeypatch.setattr(metadata, "version", version)
    problems = [text for status, text in doctor.packages() if status == "problem"]
    assert problems == [
        f"torch 2.9.1+cpu is not in the tested range <2.14,>=2.13: {doctor.AFRESH}",
        f"numpy is not installed: {doctor.AFRESH}",
    ]


def test_a_python_in_which_pp_lab_is_not_installed_is_told_which_one_to_use(monkeypatch):
    def requires(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", requires)
    status, text = only(doctor.packages())
    assert status == "problem"
    assert "`.venv/bin/python -m pp_lab.doctor`" in text


def test_without_packaging_it_says_so_and_goes_on(monkeypatch):
    monkeypatch.setitem(sys.modules, "packaging.requirements", None)
    status, text = only(doctor.packages())
    assert status == "problem" and text.startswith("versions cannot be compared")


@pytest.mark.parametrize(
    "version, system, advice",
    [((3, 9, 18), "linux", "needs Python 3.10 or newer"), ((3, 12, 0), "win32", "inside WSL")],
)
def test_an_old_python_and_windows_are_problems(monkeypatch, version, system, advice):
    here = SimpleNamespace(version_info=version, platform=system, executable=sys.executable)
    monkeypatch.setattr(doctor, "sys", here)
    status, text = only(doctor.python())
    assert status == "problem" and advice in text


def test_a_missing_loopback_interface_is_a_problem(monkeypatch):
    def create_server(*_):
        raise OSError(99, "Cannot assign requested address")

    monkeypatch.setattr(doctor.socket, "create_server", create_server)
    status, text = only(doctor.loopback())
    assert status == "problem" and "ip link set lo up" in text


def test_no_folder_for_temporary_files_is_a_problem(monkeypatch):
    def gettempdir():
        raise FileNotFoundError(2, "No usable temporary directory found in ['/tmp']")

    monkeypatch.setattr(doctor.tempfile, "gettempdir", gettempdir)
    status, text = only(doctor.temporary_files())
    assert status == "problem" and "No usable temporary directory" in text
    assert "export TMPDIR=" in text


def test_a_full_disk_is_a_problem(monkeypatch):
    if not os.path.exists("/dev/full"):
        pytest.skip("this system has no /dev/full")
    monkeypatch.setattr(doctor.tempfile, "TemporaryFile", lambda: open("/dev/full", "wb"))  # noqa: SIM115
    status, text = only(doctor.temporary_files())
    assert status == "problem" and "No space left on device" in text


def test_a_path_too_long_for_a_socket_is_a_problem(monkeypatch, tmp_path):
    address = str(tmp_path / ("x" * 120))
    monkeypatch.setattr(doctor, "arbitrary_address", lambda family: address)
    status, text = only(doctor.temporary_files())
    assert status == "problem" and "short path" in text


def test_without_a_fork_server_it_notes_that_runs_start_slowly(monkeypatch):
    monkeypatch.setattr(doctor.multiprocessing, "get_all_start_methods", lambda: ["spawn"])
    status, text = only(doctor.fork_server())
    assert status == "note" and "spawned" in text


def test_no_run_is_tried_on_a_machine_on_which_it_cannot_work(monkeypatch, capsys):
    monkeypatch.setattr(doctor, "loopback", lambda: [("problem", "no loopback")])
    monkeypatch.setattr(doctor, "trial", lambda: pytest.fail("a run was tried"))
    assert doctor.main() == 1
    assert "no run was tried" in capsys.readouterr().out


class FakeLab:
    """Answers in the place of pp_lab.Lab; `outcome` is raised, or is the score."""

    outcome = None

    def __init__(self, **_):
        pass

    def run(self, *_, **__):
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return SimpleNamespace(seconds=0.1)

    def check(self, run):
        return self.outcome


@pytest.mark.parametrize(
    "outcome, line",
    [
        (RuntimeError("rank 2 was killed by SIGKILL\n  more"),
         "problem four ranks did not finish a step: rank 2 was killed by SIGKILL."),
        (SimpleNamespace(passed=False, reasons=[("no", "rank 1: block2.weight is wrong")]),
         "problem four ranks computed wrong numbers (rank 1: block2.weight is wrong)"),
        (SimpleNamespace(passed=True), "ok four ranks, one step of 1F1B"),
    ],
)  # fmt: skip
def test_the_doctor_judges_a_run_as_the_lab_does(monkeypatch, capsys, outcome, line):
    monkeypatch.setattr(FakeLab, "outcome", outcome)
    monkeypatch.setattr(pp_lab, "Lab", FakeLab, raising=False)
    doctor.pipeline()
    assert f"{doctor.MARK}{line}" in capsys.readouterr().out
