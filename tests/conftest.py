"""What all tests share: no test, and no lab under test, may leave a process behind."""

import os
import time

import psutil
import pytest

# These take many minutes on two cores, and a rank server of their own: `make grading`.
collect_ignore = (
    [] if "PP_LAB_GRADING" in os.environ else ["test_grade_command.py", "test_grade_verdicts.py"]
)

# Inherited by whatever the tests start, kernels and their rank processes included, so that
# these are found by process id even when their parents are gone.
TOKEN = f"pp-lab-tests-{os.getpid()}"
os.environ["PP_LAB_TESTS"] = TOKEN
STARTED = psutil.Process().create_time()
GRACE = 5.0  # seconds in which a process that was told to end has to be gone


def descendants():
    """{process id: process} of all that was started below these tests and still lives."""
    found = {}
    for process in psutil.process_iter():
        try:
            if process.create_time() < STARTED:  # cheap, and true of most
                continue
            marked = process.environ().get("PP_LAB_TESTS") == TOKEN
            if marked and process.status() != psutil.STATUS_ZOMBIE:
                found[process.pid] = process
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def left_behind():
    """Rank processes, and servers of ranks whose own parent is gone.

    The server of a living process may stay: it is what makes the next run quick.
    """
    alive, left = descendants(), []
    for process in alive.values():
        try:
            if not of_multiprocessing(process):
                continue
            parent = process.ppid()
            orphan = parent != os.getpid() and parent not in alive
            if orphan or parent in alive and of_multiprocessing(alive[parent]):
                left.append(
                    f"process {process.pid}, child of {parent}: {process.cmdline()[-1][:80]}"
                )
        except psutil.NoSuchProcess:
            continue
    return left


def of_multiprocessing(process):
    """A rank, or the server from which ranks are forked: both have the server's command line."""
    return "multiprocessing" in " ".join(process.cmdline())


def still_left():
    """What is left behind after the time of grace."""
    limit = time.monotonic() + GRACE
    while (left := left_behind()) and time.monotonic() < limit:
        time.sleep(0.05)
    return left


@pytest.fixture(autouse=True)
def no_process_is_left_behind():
    yield
    left = still_left()
    assert not left, "left behind:\n" + "\n".join(left)


def pytest_sessionfinish(session):
    """The notebooks that nbval ran are held to the same rule."""
    left = still_left()
    if left:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        session.config.get_terminal_writer().line("left behind:\n" + "\n".join(left))
