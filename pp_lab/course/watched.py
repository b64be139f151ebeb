"""Modules that watch how they are run, for the checks of lab 5.

A learner's step may run where nothing of it is seen but its results. So it is the layers that
look, in the ranks: whether they run without recording at first, and recorded and with the same
dropout the second time, and whether a stage's output was let go of before its backward. Where
something is wrong they raise StepError, which says what. In the single process of the reference,
where nobody computes again or lets go of anything, they are ordinary modules.
"""

import weakref

import torch
import torch.distributed as dist
from torch import nn

from ..run.failures import StepError
from ..run.transformer import Layer


class Watched(Layer):
    """A `Layer` that knows what has run in it before. `first`: of each input that a first run had,
    where the random stream stood; `after`: where the last first run left the stream."""

    def __init__(self, *arguments, **named):
        super().__init__(*arguments, **named)
        self.first, self.after = {}, None

    def watched(self, what, run, *inputs):
        """Run `what`: first without recording, then once more, recorded, with the same dropout."""
        key, recorded = _content(inputs[0]), torch.is_grad_enabled()
        if key not in self.first:
            if recorded:
                raise StepError(
                    f"the first run of {what} is recorded, so autograd keeps all that is in it. "
                    "Run it inside your autograd.Function's forward, or under torch.no_grad()"
                )
            self.first[key] = self.stream.get_state()
        elif not recorded:
            raise StepError(
                f"the second run of {what} is not recorded, so nothing leads back to its weights. "
                "A backward runs with recording off: turn it on with torch.enable_grad()"
            )
        elif not torch.equal(self.first[key], self.stream.get_state()):
            raise StepError(
                f"in the second run of {what} the random stream is not where it was in the first, "
                "so dropout would drop other numbers. Keep stream.get_state() in the forward, "
                "and set it again before the second run"
            )
        return run(*inputs)

    def untouched(self):
        """A first run has to find the stream where the first run before it left it."""
        if self.after is not None and not torch.equal(self.after, self.stream.get_state()):
            raise StepError(
                "a forward finds the random stream elsewhere than the forward before it left it: "
                "after the second run, put the stream back where you found it"
            )


class RunAgain(Watched):
    """A layer for full recompute: the whole of it is to run twice."""

    def forward(self, x, core=None):
        if not dist.is_initialized():
            return super().forward(x, core)
        again = _content(x) in self.first
        if not again:
            self.untouched()
        y = self.watched("a layer", super().forward, x)
        if not again:
            self.after = self.stream.get_state()
        return y


class CoreAgain(Watched):
    """A layer for selective recompute: its core is to run twice, and all the rest once."""

    def forward(self, x, core=None):
        if not dist.is_initialized():
            return super().forward(x, core)
        key = _content(x)
        if key in self.first:
            raise StepError(
                "a whole layer runs twice. Only its core should: the rest is expensive to compute "
                "and cheap to keep"
            )
        if not torch.is_grad_enabled():
            raise StepError(
                "a layer runs without recording. Only its core should: pass one that runs without, "
                "layer(x, core=…)"
            )
        self.untouched()
        self.first[key] = None
        y = super().forward(x, core)
        self.after = self.stream.get_state()
        return y

    def core(self, q, k, v):
        run = super().core
        return self.watched("a core", run, q, k, v) if dist.is_initialized() else run(q, k, v)


def _content(tensor):
    """What a tensor holds, whichever object it is."""
    return tensor.detach().cpu().contiguous().numpy().tobytes()


class Sent(nn.Module):
    """The end of a stage: what it gives must be let go of before its backward."""

    def forward(self, x):
        return _Sent.apply(x) if dist.is_initialized() and torch.is_grad_enabled() else x.clone()


class _Sent(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.clone()
        ctx.output, ctx.shape = weakref.ref(y), y.shape
        return y

    @staticmethod
    def backward(ctx, dy):
        y = ctx.output()
        if y is not None and y.untyped_storage().nbytes() > y.element_size():
            raise StepError(
                f"when its backward comes, a stage's output still holds "
                f"{y.untyped_storage().nbytes()} bytes: free has to let go of what y itself "
                "holds. Other names, and other tensors, are not y"
            )
        if dy.shape != ctx.shape:
            raise StepError(
                f"the backward starts from a gradient of shape {list(dy.shape)}, but the stage "
                f"gave {list(ctx.shape)}: dy is what the next stage sent, whatever y has become"
            )
        return dy
