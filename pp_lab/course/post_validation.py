"""Post validation: what weights and rollbacks must be after steps that were taken at once."""

import math
from itertools import accumulate

from . import tensor_checks as tensors


def validated(verdict, name, result, weights, grads, lr, limit):
    """Every weight is that of a validated step, and the right ranks rolled back, or the check ends.

    name: of the case, for the learner; result: each rank's weight after `post_validate`, and the
    ranks that rolled back; weights, grads, lr, limit: what it was given
    """
    new, undone = result
    if len(new) != len(weights):
        verdict.fail(f"{name}: weights for {len(new)} ranks, not for {len(weights)}")
    squares = [(g * g).sum().item() for g in grads]
    partial, total = [math.sqrt(s) for s in accumulate(squares)], math.sqrt(sum(squares))
    finite = math.isfinite(total)
    for rank, weight in enumerate(weights):
        got = tensors.tensor(verdict, f"{name}: rank {rank}'s weight", new[rank])
        if not finite and not tensors.close(got, weight):
            verdict.fail(
                f"{name}: rank {rank}'s weight has changed. With such a norm there must be no "
                "step at all. Note that NaN > limit is False, and so is NaN <= limit"
            )
    if finite:
        _clipped(verdict, name, new, weights, grads, lr, limit)
    stepped = [rank for rank, norm in enumerate(partial) if norm <= limit]
    should = [] if finite and total <= limit else stepped
    for rank in range(len(weights)):
        if (rank in should) == (rank in undone):
            continue
        if rank in should:
            verdict.fail(
                f"{name}: rank {rank} is missing among those that rolled back. The norm of ranks "
                f"0 to {rank}, {partial[rank]:.4g}, was within the limit, {limit:.4g}, so it had "
                "stepped at once"
            )
        verdict.fail(
            f"{name}: rank {rank} had nothing to roll back: "
            + (
                "its step was right"
                if rank in stepped
                else f"the norm of ranks 0 to {rank}, {partial[rank]:.4g}, was not within the "
                "limit, so it had waited"
            )
        )
    if sorted(undone) != should:
        verdict.fail(f"{name}: the ranks that rolled back are {should}, not {list(undone)}")


def _clipped(verdict, name, new, weights, grads, lr, limit):
    """Every weight took the step whose gradient is clipped by the norm of all ranks."""
    norms = [grad.norm().item() for grad in grads]
    partial = [math.sqrt(s) for s in accumulate(n * n for n in norms)]
    total = partial[-1]
    scale = min(1, limit / total)
    factors = [
        (lambda r: 1, f"it stepped with the whole gradient, though the norm of all ranks, "
         f"{total:.4g}, is over the limit, {limit:.4g}: nobody validated"),
        (lambda r: min(1, limit / norms[r]), "it is clipped by the rank's own norm. The norm is "
         "that of all ranks' gradients together"),
        (lambda r: min(1, limit / partial[r]), "it is clipped by the norm of the ranks up to "
         "itself, all that is known when it steps. Validate with the norm of all"),
        (lambda r: min(1, limit / sum(norms)), "norms do not add up, their squares do"),
        (lambda r: min(1, limit / total**2), "the root is missing: the norm is the root of the "
         "sum of squares"),
        (lambda r: limit / total, "clipping only makes a gradient smaller: where the norm is "
         "within the limit, nothing is scaled"),
        (lambda r: 0, "it was rolled back, or never stepped, and nothing came after that: the "
         "right step is still to be made"),
        (lambda r: 1 + scale, "it was made two steps: roll the first one back before the second"),
        (lambda r: -scale, "it has the wrong sign"),
    ]  # fmt: skip

    def moved(rank, factor):
        return weights[rank] - lr * factor * grads[rank]

    def told(ranks):
        for rank in ranks:
            if tensors.close(new[rank], moved(rank, scale), 1e-6):
                continue
            for factor, sentence in factors:
                if all(tensors.close(new[r], moved(r, factor(r)), 1e-6) for r in ranks):
                    verdict.fail(f"{name}: rank {rank}'s weight: {sentence}")

    told(range(len(weights)))  # the same mistake on all ranks, or else on one
    for rank in range(len(weights)):
        told([rank])
        what = f"{name}: rank {rank}'s weight"
        tensors.equal(verdict, what, new[rank], moved(rank, scale), loose=1e-6)
