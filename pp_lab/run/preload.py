"""What the fork server imports, once, so that every rank is forked with it."""

import gc

import torch.fx.experimental.symbolic_shapes  # noqa: F401 - autograd.backward imports it late

from . import worker  # noqa: F401

gc.freeze()  # what is imported stays shared between the server and its ranks
