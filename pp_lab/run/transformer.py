"""A transformer layer of teaching size, in one process, and a lab made of such layers.

    h = x + drop(proj(core(q, k, v)))        q, k, v = qkv(norm1(x)), for each head
    y = h + drop(down(gelu(up(norm2(h)))))

Its dropout draws from a stream of random numbers of its own, as Megatron's tracker has one: every
call moves the stream on, so whoever runs a part again has to set it back first (recompute.py).
"""

import torch
from torch import nn

from .lab import Lab


class Layer(nn.Module):
    """One layer, [rows, sequence, h] to the same shape, float64.

    h: hidden width, a multiple of `heads`; dropout: the share of numbers that are dropped, from 0
    to below 1; seed: of the weights and of the dropout, both drawn from `stream`.
    """

    def __init__(self, h=16, heads=2, dropout=0.1, seed=0):
        super().__init__()
        if h % heads:
            raise ValueError(f"h={h} numbers cannot be shared evenly by heads={heads}")
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout={dropout}: give a share, from 0 to below 1")
        self.heads, self.dropout = heads, dropout
        self.stream = torch.Generator().manual_seed(seed)
        self.norm1, self.norm2 = (nn.LayerNorm(h, dtype=torch.float64) for _ in range(2))
        shapes = {"qkv": (h, 3 * h), "proj": (h, h), "up": (h, 4 * h), "down": (4 * h, h)}
        for name, (n, k) in shapes.items():
            linear = nn.Linear(n, k, dtype=torch.float64)
            with torch.no_grad():
                for parameter in linear.parameters():
                    parameter.normal_(0, n**-0.5, generator=self.stream)
            self.add_module(name, linear)

    def forward(self, x, core=None):
        """core: takes the place of `self.core`, a function of q, k, v."""
        parts = self.qkv(self.norm1(x)).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        mixed = (core or self.core)(q, k, v).transpose(1, 2).flatten(2)
        x = x + self.drop(self.proj(mixed))
        return x + self.drop(self.down(nn.functional.gelu(self.up(self.norm2(x)))))

    def core(self, q, k, v):
        """Attention itself: few weights, but tensors of [rows, heads, s, s]."""
        scores = q @ k.transpose(2, 3) / q.shape[-1] ** 0.5
        return self.drop(scores.softmax(-1)) @ v

    def drop(self, x):
        """Dropout from the layer's own stream, which moves on."""
        kept = torch.rand(x.shape, generator=self.stream) >= self.dropout
        return x * kept.to(x.device) / (1 - self.dropout)


def transformer_lab(
    stages,
    microbatches,
    layers=None,
    *,
    sequence=32,
    h=16,
    heads=2,
    dropout=0.1,
    seed=0,
    make=Layer,
    cut=None,
):
    """A `Lab` whose blocks are transformer layers: micro-batches of [2, sequence, h], float64.

    layers: of the whole model, two per stage unless given; cut: layers per stage, see `Lab`;
    make: makes a layer from (h, heads, dropout, seed=…). Raises ProblemError as `Lab` does.
    """
    layers = 2 * stages if layers is None else layers
    random = torch.Generator().manual_seed(seed)
    inputs, targets = (
        torch.randn(2 * microbatches, sequence, h, generator=random, dtype=torch.float64)
        for _ in range(2)
    )
    blocks = [make(h, heads, dropout, seed=100 * seed + k) for k in range(layers)]
    return Lab(
        stages, microbatches, blocks=blocks, inputs=inputs, targets=targets, seed=seed, cut=cut
    )
