"""How many bytes an activation is: a transformer layer's formulas, of arXiv:2205.05198."""

from dataclasses import dataclass

from ..schedule.cost import exact


@dataclass(frozen=True)
class Model:
    """The shape of a transformer and how its activations are kept; two bytes per number.

    layers, hidden, heads, sequence, microbatch: L, h, a, s and b of the paper. tensor: over how
    many ranks each layer is split (t), `sequence_parallel` or not. recompute: "none",
    "selective" (the attention's own part is computed again in the backward) or "full" (only
    the layer's input is kept). inner: numbers that the MLP keeps of its own width for each
    token; 8h unless given, before and after a GeLU of width 4h (with experts: of all that a
    token goes to).
    """

    layers: int
    hidden: int
    heads: int
    sequence: int
    microbatch: int = 1
    tensor: int = 1
    sequence_parallel: bool = True
    recompute: str = "none"
    inner: int | None = None

    def __post_init__(self):
        if self.recompute not in ("none", "selective", "full"):
            raise ValueError(f"recompute={self.recompute!r}: give none, selective or full")

    @property
    def sbh(self):
        """Numbers in a layer's input, for one micro-batch."""
        return self.sequence * self.microbatch * self.hidden

    @property
    def output_bytes(self):
        """What a stage sends on, for one micro-batch."""
        return 2 * self.sbh

    @property
    def layer_bytes(self):
        """The activations of one layer and micro-batch, on each rank that holds it."""
        if self.recompute == "full":
            return 2 * self.sbh
        whole, split = (0, 18) if self.sequence_parallel else (10, 8)  # over the t ranks
        split += 16 if self.inner is None else exact(2 * self.inner, self.hidden)
        if self.recompute == "none":
            split += exact(5 * self.heads * self.sequence, self.hidden)
        return exact(self.sbh * (whole * self.tensor + split), self.tensor)

    def stage_bytes(self, stages):
        """The activations of one stage and micro-batch, with the layers spread evenly."""
        return exact(self.layers * self.layer_bytes, stages)
