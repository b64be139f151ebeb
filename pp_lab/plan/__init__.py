"""The plan room: what a training job needs and how long its step takes, before there is one.

Networks, clusters and configurations; bytes of activations, parameters and optimizer; the
estimate of a step; Megatron's own rules. It asks the schedule room, and needs no torch.
"""

from .activations import Model
from .estimate import Estimate, breakdown, ranked
from .megatron import Megatron
from .network import Cluster, Config, Network, configurations

__all__ = [
    "Cluster", "Config", "Estimate", "Megatron", "Model", "Network", "breakdown",
    "configurations", "ranked",
]  # fmt: skip
