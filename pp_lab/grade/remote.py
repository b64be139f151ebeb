"""The learner's side: a stand-in for the rank that their program runs on."""

import torch

from ..run.failures import StepError, TransportError
from ..run.rank import Rank

# What a program may ask its rank to do. All of it happens in the rank's own process.
ASKED = (
    "forward", "backward", "recv_forward", "send_forward", "recv_backward", "send_backward",
    "send_forward_recv_backward", "send_backward_recv_forward", "send", "gradients",
    "set_gradients",
)  # fmt: skip

THE_RANK = {"rank": True}  # stands for the rank among the arguments of a call


class RemoteRank(Rank):
    """A rank as a learner's function sees it: a copy, for what needs no other process; the
    rest it asks of the rank itself."""

    def __init__(self, rank, wire):
        self.__dict__.update(rank.__dict__, transport=None, clock=None, groups=None)
        self._wire = wire

    def at(self, copy, stage, microbatch):
        """Be where the rank is: what is random in a stage depends on its micro-batch."""
        self.copy, self._stage = copy, stage
        self.module.microbatch = microbatch

    def grads(self):
        # Clones, since a gradient that is added to stays the same tensor.
        return [None if p.grad is None else p.grad.clone() for p in self.module.parameters()]

    def ask(self, what, *arguments, **named):
        self._wire.send({"ask": what, "arguments": list(arguments), "named": named})
        reply = self._wire.receive()
        if "failed" in reply:
            kind, text = reply["failed"]
            ours = {"StepError": StepError, "TransportError": TransportError}
            error = ours.get(kind, RuntimeError)(text)
            error._request = reply["request"]
            raise error
        return reply["value"]

    @property
    def now(self):
        return self.ask("now")

    def isend(self, tensor, dst, tag=0):
        return RemoteRequest(self, self.ask("isend", tensor, dst, tag), None)

    def irecv(self, tensor, src, tag=0):
        return RemoteRequest(self, self.ask("irecv", tensor, src, tag), tensor)

    def recv(self, tensor, src, tag=0):
        _fill(tensor, self.ask("recv", tensor, src, tag))

    def all_reduce(self, tensor, group=None, async_op=False):
        reply = self.ask("all_reduce", tensor, group, async_op)
        if async_op:
            return RemoteRequest(self, reply, tensor)
        _fill(tensor, reply)

    def all_to_all_single(self, output, *rest, **named):
        _fill(output, self.ask("all_to_all_single", output, *rest, **named))


def _asking(name):
    def method(self, *arguments, **named):
        return self.ask(name, *arguments, **named)

    method.__name__ = name
    method.__doc__ = getattr(Rank, name).__doc__
    return method


for _name in ASKED:
    setattr(RemoteRank, _name, _asking(_name))


class RemoteRequest:
    """A request of the rank's own; its tensor is filled by wait()."""

    def __init__(self, rank, number, tensor):
        self._rank, self._number, self.tensor = rank, number, tensor

    def wait(self):
        value = self._rank.ask("wait", self._number)
        if self.tensor is not None:
            _fill(self.tensor, value)
        return True

    def is_completed(self):
        return self._rank.ask("is_completed", self._number)


def _fill(tensor, values):
    with torch.no_grad():
        tensor.copy_(values)
