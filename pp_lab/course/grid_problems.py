"""Labs and programs that notebooks and checks are made of. Needs torch."""

import torch

from ..run import Lab
from ..run.tensor_parallel import ParallelMLP


def wrong_sync(sync):
    """A rank program that makes a mistake with the sync, for the lab to look at.

    sync: "never", "undivided", "every micro-batch", "before the send", or "not on rank 1"
    """

    def reduced(rank):
        gradients = rank.gradients()
        for gradient in gradients.values():
            rank.all_reduce(gradient, "dp")
            gradient /= 1 if sync == "undivided" else rank.grid.dp
        rank.set_gradients(gradients)

    def wrong(rank):
        for i in rank.mine:
            rank.send_forward(i, rank.forward(i, rank.recv_forward(i)))
        for i in rank.mine:
            dx = rank.backward(i, rank.recv_backward(i))
            if sync == "before the send" and i == rank.mine[-1]:
                reduced(rank)
            rank.send_backward(i, dx)
            if sync == "every micro-batch":
                reduced(rank)
        if sync == "undivided" or sync == "not on rank 1" and rank.index != 1:
            reduced(rank)

    return wrong


def blocks(hidden, layers, vocabulary=None):
    """Layers that tensor parallelism can share; with a vocabulary between two tied embeddings."""
    inside = [ParallelMLP(hidden, seed=k) for k in range(layers)]
    if vocabulary is None:
        return inside
    first = torch.nn.Embedding(vocabulary, hidden, dtype=torch.float64)
    last = torch.nn.Linear(hidden, vocabulary, bias=False, dtype=torch.float64)
    random = torch.Generator().manual_seed(vocabulary)
    with torch.no_grad():
        first.weight.copy_(torch.randn(first.weight.shape, generator=random, dtype=torch.float64))
        first.weight *= hidden**-0.5
    last.weight = first.weight
    return [first, *inside, last]


def rows_lab(stages, m, rows, hidden, layers, seed=0):
    """A lab whose blocks can be shared: micro-batches of [rows, hidden]."""
    random = torch.Generator().manual_seed(seed)
    inputs, targets = torch.randn(2, m * rows, hidden, generator=random, dtype=torch.float64)
    return Lab(stages, m, blocks=blocks(hidden, layers), inputs=inputs, targets=targets)


def words_lab(stages, m, vocabulary=11, hidden=6, length=5, seed=0):
    """Next-word prediction with one embedding at both ends: blocks 0 and 3."""
    random = torch.Generator().manual_seed(seed)
    words = torch.randint(0, vocabulary, (2 * m, length + 1), generator=random)

    def loss(y, targets):
        return torch.nn.functional.cross_entropy(y.flatten(0, 1), targets.flatten())

    return Lab(
        stages,
        m,
        blocks=blocks(hidden, 2, vocabulary),
        inputs=words[:, :-1],
        targets=words[:, 1:],
        loss=loss,
    )
