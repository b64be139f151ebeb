"""Is the step right? Elementwise, against the same step in one process; if not, why not."""

from dataclasses import dataclass

import torch

from .problem import OneProcess, Problem


@dataclass
class Difference:
    """Where a tensor is not what it should be, and how far off it is at its worst."""

    stage: int
    name: str
    index: list
    got: float
    expected: float

    def __str__(self):
        at = f" at {self.index}" if self.index else ""
        return f"{self.name}{at} is {self.got:.6g}, expected {self.expected:.6g}"


def per_microbatch(problem: Problem, tied=True):
    """{parameter name: [gradient of micro-batch 0, 1, …]}, each as it counts in the step; and for
    each stage its inputs and its output gradients, by micro-batch. tied: of tied weights the
    sum, else what each found by itself."""
    step = OneProcess(problem)
    grads = {name: [] for name in step.grads(tied)}
    inputs, outputs = ([[] for _ in step.modules] for _ in range(2))
    for _, xs, ys in step.microbatches():
        for stage, (x, y) in enumerate(zip(xs, ys, strict=True)):
            inputs[stage].append(x.detach())
            outputs[stage].append(y.grad)
        for name, grad in step.grads(tied).items():
            grads[name].append(grad.clone())
        for module in step.modules:
            module.zero_grad()
    return grads, inputs, outputs


def bounds(problem: Problem):
    """How far each gradient may be off when its m terms are added in another order.

    Adding m numbers in any order errs by at most (m-1) * eps * the sum of their sizes; two
    orders differ by at most twice that.
    """
    eps = torch.finfo(problem.torch_dtype).eps
    grads, *_ = per_microbatch(problem)
    return {
        name: 2 * (len(terms) - 1) * eps * sum(t.abs() for t in terms)
        for name, terms in grads.items()
    }


def differences(problem, got, expected, allowed):
    """Every parameter's worst `Difference`, of tensors by name; allowed: bounds, or 0."""
    found = []
    for stage in range(problem.stages):
        for name in problem.names(stage):
            mine, right = got.get(name), expected[name]
            if mine is None:
                if not right.any():
                    continue  # nothing depends on it, here as there
                found.append(Difference(stage, name, [], float("nan"), right.flatten()[0].item()))
                continue
            off = (mine - right).abs()
            wrong = ~(off <= (allowed[name] if allowed else 0))  # so that NaN is wrong
            if wrong.any():
                off = torch.where(wrong, off.nan_to_num(nan=float("inf")), -1)
                index = [int(k) for k in torch.unravel_index(off.argmax(), off.shape)]
                found.append(
                    Difference(
                        stage, name, index, mine[tuple(index)].item(), right[tuple(index)].item()
                    )
                )
    return found


def diagnose(problem: Problem, got, expected, found, copy=None):
    """The usual cause that explains the wrong gradients of the last wrong stage, or None.

    copy: (how many data-parallel copies there are, which one this is)

    Gradients flow from the last stage to the first, so the last stage that is wrong is where
    it begins; the stages before it only inherit.
    """
    stage = max(d.stage for d in found)
    names = [d.name for d in found if d.stage == stage]
    m = problem.microbatches
    if all(got.get(name) is None for name in names):
        return f"stage {stage} has no gradients at all: no backward ran on it"
    parts, inputs, outputs = per_microbatch(problem)
    shown = {
        name: got[name] if got.get(name) is not None else torch.zeros_like(expected[name])
        for name in names
    }

    def is_(candidate):
        return all(_close(shown[name], candidate(name), parts[name]) for name in names)

    if is_(lambda n: torch.zeros_like(expected[n])):
        return (
            f"all gradients of stage {stage} are zero: the gradient does not come through "
            f"from stage {stage + 1}. Was a tensor detached, or its gradient not sent?"
        )
    for one in problem.tied:
        for name in set(one) & set(shown):
            if all(d.name == name for d in found if d.name in shown):
                alone = sum(per_microbatch(problem, tied=False)[0][name])
                if _close(shown[name], alone, parts[name]):
                    others = " and ".join(n for n in one if n != name)
                    return (
                        f"it lacks the part that {others} found: the two are one weight, and their "
                        "gradients must be added up between the first and the last stage"
                    )
    if copy and copy[0] > 1:
        dp, own = copy
        mine = range(own * m // dp, (own + 1) * m // dp)
        if is_(lambda n: dp * sum(parts[n][i] for i in mine)):
            return (
                f"these are the gradients of micro-batches {mine[0]} to {mine[-1]} only: they were "
                f"not averaged over the {dp} data-parallel copies"
            )
        if is_(lambda n: dp * expected[n]):
            return (
                f"they are dp = {dp} times too large: they were added up over the copies, and not "
                f"divided by {dp}"
            )
        if is_(lambda n: sum(parts[n][i] for i in mine)):
            return (
                f"these are the gradients of micro-batches {mine[0]} to {mine[-1]} only, "
                f"divided by {dp}: the sum over the copies is missing"
            )
        if is_(lambda n: expected[n] / dp):
            return f"they are dp = {dp} times too small: is there one division too many?"
    if m > 1:
        if is_(lambda n: m * expected[n]):
            return (
                f"they are m = {m} times too large: the loss of each micro-batch must be "
                "divided by m"
            )
        if is_(lambda n: expected[n] / m):
            return f"they are m = {m} times too small: is the loss divided by m twice?"
        if is_(lambda n: parts[n][-1]):
            return (
                f"only the last micro-batch, {m - 1}, counts: gradients must be added up, not "
                "replaced"
            )
        if is_(lambda n: parts[n][0]):
            return "only the first micro-batch, 0, counts"
    if is_(lambda n: -expected[n]):
        return "they have the wrong sign"
    for i in range(m):
        if is_(lambda n, i=i: expected[n] - parts[n][i]):
            return f"micro-batch {i} is missing from them"
        if is_(lambda n, i=i: expected[n] + parts[n][i]):
            return f"micro-batch {i} counts twice"
    for other in range(problem.stages):
        theirs = dict(zip(problem.names(stage), problem.names(other), strict=False))
        if other != stage and is_(
            lambda n, t=theirs: (
                expected[t[n]] if n in t else torch.full_like(expected[n], torch.nan)
            )
        ):
            return f"these are the gradients of stage {other}"
    if stage < problem.stages - 1:
        for order, text in _stale_orders(m):
            stale = _backward_with(problem, stage, inputs[stage], outputs[stage], order)
            if is_(stale.__getitem__):
                return (
                    f"stale activations on stage {stage}: {text}. A backward must use the "
                    "activations of its own micro-batch"
                )
    return None


def _close(a, b, parts):
    if a.shape != b.shape:
        return False
    size = sum(p.abs() for p in parts)
    return bool(((a - b).abs() <= 1e3 * torch.finfo(a.dtype).eps * (size + b.abs())).all())


def _stale_orders(m):
    """Ways to mix up micro-batches: for each micro-batch, whose output gradient it gets."""
    yield (
        list(range(m))[::-1],
        (
            "each micro-batch's activations met the gradient of its mirror "
            f"image, {m - 1} of 0 and so on (last in, first out?)"
        ),
    )
    for shift in range(1, m):
        yield (
            [(i + shift) % m for i in range(m)],
            (f"micro-batch 0's activations met the gradient of micro-batch {shift}, and so on"),
        )


def _backward_with(problem, stage, inputs, outputs, order):
    module = problem.module(stage)
    for i, x in enumerate(inputs):
        module.microbatch = i
        y = module(x)
        if y.requires_grad:
            y.backward(outputs[order[i]])
    return {
        name: torch.zeros_like(p) if p.grad is None else p.grad
        for name, p in problem.parameters(stage, module).items()
    }
