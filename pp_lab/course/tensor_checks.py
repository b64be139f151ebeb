"""Tensors in checks: made at random, and held to what they should be.

Can be imported without torch; whatever is called here needs it.
"""

import math

from ..run.late import Late
from .words import missing, short

torch = Late("torch")


def normal(seed, *shapes):
    """Random float64 tensors of these shapes."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in shapes]


def gradients(function, dy, *inputs):
    """autograd's gradients of all inputs, where that of the function's value is `dy`."""
    inputs = [x.clone().requires_grad_() for x in inputs]
    return torch.autograd.grad(function(*inputs), inputs, dy)


def copied(pairs):
    """Pairs of tensors that an answer may change without harm."""
    return [tuple(x.clone() for x in pair) for pair in pairs]


def kind(value):
    """What something is, in a few words."""
    if isinstance(value, torch.Tensor):
        return f"one tensor of shape {list(value.shape)}"
    if isinstance(value, (list, tuple)):
        return f"a {type(value).__name__} of {len(value)}"
    return short(value)


def parts(verdict, call, given, count, wanted):
    """`given`, if it is a list or tuple of so many; else the check ends with what to return.

    call: what gave it, for the learner; wanted: "two tensors, weight and velocity"
    """
    if not isinstance(given, (list, tuple)) or len(given) != count:
        verdict.fail(f"{call} gives {kind(given)}. Return {wanted}")
    return given


def tensor(verdict, what, given):
    """`given`, if it is a tensor; else the check ends."""
    if not isinstance(given, torch.Tensor):
        verdict.fail(f"{what} is {kind(given)}, not a tensor" + missing(given))
    return given


def close(given, right, loose=1e-10):
    """Whether two tensors have the same shape and, elementwise, the same values."""
    return given.shape == right.shape and torch.allclose(
        given.to(right.dtype), right, rtol=loose, atol=loose
    )


def equal(verdict, what, given, right, known=(), loose=1e-10):
    """`given` is a tensor that is close to the right one, or the check ends.

    what: names it for the learner; known: pairs (what a known mistake gives, sentence); loose:
    how far elements may be off, as such and for each unit of their size
    """
    if close(tensor(verdict, what, given), right, loose):
        return
    for wrong, sentence in known:
        if close(given, wrong, loose):
            verdict.fail(f"{what}: {sentence}")
    if given.shape != right.shape:
        verdict.fail(f"{what} has the shape {list(given.shape)}, not {list(right.shape)}")
    off = (given - right).abs().nan_to_num(math.inf)
    index = tuple(int(n) for n in torch.unravel_index(off.argmax(), off.shape))
    verdict.fail(
        f"{what}: element {list(index)} is {given[index].item():.6g}, it should be "
        f"{right[index].item():.6g}"
    )
