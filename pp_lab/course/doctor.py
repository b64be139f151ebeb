"""`python -m pp_lab.doctor`: has this machine what the labs need? Takes under 30 seconds.

Each line is "ok", or a "note" (works, but you should know), or a "problem" with what to do.
The exit code is 1 if there is a problem. What can take a process down with it, importing
torch and running four ranks, happens in a process of its own (`probe`), so that a broken
installation is explained too. Nothing here may import more than the standard library at once.
"""

import multiprocessing
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from importlib import import_module, metadata
from multiprocessing.connection import arbitrary_address

SECONDS = 25  # for the probe, whose pace is that of the disk when torch is new on it
AFRESH = "run `make clean lab` to install everything afresh"
MARK = "doctor:"  # begins the lines of the probe that are meant for us


def main() -> int:
    """Print the findings as they come; returns the exit code."""
    print("pp_lab doctor")
    problems = 0
    for check in (python, cores, temporary_files, loopback, fork_server):
        problems += sum(show(*finding) for finding in check())
    # Without these there is no run to try, and its message would hide the reason.
    able = not problems
    problems += sum(show(*finding) for finding in packages())
    if able:
        problems += sum(show(*finding) for finding in trial())
    else:
        show("note", "no run was tried: mend the above first")
    print(
        f"{problems} problem{'s' * (problems > 1)}" if problems else "No problems: run `make lab`"
    )
    return int(problems > 0)


def show(status: str, text: str) -> bool:
    """Print one finding; returns whether it is a problem."""
    print(f"  {status:8} {text}", flush=True)
    return status == "problem"


def python():
    """The interpreter and the system."""
    version = f"Python {platform.python_version()} on {platform.system()} {platform.machine()}"
    if sys.version_info < (3, 10):  # noqa: UP036 - the doctor is for those who lack it
        yield "problem", f"{version}: pp_lab needs Python 3.10 or newer. Install one, {AFRESH}"
    elif sys.platform == "win32":
        yield "problem", f"{version}: run pp_lab inside WSL, Windows itself has no fork"
    else:
        yield "ok", f"{version} ({sys.executable})"


def cores():
    """How many processors this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    count = len(affinity(0)) if affinity else os.cpu_count() or 1
    yield "ok", f"{count} core{'s' * (count > 1)}: the virtual clock shows the same on any number"


def packages():
    """What is installed against what pyproject.toml asks for."""
    try:
        from packaging.requirements import Requirement

        requirements = [Requirement(text) for text in metadata.requires("pp_lab") or ()]
    except metadata.PackageNotFoundError:
        yield (
            "problem",
            (
                f"pp_lab is not installed for {sys.executable}: run `make lab`, then "
                "`.venv/bin/python -m pp_lab.doctor`"
            ),
        )
        return
    except ImportError as error:
        yield "problem", f"versions cannot be compared ({error}): {AFRESH}"
        return
    fine = []
    for requirement in requirements:
        if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
            continue
        name, wanted = requirement.name, requirement.specifier
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            yield "problem", f"{name} is not installed: {AFRESH}"
            continue
        if wanted.contains(version, prereleases=True):
            fine.append(f"{name} {version}")
        else:
            yield "problem", f"{name} {version} is not in the tested range {wanted}: {AFRESH}"
    if fine:
        yield "ok", ", ".join(fine)


def temporary_files():
    """Every run has a private folder, and the fork server a socket, among temporary files."""
    remedy = "Free some space there, or name another folder: export TMPDIR=/some/folder"
    folder = os.environ.get("TMPDIR") or "/tmp"
    try:
        folder = tempfile.gettempdir()
        with tempfile.TemporaryFile() as file:
            file.write(bytes(1 << 20))
            file.flush()
    except OSError as error:
        yield "problem", f"temporary files cannot be written in {folder} ({error}). {remedy}"
        return
    try:
        address = arbitrary_address("AF_UNIX")
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(address)
        os.unlink(address)
    except (OSError, AttributeError) as error:
        yield (
            "problem",
            (
                f"no socket can be made among the temporary files in {folder} ({error}). Name a "
                "folder on a local disk, with a short path: export TMPDIR=/some/folder"
            ),
        )
        return
    yield "ok", f"temporary files in {folder}, {free(folder)} free"


def free(folder: str) -> str:
    space = shutil.disk_usage(folder).free / 2**30
    return f"{space:.0f} GiB" if space >= 1 else f"{space * 1024:.0f} MiB"


def loopback():
    """Ranks talk to each other over the loopback interface."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname(), timeout=5).close()
    except OSError as error:
        yield (
            "problem",
            (
                f"the loopback interface does not work ({error}). Switch it on, with "
                "`sudo ip link set lo up`; in a container, give it a network"
            ),
        )
    else:
        yield "ok", "loopback interface"


def fork_server():
    """How the processes of a run come into being."""
    if "forkserver" in multiprocessing.get_all_start_methods():
        yield "ok", "fork server: a run starts in a fraction of a second"
    else:
        yield "note", "this Python has no fork server: ranks are spawned, some seconds for each run"


def trial():
    """The findings of `probe`, run in another process, and of how that process ended."""
    command = [sys.executable, "-c", "from pp_lab.course.doctor import probe; probe()"]
    began = time.monotonic()
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace",
        start_new_session=True,  # so that it can be ended with all that it started
    )  # fmt: skip
    late = False
    try:
        out, err = process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        late = True
        end(process)
        out, err = process.communicate()
    except BaseException:
        end(process)
        raise
    step = "it began"
    for line in out.splitlines():
        if line.startswith(MARK):
            status, text = line[len(MARK) :].split(" ", 1)
            if status == "begin":
                step = text
            else:
                yield status, text
    if late:
        yield (
            "problem",
            (
                f"{step} was not done after {SECONDS} s. Is the machine very busy, or was torch "
                f"installed just now? Try once more; if it stays, {AFRESH}"
            ),
        )
    elif process.returncode:
        code = process.returncode
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        last = (err.strip().splitlines() or ["no message"])[-1]
        yield "problem", f"{step} ended the process with {how} ({last}): {AFRESH}"
    else:
        yield "ok", f"the trial took {time.monotonic() - began:.1f} s in all"


def end(process):
    """Kill the probe and all that it started."""
    os.killpg(process.pid, signal.SIGKILL)


def probe():
    """Import what the labs import, look for GPUs, run four ranks. Tells the parent each step."""
    usable = [import_package(name) for name in ("numpy", "torch", "matplotlib.pyplot")]
    if usable[:2] == [True, True]:
        gpus()
        pipeline()
    else:
        tell("note", "no ranks were started: they need numpy and torch")


def tell(status, text):
    print(f"{MARK}{status} {' '.join(text.split())}", flush=True)


def import_package(name) -> bool:
    tell("begin", f"importing {name}")
    try:
        import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name.split(".")[0]:  # else it is not installed, as `packages` said
            tell("problem", f"{name} lacks a part of itself ({error}): {AFRESH}")
        return False
    except Exception as error:  # a broken installation can raise anything
        tell("problem", f"{name} cannot be imported ({type(error).__name__}: {error}): {AFRESH}")
        return False
    return True


def gpus():
    """Which backend runs will use: what `pp_lab.Lab` decides, in words."""
    import torch

    tell("begin", "looking for GPUs")
    if torch.cuda.is_available():
        count = torch.cuda.device_count()
        names = ", ".join(sorted({torch.cuda.get_device_name(k) for k in range(count)}))
        tell("ok", f"{count} GPU ({names}): NCCL for runs of up to {count} ranks, else gloo on CPU")
    elif shutil.which("nvidia-smi"):
        tell(
            "note",
            f"torch {torch.__version__} does not see this machine's GPU: gloo on the CPU. "
            "For NCCL, install the CUDA build that pytorch.org's Get started names",
        )
    else:
        tell("ok", "no GPU for torch: all runs use gloo on the CPU")


def pipeline():
    """One step of 1F1B on four processes, checked against one process."""
    import pp_lab

    tell("begin", "a step of 1F1B on four ranks")
    try:
        lab = pp_lab.Lab(stages=4, microbatches=4)
        run = lab.run(pp_lab.schedules.one_f_one_b(4, 4), timeout=SECONDS)
        score = lab.check(run)
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        tell(
            "problem",
            f"four ranks did not finish a step: {reason}. Without a remedy there, {AFRESH}",
        )
        return
    if score.passed:
        tell("ok", f"four ranks, one step of 1F1B, every gradient right: {run.seconds:.2f} s")
    else:
        tell("problem", f"four ranks computed wrong numbers ({score.reasons[0][1]}): {AFRESH}")
