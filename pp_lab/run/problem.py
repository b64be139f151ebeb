"""The problem that every run solves: blocks, a batch, a loss, all from one seed.

A stage is some consecutive blocks; the last one also computes the loss. Unless others are
given, a block is a Linear and an activation, hidden -> hidden. Any process can build any stage
by itself, and builds the same: every block and the data have a random generator of their own.
"""

import copy
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import nn

ACTIVATIONS = {"tanh": nn.Tanh, "relu": nn.ReLU, "gelu": nn.GELU, "identity": nn.Identity}
DTYPES = {"float64": torch.float64, "float32": torch.float32}


class Stage(nn.Sequential):
    """Consecutive blocks. `microbatch` is the one that is going through.

    What is random in a block (dropout) depends on the seed, the block and the micro-batch
    only: not on the cut into stages, nor on whether it is computed a second time.
    """

    microbatch = 0

    def __init__(self, blocks, seeds):
        super().__init__(*blocks)
        self.seeds = seeds

    def forward(self, x):
        for block, seed in zip(self, self.seeds, strict=True):
            if seed is not None:
                torch.manual_seed(seed + self.microbatch)
            x = block(x)
        return x


@dataclass(frozen=True)
class Problem:
    """Sizes, seed and, where they are not the usual ones, blocks, loss and data.

    cut: for each stage, how many blocks it gets
    batch: rows of the whole batch; microbatches: into how many equal parts it is cut
    hidden: width of the usual blocks
    reduction: what the step's loss is of the micro-batches' losses: their "mean", their "sum",
        or, for a function of a micro-batch's targets that gives its weight, their weighted mean
    """

    cut: tuple[int, ...]
    microbatches: int
    batch: int
    hidden: int
    dtype: str
    activation: str
    lr: float
    seed: int
    reduction: str | Callable = "mean"
    given_blocks: tuple = None
    given_loss: Callable = None
    given_data: tuple = field(default=None, repr=False)  # inputs and targets, [batch, …]

    @property
    def stages(self):
        return len(self.cut)

    @property
    def torch_dtype(self):
        return DTYPES[self.dtype]

    @cached_property
    def shapes(self):
        """For each stage, shape and dtype of its input for one micro-batch."""
        if self.given_blocks is None:
            shape = (self.batch // self.microbatches, self.hidden)
            return [(shape, self.torch_dtype)] * self.stages
        shapes = []
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            x = self.inputs()[0]
            for stage in range(self.stages):
                shapes.append((tuple(x.shape), x.dtype))
                x = self.module(stage)(x)
        return shapes

    def blocks(self, stage):
        """The numbers of the blocks in a stage."""
        first = sum(self.cut[:stage])
        return range(first, first + self.cut[stage])

    def module(self, stage):
        """The stage as a module, with its initial weights."""
        numbers = self.blocks(stage)
        if self.given_blocks is None:
            return Stage([self._block(k) for k in numbers], [None] * len(numbers))
        copies = [copy.deepcopy(self.given_blocks[k]) for k in numbers]
        return Stage(copies, [(self.seed * 1_000_003 + k) * 1_000_003 for k in numbers])

    def parameters(self, stage, module):
        """{name in the whole model: parameter} of a stage's module, without frozen ones."""
        return {
            f"block{k}.{name}": parameter
            for k, block in zip(self.blocks(stage), module, strict=True)
            for name, parameter in block.named_parameters()
            if parameter.requires_grad
        }

    @cached_property
    def _names(self):
        return [list(self.parameters(s, self.module(s))) for s in range(self.stages)]

    @cached_property
    def tied(self):
        """The names of parameters that are one: of given blocks that share a Parameter."""
        names = {}
        for k, block in enumerate(self.given_blocks or ()):
            for name, parameter in block.named_parameters():
                if parameter.requires_grad:
                    names.setdefault(id(parameter), []).append(f"block{k}.{name}")
        return [tuple(found) for found in names.values() if len(found) > 1]

    def names(self, stage):
        """Names in the whole model of a stage's parameters, without frozen ones."""
        return self._names[stage]

    def inputs(self):
        """One tensor for each micro-batch, [rows, …]. Only the first stage sees them."""
        return list(self._data(0, "inputs").chunk(self.microbatches))

    def targets(self):
        """One tensor for each micro-batch, [rows, …]. Only the last stage sees them."""
        return list(self._data(1, "targets").chunk(self.microbatches))

    def loss(self, y, target):
        """The loss of one micro-batch, a scalar: mean squared error, or what was given."""
        return (self.given_loss or nn.functional.mse_loss)(y, target)

    def share(self, loss, i, targets):
        """What micro-batch i's loss contributes to the loss of the step."""
        if self.reduction == "sum":
            return loss
        if self.reduction == "mean":
            return loss / self.microbatches
        weights = [float(self.reduction(target)) for target in targets]
        return loss * (weights[i] / sum(weights))

    def _data(self, which, name):
        if self.given_data is not None:
            return self.given_data[which]
        return self._normal(name, self.batch, self.hidden)

    def _block(self, k):
        linear = nn.Linear(self.hidden, self.hidden, dtype=self.torch_dtype)
        scale = self.hidden**-0.5
        with torch.no_grad():
            linear.weight.copy_(self._normal(("weight", k), self.hidden, self.hidden) * scale)
            linear.bias.copy_(self._normal(("bias", k), self.hidden) * scale)
        parts = OrderedDict(linear=linear, activation=ACTIVATIONS[self.activation]())
        return nn.Sequential(parts)

    def _normal(self, what, *shape):
        # A generator per tensor, so that no process needs to draw what it does not hold.
        kind, k = what if isinstance(what, tuple) else (what, 0)
        number = ("inputs", "targets", "weight", "bias").index(kind)
        generator = torch.Generator().manual_seed((self.seed * 1_000_003 + k) * 4 + number)
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(self.torch_dtype)


@dataclass
class Result:
    """What one training step amounts to. Tensors by parameter name, on the CPU."""

    loss: float | None
    grads: dict
    weights: dict


class OneProcess:
    """The same step in one process: micro-batches one after the other, gradients added up."""

    def __init__(self, problem: Problem):
        self.problem = problem
        self.modules = [problem.module(stage) for stage in range(problem.stages)]

    def microbatches(self):
        """Run each micro-batch forward and backward; yields, after each, its loss and, for each
        stage, input and output."""
        targets = self.problem.targets()
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # as every rank does: the same sums in the same order
        try:
            with torch.random.fork_rng(devices=[]):
                for i, x in enumerate(self.problem.inputs()):
                    xs, ys = [], []
                    for module in self.modules:
                        module.microbatch = i
                        xs.append(x)
                        x = module(x)
                        ys.append(x)
                        if x.requires_grad:
                            x.retain_grad()
                    loss = self.problem.share(self.problem.loss(x, targets[i]), i, targets)
                    loss.backward()
                    yield loss.item(), xs, ys
        finally:
            torch.set_num_threads(threads)

    def parameters(self):
        """{name: parameter} of all stages."""
        return {
            name: parameter
            for stage, module in enumerate(self.modules)
            for name, parameter in self.problem.parameters(stage, module).items()
        }

    def grads(self, tied=True):
        """{name: gradient so far} of all stages; of tied weights the sum, if `tied`."""
        found = {
            name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            for name, parameter in self.parameters().items()
        }
        for names in self.problem.tied if tied else ():
            found |= dict.fromkeys(names, sum(found[name] for name in names))
        return found


def reference(problem: Problem) -> Result:
    """Loss, gradients and updated weights of the step in one process."""
    step = OneProcess(problem)
    loss = 0.0
    for part, *_ in step.microbatches():
        loss += part
    grads = step.grads()
    if problem.tied:
        for name, parameter in step.parameters().items():
            parameter.grad = grads[name]
    return Result(loss, grads, finish(problem, dict(enumerate(step.modules)), loss).weights)


def finish(problem, modules, loss):
    """Collect the gradients of {stage: module}, then take one SGD step and collect the weights."""
    grads, weights = {}, {}
    for stage, module in modules.items():
        for name, parameter in problem.parameters(stage, module).items():
            grads[name] = parameter.grad
            with torch.no_grad():
                if parameter.grad is not None:
                    parameter -= problem.lr * parameter.grad
            weights[name] = parameter.detach()
    return Result(loss, grads, weights)
