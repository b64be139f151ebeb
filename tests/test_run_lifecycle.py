"""From the first run in a kernel to its death: interrupts, kills, scripts, several kernels.

Each test runs a script of its own, which is what a kernel is to its ranks; conftest.py checks
after every test that no process is left.
"""

import ctypes
import mmap
import os
import platform
import re
import signal
import subprocess
import sys
import time

import psutil
import pytest

SLOW = """
import time, torch, pp_lab as pp
lab = pp.Lab(3, 2)
def program(rank):
    {busy}
print("go", flush=True)
lab.run(program)
"""
BUSY = {
    "in Python": "while True: pass",
    "in C, holding the lock": "sum(iter(int, 1))",
    "waiting": "rank.recv_forward(0) if rank.index else time.sleep(100)",
}


def start(tmp_path, code, **arguments):
    script = tmp_path / "script.py"
    script.write_text(code)
    return subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        **arguments,
    )


def wait_for_ranks(process, number):
    """Wait until `number` processes are forked from the server."""
    limit = time.monotonic() + 30
    while time.monotonic() < limit:
        children = psutil.Process(process.pid).children(recursive=True)
        ranks = [c for c in children if c.ppid() != process.pid]
        if len(ranks) == number:
            time.sleep(0.3)
            return ranks
        time.sleep(0.02)
    raise AssertionError("the ranks did not start")


@pytest.mark.parametrize("busy", BUSY)
def test_ranks_end_with_their_kernel_even_when_it_is_killed(tmp_path, busy):
    process = start(tmp_path, SLOW.format(busy=BUSY[busy]))
    ranks = wait_for_ranks(process, 3)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    gone, alive = psutil.wait_procs(ranks, timeout=5)
    assert not alive


@pytest.mark.parametrize(
    ("busy", "group"), [("in Python", True), ("in C, holding the lock", True), ("waiting", False)]
)
def test_interrupt_ends_the_run_and_says_where_everybody_was(tmp_path, busy, group):
    """A notebook interrupts the whole process group, a terminal too; a debugger only one."""
    process = start(tmp_path, SLOW.format(busy=BUSY[busy]))
    ranks = wait_for_ranks(process, 3)
    if group:
        os.killpg(process.pid, signal.SIGINT)
    else:
        process.send_signal(signal.SIGINT)
    output = process.communicate(timeout=10)[0]
    assert re.search("the run was stopped, and its processes with it. rank 0 was ", output)
    assert not psutil.wait_procs(ranks, timeout=5)[1]


def test_interrupt_while_the_server_starts_leaves_nothing_and_the_next_run_works(tmp_path):
    process = start(
        tmp_path,
        """
import signal, os, threading, pp_lab as pp
from programs import gpipe
lab = pp.Lab(2, 2)
threading.Timer(0.05, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
try:
    lab.run(gpipe)
    raise SystemExit("not interrupted")
except KeyboardInterrupt as error:
    print("stopped:", error)
print("score", repr(lab.check(lab.run(gpipe))))
""",
        env={**os.environ, "PYTHONPATH": os.path.dirname(__file__)},
    )
    output = process.communicate(timeout=60)[0]
    assert "stopped: the run was stopped" in output, output
    assert "score 1" in output


def test_a_script_without_a_main_guard_runs_once_and_ships_its_functions(tmp_path):
    process = start(
        tmp_path,
        """
import pp_lab as pp
print("script runs")
SCALE = 2
def helper(rank, i):
    print("micro-batch", SCALE * i)
def program(rank):
    for i in range(rank.microbatches):
        rank.send_forward(i, rank.forward(i, rank.recv_forward(i)))
    for i in range(rank.microbatches):
        helper(rank, i)
        rank.send_backward(i, rank.backward(i, rank.recv_backward(i)))
lab = pp.Lab(2, 2)
print("score", repr(lab.check(lab.run(program))))
""",
    )
    output = process.communicate(timeout=60)[0].splitlines()
    # In the order of the ranks' clocks.
    shown = [line for line in output if "rank server" not in line]
    assert shown == [
        "script runs",
        "[rank 0] micro-batch 0",
        "[rank 1] micro-batch 0",
        "[rank 1] micro-batch 2",
        "[rank 0] micro-batch 2",
        "score 1",
    ]
    assert sum("starting the rank server" in line for line in output) == 1


def test_two_kernels_at_once_do_not_meet(tmp_path):
    code = """
import pp_lab as pp
from programs import one_f_one_b
lab = pp.Lab(3, 4, seed={seed})
for _ in range(5):
    assert lab.check(lab.run(one_f_one_b)) == 1
print("fine")
"""
    both = []
    for seed in (1, 2):
        folder = tmp_path / str(seed)
        folder.mkdir()
        both.append(
            start(
                folder,
                code.format(seed=seed),
                env={**os.environ, "PYTHONPATH": os.path.dirname(__file__)},
            )
        )
    assert all(process.communicate(timeout=60)[0].endswith("fine\n") for process in both)


def test_a_kernel_that_has_computed_with_many_threads_can_run(tmp_path):
    process = start(
        tmp_path,
        """
import torch, pp_lab as pp
from programs import gpipe
a = torch.randn(600, 600)
(a @ a).sum()
lab = pp.Lab(2, 2)
print("score", repr(lab.check(lab.run(gpipe))))
""",
        env={**os.environ, "PYTHONPATH": os.path.dirname(__file__)},
    )
    assert "score 1" in process.communicate(timeout=60)[0]


def test_runs_in_a_row_leave_no_file_descriptors(tmp_path):
    process = start(
        tmp_path,
        """
import os, pp_lab as pp
from programs import gpipe
lab = pp.Lab(2, 1)
lab.run(gpipe)
before = len(os.listdir("/dev/fd"))
for _ in range(20):
    lab.run(gpipe)
print("more:", len(os.listdir("/dev/fd")) - before)
""",
        env={**os.environ, "PYTHONPATH": os.path.dirname(__file__)},
    )
    assert "more: 0" in process.communicate(timeout=60)[0]


def test_the_server_is_lean_and_starts_no_threads():
    code = """
import os, resource, torch
import pp_lab.run.worker
before, state = len(os.listdir("/proc/self/task")), torch.random.get_rng_state()
import pp_lab.run.preload
pp_lab.run.preload.rehearse()
assert state.equal(torch.random.get_rng_state())
print(len(os.listdir("/proc/self/task")) - before)
with open("/proc/self/smaps_rollup") as file:
    size = {line.split(":")[0]: int(line.split()[1]) for line in file if "kB" in line}
print(size["AnonHugePages"] / size["Anonymous"])
for _ in range(3):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    tensors = [torch.ones(2 << 20) for _ in range(3)]
    del tensors
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
    if not os.path.exists("/proc/self/smaps_rollup"):
        pytest.skip("not Linux")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    threads, huge, faults = done.stdout.splitlines()
    assert threads == "0", "what is forked would be without them"
    if platform.libc_ver()[0] == "glibc":
        assert int(faults) < 600, "of 6144 pages: what is freed stays for the next step"
    if not _collapses():
        pytest.skip("this Linux has no huge pages to collapse into")
    assert float(huge) > 0.5


def _collapses():
    """Whether the operating system puts memory into a huge page when asked to."""
    huge = 2 << 20
    memory = mmap.mmap(-1, 2 * huge, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.write(bytes(2 * huge))
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    first = -(-start // huge) * huge
    return ctypes.CDLL(None).madvise(ctypes.c_void_p(first), ctypes.c_size_t(huge), 25) == 0
