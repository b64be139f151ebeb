"""A cluster, a network and a configuration, in the few numbers that a choice needs."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property

from .activations import Model

GIB = 2**30


@dataclass(frozen=True)
class Cluster:
    """Equal GPUs. memory: bytes of each that may be used; flops: FLOP/s that a GPU achieves in
    large matrix products; inside, across: bytes/s that a GPU sends to others of its node, and
    to other nodes; latency: seconds that any message takes at least."""

    gpus: int
    per_node: int = 8
    memory: float = 72 * GIB
    flops: float = 2e14
    inside: float = 240e9
    across: float = 25e9
    latency: float = 5e-6

    def link(self, ranks):
        """Bytes/s among that many consecutive ranks."""
        return self.inside if ranks <= self.per_node else self.across


@dataclass(frozen=True)
class Network:
    """A transformer. ffn: width of its MLP, 4h unless given; gated: of three matrices, not two.

    With `experts`, all layers but the first `dense` have that many, of width expert_ffn; a token
    goes to top_k of them, on `nodes` nodes at most, and to `shared` ones that are always on.
    Biases, norms and position embeddings are left out: they are less than a thousandth.
    """

    layers: int
    hidden: int
    heads: int
    sequence: int
    vocab: int
    ffn: int | None = None
    gated: bool = False
    tied: bool = True  # input and output embedding are the same
    experts: int = 0
    top_k: int = 0
    expert_ffn: int = 0
    shared: int = 0
    dense: int = 0
    nodes: int | None = None

    def mlp(self, width):
        """Parameters of an MLP."""
        return (2 + self.gated) * self.hidden * width

    def weights(self, layer):
        """(parameters of a layer outside of its routed experts, parameters of one such expert)."""
        attention = 4 * self.hidden**2
        if not self.experts or layer < self.dense:
            return attention + self.mlp(self.ffn or 4 * self.hidden), 0
        expert = self.mlp(self.expert_ffn)
        return attention + self.shared * expert + self.hidden * self.experts, expert

    @property
    def embedding(self):
        """Parameters of one embedding."""
        return self.vocab * self.hidden

    @cached_property
    def parameters(self):
        """Of the whole network: 12Lh² + Vh for a plain one (arXiv:2104.04473, section 5.1)."""
        return self._sum(self.experts) + self.embedding * (1 if self.tied else 2)

    @cached_property
    def active(self):
        """Parameters that a token meets in matrix products: its top_k experts, one embedding."""
        return self._sum(self.top_k) + self.embedding

    def _sum(self, experts):
        rows = map(self.weights, range(self.layers))
        return sum(others + experts * expert for others, expert in rows)

    @property
    def core(self):
        """FLOPs of a layer's attention itself, forward, per token: 4sh, the mask not used."""
        return 4 * self.sequence * self.hidden

    def flops(self, layer):
        """FLOPs of a layer's matrix products, forward, per token: 2 per parameter that is met."""
        others, expert = self.weights(layer)
        return 2 * (others + self.top_k * expert)

    @cached_property
    def step_flops(self):
        """Useful FLOPs of a step per token: the forward three times."""
        return 3 * (2 * self.active + self.layers * self.core)

    def model(self, config):
        """What its layers keep under a configuration, as a `Model`."""
        width = self.ffn or 4 * self.hidden
        inner = (2 + self.gated) * width
        if self.experts:  # each expert has a copy of the token too
            copies = self.top_k + self.shared
            inner = copies * (self.hidden + (2 + self.gated) * self.expert_ffn)
        return Model(
            self.layers, self.hidden, self.heads, self.sequence, config.b, config.tp,
            recompute=config.recompute, inner=inner,
        )  # fmt: skip

    @cache  # noqa: B019 - few networks
    def cut(self, stages):
        """The layers of each stage, as ranges: dealt out one by one to the stage with the least
        to do, the last one having the loss as well."""
        layer = max(self.flops(self.layers - 1) + self.core, 1)
        load = [0] * (stages - 1) + [2 * self.embedding / layer]
        counts = [0] * stages
        for _ in range(self.layers):
            k = min(range(stages), key=lambda s: (load[s], -s))
            load[k], counts[k] = load[k] + 1, counts[k] + 1
        ends = [sum(counts[: k + 1]) for k in range(stages)]
        return [range(end - n, end) for n, end in zip(counts, ends, strict=True)]


@dataclass(frozen=True)
class Config:
    """tensor, pipeline and data parallel ranks; micro-batches of b sequences for each replica;
    v chunks per rank; ep: over how many ranks, of tp x dp, experts are spread."""

    tp: int = 1
    pp: int = 1
    dp: int = 1
    m: int = 1
    b: int = 1
    schedule: str = "1F1B"
    v: int = 1
    recompute: str = "selective"
    ep: int = 1

    def __str__(self):
        name = self.schedule + (f" v={self.v}" if self.v > 1 else "")
        ep = f" ep={self.ep}" if self.ep > 1 else ""
        sizes = f"tp={self.tp} pp={self.pp} dp={self.dp}{ep} m={self.m} b={self.b}"
        return f"{sizes} {name}, {self.recompute}"


def configurations(
    network, cluster, batch, among=("1F1B", "interleaved"), recompute=("selective", "full"),
    sizes=(1, 2, 4),
) -> Iterator[Config]:  # fmt: skip
    """Every divisible choice that uses all GPUs on `batch` sequences. tp and ep are powers of
    two, tp within a node; v is 2, 3 or 4; sizes: of micro-batches."""
    powers = [2**k for k in range(12)]
    for tp in powers:
        if tp > cluster.per_node or network.heads % tp or cluster.gpus % tp:
            continue
        rest = cluster.gpus // tp
        for pp in (p for p in range(1, min(rest, network.layers) + 1) if rest % p == 0):
            dp = rest // pp
            eps = [e for e in powers if (tp * dp) % e == 0 and network.experts % e == 0]
            for b in (b for b in sizes if batch % (dp * b) == 0):
                m = batch // (dp * b)
                for name in among:
                    chunks = (2, 3, 4) if name in ("interleaved", "combined") else (1,)
                    for v in (v for v in chunks if pp * v <= network.layers and (v == 1 or pp > 1)):
                        for again in recompute:
                            for ep in eps if network.experts else (1,):
                                yield Config(tp, pp, dp, m, b, name, v, again, ep)
