"""What a learner's process must not reach: its parent's files, the network, other processes.

These stop accidents and the usual tricks. They are no prison: code that sets out to break Python
itself needs a container around all of this.
"""

import contextlib
import ctypes
import os
import re
import resource
import signal
import sys
import sysconfig
import time

MEMORY = 2 << 30  # bytes that an answer may take beyond what Python and torch have
FILE = 16 << 20  # bytes of a file that it may write
FILES = 64  # that it may have open

_streams = []  # of the parent; closing them would tell it something


def shut(wire, sources):
    """Leave the parent's session, close its files, set the limits, then close the doors."""
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nothing, number)
    _streams.extend([sys.stdin, sys.stdout, sys.stderr])
    sys.stdin, sys.stdout, sys.stderr = sys.__stdin__, sys.__stdout__, sys.__stderr__
    start = 3
    for number in [*sorted([wire.read, wire.write]), 1 << 16]:
        os.closerange(start, number)
        start = number + 1
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGIO, signal.SIGALRM):
        signal.signal(name, signal.SIG_DFL)
    os.environ.clear()
    os.environ.update(HOME=sources.folder, TMPDIR=sources.folder, PATH="")
    os.chdir(sources.folder)
    if sys.platform == "linux":
        _leave_the_network()
        _die_with_parent()
    _limit(sources)
    sys.addaudithook(_guard(sources.folder, sources.closed))


def _limit(sources):
    seconds = max(int(sources.deadline - time.monotonic()), 1)
    limits = {
        "RLIMIT_CPU": seconds,
        "RLIMIT_FSIZE": FILE,
        "RLIMIT_NOFILE": FILES,
        "RLIMIT_CORE": 0,
        "RLIMIT_NPROC": 0,  # of this user: no further process or thread (not so for root)
    }
    with contextlib.suppress(OSError), open("/proc/self/statm") as file:
        pages = int(file.read().split()[0])
        limits["RLIMIT_AS"] = pages * resource.getpagesize() + MEMORY
    for name, value in limits.items():
        hard = value + 1 if name == "RLIMIT_CPU" else value
        with contextlib.suppress(OSError, ValueError, AttributeError):
            resource.setrlimit(getattr(resource, name), (value, hard))


def _leave_the_network():
    """A network of one's own, with nothing in it, where the system lets us have one."""
    user, network = 0x10000000, 0x40000000  # CLONE_NEWUSER, CLONE_NEWNET
    libc = ctypes.CDLL(None)
    if libc.unshare(network):
        libc.unshare(user | network)


def _die_with_parent():
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


FORBIDDEN = re.compile(
    r"socket\.|ctypes\.|subprocess\.|pty\.|syslog\.|resource\.set|sys\.(settrace|setprofile)$"
    r"|os\.(system|fork|forkpty|exec|spawn|posix_spawn|kill|killpg|setxattr|link|symlink)$"
    r"|signal\.pthread_kill$|_posixsubprocess|gc\.get_(objects|referrers)$"
)
WRITES = re.compile(r"os\.(chmod|chown|lchown|remove|rename|rmdir|mkdir|truncate|utime)$")
READS = re.compile(r"os\.(listdir|scandir|chdir|walk)$")
WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def _guard(folder, closed):
    """An audit hook, which Python code cannot take off: raises PermissionError at a door."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    readable = {package, sys.prefix, sys.base_prefix, *sysconfig.get_paths().values()}
    readable = tuple(os.path.realpath(p) for p in readable) + ("/usr/lib", "/lib", "/usr/share")
    home = (os.path.realpath(folder),)
    # What is not readable needs no lock; and a lock on what holds Python would lock all out.
    closed = [os.path.realpath(p) for p in closed]
    closed = tuple(p for p in closed if not any(f"{r}/".startswith(f"{p}/") for r in readable))
    forbidden, writes, reads = FORBIDDEN.match, WRITES.match, READS.match
    realpath, fsdecode, flags_of_writing = os.path.realpath, os.fsdecode, WRITE_FLAGS
    devices = ("/dev/null", "/dev/urandom")

    def below(path, roots):
        return any(path == root or path.startswith(root + "/") for root in roots)

    def door(event, arguments):
        if forbidden(event):
            raise PermissionError(f"the grader does not allow {event}")
        if event == "open":
            path, _, flags = arguments
            writing = flags & flags_of_writing
        elif writes(event) or reads(event):
            path, writing = arguments[0], writes(event)
        else:
            return
        if path is None or isinstance(path, int):
            return
        path = realpath(fsdecode(path))
        if path in devices or below(path, home):
            return
        if writing or below(path, closed) or not below(path, readable):
            what = "written" if writing else "read"
            raise PermissionError(f"the grader does not allow {path} to be {what}")

    return door
