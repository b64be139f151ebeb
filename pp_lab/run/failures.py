"""What goes wrong in a run, in one sentence: which rank, at which op, who waits for whom."""

import linecache
import os
import re
import signal
import sys
import types
from dataclasses import dataclass

from ..schedule.errors import LabError

OURS = os.path.dirname(os.path.dirname(__file__))


class RunError(LabError, RuntimeError):
    """A run on real processes failed. `reason` is the explanation, `rank` the culprit's index
    (None where it is not one rank)."""

    def __init__(self, reason, rank=None, picture=""):
        super().__init__(f"{reason}\n{picture}" if picture else reason)
        self.reason, self.rank = reason, rank


class NotAttempted(RunError):
    """The learner's function is still the stub that raises NotImplementedError."""


class RunInterrupted(KeyboardInterrupt):
    """The run was interrupted; its processes are gone."""

    def _render_traceback_(self):
        return [f"Interrupted: {self}"]


class StepError(RuntimeError):
    """A rank program asked for something that makes no sense; the text says what."""


class TransportError(RuntimeError):
    """A message that is not what the receiver declared, or a request that was misused."""


@dataclass
class Waiting:
    """What a rank says while it waits: for which request (verb, peer, tag, what), in which
    call, which requests it has open, and what it has done so far."""

    request: tuple
    place: str
    outstanding: list
    done: list


def deadlock(waits, tags):
    """(sentence, rank, picture) if the ranks wait for each other for ever, else None.

    waits: for each rank a `Waiting`, or "done". A wait is hopeless when the other side has
    not posted the counterpart: with everybody waiting, nobody ever will.
    """
    stuck = {rank: w for rank, w in enumerate(waits) if w != "done"}
    if not stuck or any(_answered(rank, waits, tags) for rank in stuck):
        return None
    # From a rank to the one that it waits for: to a rank that has ended, or round in a circle.
    rank, path = min(stuck), []
    while rank in stuck and rank not in path:
        path.append(rank)
        rank = _waits_for(rank, waits)
    picture = "\n".join(
        f"  rank {r}: {' '.join(w.done) or '(nothing yet)'}  ! {w.place}"
        if w != "done"
        else f"  rank {r}: has ended"
        for r, w in enumerate(waits)
    )
    if rank not in stuck:
        last = path[-1]
        w = stuck[last]
        verb = w.request[0]
        lack = {"isend": "receiving", "irecv": "sending"}.get(verb, "calling")
        return (
            f"rank {last} waits {w.place} {_for(w, rank)}, but rank {rank} has ended "
            f"without {lack} it",
            last,
            picture,
        )
    cycle = path[path.index(rank) :]
    text = (
        "deadlock: "
        + "; ".join(
            f"rank {r} waits {stuck[r].place} {_for(stuck[r], _waits_for(r, waits))}" for r in cycle
        )
        + ". Nobody can go on"
    )
    verbs = {stuck[r].request[0] for r in cycle}
    if verbs == {"isend"}:
        text += (
            ". A send ends only when the other side receives, and all of these send first: "
            "one must receive first, or send and receive at once "
            "(send_forward_recv_backward and send_backward_recv_forward)"
        )
    elif verbs == {"irecv"}:
        text += ". All of these receive first, and nobody has sent"
    return text, cycle[0], picture


def _waits_for(rank, waits):
    """The rank whose turn it is; in a collective, the first that is not in it."""
    _, peer, _, members = request = waits[rank].request
    if peer is not None:
        return peer
    return next((m for m in members if waits[m] == "done" or waits[m].request != request), rank)


def _answered(rank, waits, tags):
    """True if the other side has posted what this rank waits for, so that it will go on."""
    verb, peer, tag, _ = waits[rank].request
    if peer is None:
        return _waits_for(rank, waits) == rank
    if waits[peer] == "done":
        return False
    mine = [r for r in waits[rank].outstanding if r[:2] == (verb, peer)]
    counterpart = "irecv" if verb == "isend" else "isend"
    theirs = [r for r in waits[peer].outstanding if r[:2] == (counterpart, rank)]
    if tags:
        mine, theirs = ([r for r in side if r[2] == tag] for side in (mine, theirs))
    return len(theirs) > mine.index(waits[rank].request)


def _for(waiting, peer):
    verb, _, _, what = waiting.request
    return {
        "isend": f"for rank {peer} to receive {what}",
        "irecv": f"for {what} from rank {peer}",
    }.get(verb, f"for rank {peer} to join in")


IN_PLACE = ("all_reduce", "recv", "all_to_all_single")  # as in torch.distributed


def exception(first, failures, job):
    """A rank raised: the learner's own lines, once."""
    failure = failures[first]
    others = [
        i
        for i, f in failures.items()
        if i != first and (f["type"], f["text"]) == (failure["type"], failure["text"])
    ]
    also = f" (and ranks {', '.join(map(str, others))} likewise)" if others else ""
    if failure["unsolved"]:
        name = failure["frames"][-1][2]
        return f"{name} is not written yet: it raises NotImplementedError", first, ""
    said = failure["text"] if failure["ours"] else f"{failure['type']}: {failure['text']}"
    call = failure["place"].removeprefix("after ").partition("(")[0]
    if "NoneType" in said and call in IN_PLACE:
        said += f". {call} returns None: it fills the tensor that it is given"
    return (
        f"rank {first}{also}, {failure['place']}: {said}",
        first,
        _frames(failure["frames"], job),
    )


def _frames(frames, job):
    """The learner's frames, as a traceback."""
    return "\n".join(line for frame in frames for line in _line(*frame[:3], job))


def _line(filename, number, name, job):
    """Where a line of the learner's stands, and its text; nothing for a line of anybody else's."""
    if filename == "<dynamic-code>":  # what cloudpickle shipped has lost its file's name
        filename = _file_of(job, name, number)
    theirs = os.path.dirname(sys.modules["torch"].__file__)
    if filename.startswith((OURS, theirs)) or "cloudpickle" in filename:
        return []
    where = "notebook cell" if "ipykernel_" in filename else filename
    text = linecache.getline(filename, number).strip()
    return [f"  {where}, line {number}, in {name}"] + ([f"    {text}"] if text else [])


def _file_of(job, name, number):
    """The file of the function called `name`: one of the job's, or one that these use."""
    functions = [job.program, *(step for _, step in job.steps)]
    for function in functions[:]:
        functions += getattr(function, "__globals__", {}).values()
        functions += (cell.cell_contents for cell in getattr(function, "__closure__", None) or ())
    codes = [f.__code__ for f in functions if isinstance(f, types.FunctionType)]
    while codes:
        code = codes.pop(0)
        if code.co_name == name and any(line == number for *_, line in code.co_lines()):
            return code.co_filename
        codes += [c for c in code.co_consts if isinstance(c, types.CodeType)]
    return "your code"


def death(rank, code, folder):
    """A rank process is gone without a word."""
    place = status(folder, rank)
    if code is not None and code < 0:
        name = signal.Signals(-code).name
        text = f"rank {rank} was killed by {name} {place}"
        if name == "SIGKILL":
            text += ". Somebody killed it, or the operating system did, being out of memory"
    else:
        text = f"rank {rank} ended with exit code {code} {place}, without a Python exception"
    try:
        with open(os.path.join(folder, f"stderr{rank}"), errors="replace") as file:
            said = [line.strip() for line in file if line.strip()]
    except OSError:
        said = []
    return text, rank, "\n".join(f"  it said: {line}" for line in said[-3:])


def too_long(job, waits, stacks):
    """The time limit: where is everybody?"""
    busy = [r for r, w in enumerate(waits) if w is None]
    culprit = busy[0] if busy else None
    text = f"the run took longer than its limit of {job.timeout:g} s and was ended"
    if culprit is not None:
        text += (
            f": rank {culprit} is still at work, {status(job.folder, culprit)}. "
            "An endless loop? Give lab.run(…, timeout=seconds) if it only needs longer"
        )
    lines = []
    for rank, w in enumerate(waits):
        if w == "done":
            lines.append(f"  rank {rank}: has ended")
        elif w is None:
            lines.append(
                f"  rank {rank}: at work {status(job.folder, rank)}"
                + (f", {stacks[rank]}" if stacks.get(rank) else "")
            )
        else:
            lines.append(f"  rank {rank}: waits {w.place} {_for(w, w.request[1])}")
    return text, culprit, "\n".join(lines)


def unwaited(rank, requests):
    """A program ended with requests that nobody waited for."""
    more = f" and {len(requests) - 1} more" if len(requests) > 1 else ""
    return (
        f"rank {rank} ended, but never waited for its {requests[0].strip('<>')}{more}. A "
        "transfer is complete only after its request's wait(): until then nothing may have "
        "been sent or received",
        rank,
        "",
    )


def status(folder, rank):
    """The last call that a rank made, also when it is dead: it leaves this in a file."""
    try:
        with open(os.path.join(folder, f"status{rank}"), "rb") as file:
            return file.read().split(b"\0")[0].decode(errors="replace") or "at its start"
    except OSError:
        return "at its start"


def stack(job, rank):
    """The learner's line that a rank was in when it was asked, or None."""
    try:
        with open(os.path.join(job.folder, f"stack{rank}"), errors="replace") as file:
            frames = re.findall(r'File "(.+)", line (\d+) in (\S+)', file.read())
    except OSError:
        return None
    for filename, number, name in frames:
        line = _line(filename, int(number), name, job)
        if line and "/lib/python" not in filename:
            return " ".join(part.strip() for part in line)
    return None
