"""What time it is on a rank: declared, measured, or paced."""

import statistics
import time
from collections import deque

import torch


class Clock:
    """What all clocks have: when an op starts and stops, and what travels with a message."""

    def begin(self, zero):
        """The run begins at `zero` of the machine's clock."""

    def stamp(self, peer):
        """When a message to `peer` is over its link, to travel with it; None where no clock says
        so."""
        return None

    def arrived(self, stamp):
        """A message with this stamp has arrived."""

    cost = None  # declared durations, where there are any
    links = {}  # peer -> the (start, end) of the messages on the link to it

    def turn(self, item, start):
        """Wait until this rank may compute, within the item that began at `start`."""

    def stop(self, item, start):
        """The item that began at `start` is done; returns when it ends."""
        return self.after(start, self.cost and self.cost.of(item))

    def settled(self, items):
        """The (item, start, end) of the whole run, as numbers."""
        return items


def _over(link, now, takes):
    """Send a message over a link, which carries one at a time; returns when it is over."""
    start = max(now, link[-1][1]) if link else now
    link.append((start, start + takes))
    return start + takes


class VirtualClock(Clock):
    """A Lamport clock with durations: work is real, time is declared.

    Each op takes what the cost model says, and a message is there `cost.comm` after the
    sender had it. So a timeline does not depend on the machine, however few cores it has.
    """

    def __init__(self, cost):
        self.cost, self.now = cost, 0
        self.links = {}

    def stamp(self, peer):
        return _over(self.links.setdefault(peer, []), self.now, self.cost.link)

    def arrived(self, stamp):
        self.now = max(self.now, stamp + self.cost.comm)

    def start(self):
        return self.now

    def after(self, start, duration):
        self.now = start + duration
        return self.now


class WallClock(Clock):
    """Seconds since `zero`, a moment of the machine's clock at which all ranks begin."""

    zero = 0.0

    def begin(self, zero):
        self.zero = zero
        time.sleep(max(0.0, zero - time.monotonic()))

    @property
    def now(self):
        return self.start()

    def start(self):
        return time.monotonic() - self.zero

    def after(self, start, duration):
        return time.monotonic() - self.zero


class PaceClock(WallClock):
    """Real time in which each op is stretched to `unit` seconds per unit of cost.

    Ranks then overlap as they would with a processor each, also on two cores. A message is
    there `cost.comm` units after it was sent, or later. Times are given in units of cost, so
    that they compare with a prediction.

    turn: of 0 to 1, when this rank computes within an op. Ops of several ranks begin at the same
    moment; if their ranks also computed at the same moment, those that share a core would hold
    each other's messages up.
    """

    def __init__(self, cost, unit, turn=0.0):
        self.cost, self.unit, self._turn = cost, unit, turn
        self.links = {}
        self._late = deque(maxlen=9)  # by how many seconds the last sleeps were

    def start(self):
        return super().start() / self.unit

    def stamp(self, peer):
        # All processes of a machine share this clock; where messages take no time, none is kept.
        if not (self.cost.comm or self.cost.link):
            return None
        now = (time.monotonic() - self.zero) / self.unit
        over = _over(self.links.setdefault(peer, []), now, float(self.cost.link))
        return self.zero + over * self.unit

    def arrived(self, stamp):
        if stamp is not None:
            self._sleep_until(stamp + float(self.cost.comm) * self.unit)

    def turn(self, item, start):
        self._sleep_until(self.zero + (start + self._turn * float(self.cost.of(item))) * self.unit)

    def after(self, start, duration):
        self._sleep_until(self.zero + (start + float(duration)) * self.unit)
        return self.start()

    def _sleep_until(self, end):
        """Sleep until `end` of the machine's clock, never less. A sleep is late by what the machine
        takes to wake up: it is asked to end that much earlier, and what is left is waited out."""
        wake = end - (statistics.median(self._late) if self._late else 0.0)
        if wake > time.monotonic():
            time.sleep(wake - time.monotonic())
            self._late.append(time.monotonic() - wake)
        while time.monotonic() < end:
            pass


class CudaClock(WallClock):
    """Seconds as the GPU's stream sees them: an op is there from when its first kernel starts.

    The host only enqueues work, so its own clock would measure nothing. Needs a GPU, and has
    not been tried on one.
    """

    def begin(self, zero):
        torch.cuda.synchronize()
        super().begin(zero)
        self.first = self._mark()

    def start(self):
        return self._mark()

    def after(self, start, duration):
        return self._mark()

    @property
    def now(self):
        return time.monotonic() - self.zero

    def settled(self, items):
        torch.cuda.synchronize()
        return [
            (item, *(self.first.elapsed_time(mark) / 1000 for mark in marks))
            for item, *marks in items
        ]

    def _mark(self):
        mark = torch.cuda.Event(enable_timing=True)
        mark.record()
        return mark
