"""Ways to keep less for a backward: run a part of a layer without recording it, and again.

`Lab.run(…, recompute=…)` runs a whole stage again and knows nothing of random streams. These go
layer by layer, or take the attention core only, and put a `transformer.Layer`'s stream back, so
that dropout drops the same numbers in both runs.
"""

from functools import partial

import torch

KINDS = ("all", "all but the core", "inputs")


class Again(torch.autograd.Function):
    """`Again.apply(run, stream, *inputs)` gives run(*inputs), one tensor, and keeps the inputs
    only; the backward runs it once more, from the same place of the stream, and records it."""

    @staticmethod
    def forward(context, run, stream, *inputs):
        context.run, context.stream, context.state = run, stream, stream.get_state()
        context.save_for_backward(*inputs)
        return run(*inputs)

    @staticmethod
    def backward(context, dy):
        inputs = [t.detach().requires_grad_() for t in context.saved_tensors]
        now = context.stream.get_state()
        context.stream.set_state(context.state)
        with torch.enable_grad():
            y = context.run(*inputs)
        context.stream.set_state(now)
        torch.autograd.backward(y, dy)
        return None, None, *(t.grad for t in inputs)


def keeping(what):
    """A forward step for `Lab.run(…, forward_step=…)` on stages of transformer `Layer`s.

    what: is kept for the backward: "all", "all but the core" (selective recompute: the attention's
    own part is computed again), or "inputs" (full recompute, layer by layer). ValueError for
    anything else.
    """
    if what not in KINDS:
        raise ValueError(f"{what!r}: choose {', '.join(KINDS[:-1])} or {KINDS[-1]}")

    def step(rank, i, x):
        x.requires_grad_()
        for layer in rank.module:
            if what == "inputs":
                x = Again.apply(layer, layer.stream, x)
            elif what == "all":
                x = layer(x)
            else:
                x = layer(x, core=partial(Again.apply, layer.core, layer.stream))
        return rank.share(i, rank.loss(i, x)) if rank.is_last else x

    return step
