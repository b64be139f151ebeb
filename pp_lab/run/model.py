"""The problem that every run solves: an MLP, a batch, a loss, all from one seed.

Each block is a Linear and an activation, hidden -> hidden. A stage is some consecutive
blocks; the last one also computes the loss. Any process can build any stage by itself, and
builds the same: every block and the data have a generator of their own.
"""

from dataclasses import dataclass

import torch
from torch import nn

ACTIVATIONS = {"tanh": nn.Tanh, "relu": nn.ReLU, "gelu": nn.GELU, "identity": nn.Identity}
DTYPES = {"float64": torch.float64, "float32": torch.float32}


@dataclass(frozen=True)
class Problem:
    """Sizes and seed. `cut` holds, for each stage, how many blocks it gets.

    batch: rows of the whole batch; microbatches: into how many equal parts it is cut;
    hidden: width of every block and so of every tensor between stages.
    """

    cut: tuple[int, ...]
    microbatches: int
    batch: int
    hidden: int
    dtype: str
    activation: str
    lr: float
    seed: int

    @property
    def stages(self):
        return len(self.cut)

    @property
    def shape(self):
        """Of a tensor between two stages: rows of one micro-batch, hidden."""
        return (self.batch // self.microbatches, self.hidden)

    @property
    def torch_dtype(self):
        return DTYPES[self.dtype]

    def blocks(self, stage):
        """The numbers of the blocks in a stage."""
        first = sum(self.cut[:stage])
        return range(first, first + self.cut[stage])

    def module(self, stage):
        """The stage as a module, [rows, hidden] -> [rows, hidden], with its initial weights."""
        return nn.Sequential(*(self._block(k) for k in self.blocks(stage)))

    def names(self, stage):
        """Names of a stage's parameters in the whole model, in the order of the module's."""
        return [f"block{k}.{name}" for k in self.blocks(stage) for name in ("weight", "bias")]

    def inputs(self):
        """One [rows, hidden] tensor for each micro-batch. Only the first stage sees them."""
        return list(self._normal("inputs", self.batch, self.hidden).chunk(self.microbatches))

    def targets(self):
        """One [rows, hidden] tensor for each micro-batch. Only the last stage sees them."""
        return list(self._normal("targets", self.batch, self.hidden).chunk(self.microbatches))

    def loss(self, y, target):
        """Mean squared error of one micro-batch: a scalar. The step's loss is their mean."""
        return nn.functional.mse_loss(y, target)

    def _block(self, k):
        linear = nn.Linear(self.hidden, self.hidden, dtype=self.torch_dtype)
        scale = self.hidden**-0.5
        with torch.no_grad():
            linear.weight.copy_(self._normal(("weight", k), self.hidden, self.hidden) * scale)
            linear.bias.copy_(self._normal(("bias", k), self.hidden) * scale)
        return nn.Sequential(linear, ACTIVATIONS[self.activation]())

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


def reference(problem: Problem) -> Result:
    """The same step in one process: micro-batches one after the other, gradients summed."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as every rank does: the same sums in the same order
    try:
        modules = [problem.module(stage) for stage in range(problem.stages)]
        total = 0.0
        for x, target in zip(problem.inputs(), problem.targets(), strict=True):
            for module in modules:
                x = module(x)
            loss = problem.loss(x, target) / problem.microbatches
            loss.backward()
            total += loss.item()
        return finish(problem, dict(enumerate(modules)), total)
    finally:
        torch.set_num_threads(threads)


def finish(problem, modules, loss):
    """Collect the gradients of {stage: module}, then take one SGD step and collect the weights."""
    grads, weights = {}, {}
    for stage, module in modules.items():
        for name, parameter in zip(problem.names(stage), module.parameters(), strict=True):
            grads[name] = parameter.grad
            with torch.no_grad():
                if parameter.grad is not None:
                    parameter -= problem.lr * parameter.grad
            weights[name] = parameter.detach()
    return Result(loss, grads, weights)
