"""Two Linear layers split over the tensor-parallel ranks, as Megatron splits them (1909.08053).

    y = x + B tanh(A x)

The first product is column-parallel: each rank holds some of A's outputs, and needs all of x.
The second is row-parallel: each rank holds the matching inputs of B, and its product is one
term of the sum that is y. So a forward needs one all-reduce, after B; a backward needs one too,
of the gradient of x, before A. With sequence parallelism (2205.05198) each rank holds only its
part of the rows outside: an all-gather stands before A and a reduce-scatter after B, which
together move as much as one all-reduce.
"""

import copy

import torch
import torch.distributed as dist
from torch import nn


class TensorGroup:
    """The ranks that share a layer: size, this rank's index, and their collectives.

    sequence_parallel: outside the products, each holds 1/size of the rows
    """

    def __init__(self, groups, sequence_parallel):
        self.groups, self.sequence_parallel = groups, sequence_parallel
        members = groups.members("tp")
        self.size, self.index = len(members), members.index(groups.rank.index)

    def reduced(self, x):
        """The sum of the ranks' x."""
        x = x.contiguous().clone()
        self.groups.all_reduce(x, "tp")
        return x

    def gathered(self, x):
        """All ranks' rows: [rows, …] -> [size * rows, …]."""
        whole = x.new_empty(self.size * len(x), *x.shape[1:])
        self.groups.count("tp", whole, 1)
        self.groups.run("all_gather", "tp", lambda group: dist.all_gather_single(
            whole, x.contiguous(), group=group))  # fmt: skip
        return whole

    def scattered(self, x):
        """This rank's rows of the sum of the ranks' x: [size * rows, …] -> [rows, …]."""
        self.groups.count("tp", x, 1)
        mine = x.new_empty(len(x) // self.size, *x.shape[1:])
        self.groups.run("reduce_scatter", "tp", lambda group: dist.reduce_scatter_single(
            mine, x.contiguous(), group=group))  # fmt: skip
        return mine


class _Enter(torch.autograd.Function):
    """Before a column-parallel product: x as it is, or gathered; its gradient is a sum."""

    @staticmethod
    def forward(context, x, group):
        context.group = group
        return group.gathered(x) if group.sequence_parallel else x.view_as(x)

    @staticmethod
    def backward(context, dx):
        group = context.group
        return (group.scattered if group.sequence_parallel else group.reduced)(dx), None


class _Leave(torch.autograd.Function):
    """After a row-parallel product: the sum of the ranks' terms; its gradient is for each."""

    @staticmethod
    def forward(context, y, group):
        context.group = group
        return (group.scattered if group.sequence_parallel else group.reduced)(y)

    @staticmethod
    def backward(context, dy):
        group = context.group
        return (group.gathered(dy) if group.sequence_parallel else dy), None


class ParallelMLP(nn.Module):
    """One block, [rows, hidden] -> the same; all weights follow from `seed`. float64.

    hidden: width; inner: between the two products, 4 * hidden unless given
    """

    # Which dimension of a parameter is cut where the block is shared.
    sharded = {"a.weight": 0, "a.bias": 0, "b.weight": 1}

    def __init__(self, hidden, inner=None, seed=0):
        super().__init__()
        inner = 4 * hidden if inner is None else inner
        self.group = None
        self.a = nn.Linear(hidden, inner, dtype=torch.float64)
        self.b = nn.Linear(inner, hidden, bias=False, dtype=torch.float64)
        random = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for linear in (self.a, self.b):
                for parameter in linear.parameters():
                    drawn = torch.randn(parameter.shape, generator=random, dtype=torch.float64)
                    parameter.copy_(drawn * linear.in_features**-0.5)

    def shared(self, group):
        """A copy that holds this rank's share of both products."""
        mine = copy.deepcopy(self)
        if mine.a.out_features % group.size:
            raise ValueError(
                f"{mine.a.out_features} columns cannot be shared evenly by {group.size} ranks"
            )
        mine.group = group
        for name, dimension in self.sharded.items():
            linear, field = name.split(".")
            part = self.get_parameter(name).chunk(group.size, dimension)[group.index]
            setattr(getattr(mine, linear), field, nn.Parameter(part.detach().clone()))
        return mine

    def forward(self, x):
        if self.group is None:
            return x + self.b(torch.tanh(self.a(x)))
        return x + _Leave.apply(self.b(torch.tanh(self.a(_Enter.apply(x, self.group)))), self.group)
