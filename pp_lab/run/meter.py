"""How many bytes a rank holds for its backwards, op by op, on a real run.

Saved-tensor hooks see what autograd keeps. Every storage counts once, as long as it is there; what
a rank has anyway, weights and data, does not. A stage's input counts too, and its output.
"""

import contextlib
from dataclasses import dataclass

import torch
from torch.multiprocessing.reductions import StorageWeakRef


@dataclass(frozen=True)
class Meter:
    """What is counted, for `Lab.run(…, meter=…)`.

    outputs: what a stage gave to the next one, until its backward has run
    again: what a backward computes a second time, while that lives
    """

    outputs: bool = True
    again: bool = True


class Reading:
    """The meter of one rank. In `of`, for each op the most bytes that the rank held while it ran,
    and the bytes that it held after it."""

    def __init__(self, rank, meter):
        self.counts, self.of, self.highest = meter, {}, 0
        self._alive = {}  # address -> (stage and micro-batch, storage, its size)
        self._outputs = {}  # (stage, micro-batch) -> y
        held_anyway = [*(rank._inputs or ()), *(rank._targets or ())]
        for module in rank.modules.values():
            held_anyway += module.parameters()
        self._anyway = {t.untyped_storage().data_ptr() for t in held_anyway}

    def begin(self):
        """An op begins."""
        self.highest = self._now()

    def end(self, op, over):
        """The op has ended; over: whether the rank is done with its stage and micro-batch."""
        if over:
            key = op[1:]
            self._alive = {at: kept for at, kept in self._alive.items() if kept[0] != key}
        if op.kind != "F":
            self._outputs.pop(op[1:], None)
        self.of[op] = self.highest, self._now()

    def given(self, op, x):
        """A stage's input, as a tensor of its own: the first stage's is a view of the batch."""
        return x.detach().clone() if op.stage == 0 else x

    @contextlib.contextmanager
    def forward(self, op, x):
        """Count what autograd keeps of a forward, and its input. In a backward it runs again."""
        counts = op.kind == "F" or self.counts.again
        with self._hooks(op, counts):
            yield
        self.add(op, x)
        if counts:
            self._look()

    def backward(self, op):
        """Count what a backward computes again inside itself, as autograd functions may."""
        return self._hooks(op, self.counts.again)

    def gave(self, op, y):
        """A stage has given y to the next one."""
        if self.counts.outputs:
            self._outputs[op[1:]] = y
            self._look()

    def add(self, op, tensor):
        """From now on a tensor counts, as long as its storage is there."""
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._anyway:
            self._alive[storage.data_ptr()] = op[1:], StorageWeakRef(storage), storage.nbytes()

    def _hooks(self, op, on):
        def pack(tensor):
            self.add(op, tensor)
            self._look()
            return tensor

        if not on:
            return contextlib.nullcontext()
        return torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)

    def _look(self):
        self.highest = max(self.highest, self._now())

    def _now(self):
        self._alive = {at: kept for at, kept in self._alive.items() if not kept[1].expired()}
        sizes = {at: size for at, (*_, size) in self._alive.items()}
        for y in self._outputs.values():  # what they hold now: a message may hold on for longer
            sizes[y.untyped_storage().data_ptr()] = y.untyped_storage().nbytes()
        return sum(sizes.values())

    def steps(self, items):
        """[(time, bytes held from then on)] for a rank's (item, start, end)."""
        found = []
        for item, start, end in items:
            seen = [self.of[op] for op in item.parts if op in self.of]
            if seen:
                found += [(start, max(most for most, _ in seen)), (end, seen[-1][1])]
        return found
