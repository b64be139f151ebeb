"""A backward in two halves: the input gradient now, the weight gradient when there is time.

autograd computes both in one go. Here a Linear's backward gives the input gradient only, and
keeps the two tensors that the weight gradient is the product of; `weight_gradients` multiplies
them later, as autograd would have, to the last bit. Nothing runs twice, and each pair of
tensors is freed as soon as it is used. (The way of DualPipe's WeightGradStore and of Megatron's
delay_wgrad_compute. torch.distributed.pipelining cuts the autograd graph instead.)

Parameters of other modules, norms for instance, get their gradients in the first half.
"""

import torch
from torch import nn


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(context, x, weight, bias, later):
        context.save_for_backward(x, weight)
        context.parameters, context.later = (weight, bias), later
        return nn.functional.linear(x, weight, bias)

    @staticmethod
    def backward(context, dy):
        x, weight = context.saved_tensors
        # The parameters themselves: under saved-tensor hooks `weight` is another tensor.
        context.later.append((x, dy, *context.parameters))
        return (dy @ weight if context.needs_input_grad[0] else None), None, None, None


class SplitLinear(nn.Linear):
    """A Linear that puts what its weight gradient needs into the list `later`."""

    later = None

    def forward(self, x):
        if self.later is None or not torch.is_grad_enabled():
            return super().forward(x)
        # Where x needs no gradient, autograd would not come by here at all.
        return _Linear.apply(
            x if x.requires_grad else x.detach().requires_grad_(),
            self.weight,
            self.bias,
            self.later,
        )


def splittable(module):
    """Make every Linear in `module` one whose backward can be split; returns the module."""
    for part in module.modules():
        if type(part) is nn.Linear:
            part.__class__ = SplitLinear
    return module


def collect(module, later):
    """From now on the Linears of `module` put their second halves into `later`; None: whole."""
    for part in module.modules():
        if isinstance(part, SplitLinear):
            part.later = later


def weight_gradients(later):
    """The second half: add up the weight gradients, and let go of what they needed."""
    while later:
        x, dy, weight, bias = later.pop()
        x, dy = x.reshape(-1, x.shape[-1]), dy.reshape(-1, dy.shape[-1])
        with torch.no_grad():
            if weight.requires_grad:
                _add(weight, dy.t() @ x)
            if bias is not None and bias.requires_grad:
                _add(bias, dy.sum(0))


def _add(parameter, grad):
    if parameter.grad is None:
        parameter.grad = grad
    else:
        parameter.grad += grad
