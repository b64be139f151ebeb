"""Streams and events with CUDA's meaning, on a GPU or on threads.

A stream runs what is enqueued in order, beside the one who enqueues it. `stream.record(event)`
marks a point in it; what is enqueued after `other.wait(event)` starts only when that point has
been reached. An event that was never recorded holds nobody up; one that is recorded again marks
the new point, and who waits already waits for the old one.
"""

import queue
import threading

import torch


class Event:
    """A point in a stream, once it has been recorded."""

    point = None


class Stream:
    """A stream on the CPU: a thread that does one thing after the other."""

    def __init__(self, name="stream"):
        self.name, self._queue = name, queue.SimpleQueue()
        self.failure = None
        threading.Thread(target=self._work, name=name, daemon=True).start()

    def enqueue(self, work, *arguments):
        """Have `work(*arguments)` done when all that was enqueued before is done."""
        self._queue.put((work, arguments))

    def record(self, event):
        event.point = threading.Event()
        self.enqueue(event.point.set)

    def wait(self, event):
        if event.point is not None:
            self.enqueue(event.point.wait)

    def follow(self):
        """Let what is enqueued from now on start after what the caller itself has done."""

    def reached(self, event, seconds):
        """Whether a point of this stream is reached, within some seconds; raises the first
        exception of what the stream did."""
        done = event.point.wait(seconds)
        if self.failure is not None:
            raise self.failure
        return done

    def _work(self):
        torch.set_num_threads(1)
        while True:
            work, arguments = self._queue.get()
            # After a failure only events pass, so that nobody waits for what will never be.
            if self.failure is not None and not isinstance(
                getattr(work, "__self__", None), threading.Event
            ):
                continue
            try:
                work(*arguments)
            except BaseException as error:
                self.failure = error


class CudaStream:
    """The same on a GPU, where the host enqueues kernels and goes on. Not tried on one yet.

    priority: -1 lets a short all-to-all go before compute that was enqueued earlier
    """

    def __init__(self, name="stream", device=None, priority=0):
        self.name = name
        self._stream = torch.cuda.Stream(device, priority=priority)

    def enqueue(self, work, *arguments):
        with torch.cuda.stream(self._stream):
            work(*arguments)

    def record(self, event):
        event.point = torch.cuda.Event()
        event.point.record(self._stream)

    def wait(self, event):
        if event.point is not None:
            self._stream.wait_event(event.point)

    def follow(self):
        self._stream.wait_stream(torch.cuda.current_stream())

    def reached(self, event, seconds):
        event.point.synchronize()
        return True


def stream(name, device, priority=0):
    """A stream for tensors on `device`."""
    if device.type == "cuda":
        return CudaStream(name, device, priority)
    return Stream(name)


def finish(streams, pause=0.02):
    """Return when all streams have done their work; raise as soon as one of them has failed,
    while others may wait for it."""
    ends = [Event() for _ in streams]
    for one, end in zip(streams, ends, strict=True):
        one.record(end)
    while not all([one.reached(end, pause) for one, end in zip(streams, ends, strict=True)]):
        pass
