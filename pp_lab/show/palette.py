"""Colours and hatches: the Okabe-Ito palette, which colour-blind readers can tell apart.

Every kind of op also has its own hatch and its own letter, so that nothing is said by colour
alone (forward and backward have nearly the same brightness).
"""

from functools import lru_cache
from typing import NamedTuple


class Look(NamedTuple):
    """How a kind of op appears. Each painter has its own pattern for a hatch of this name."""

    fill: str
    hatch: str
    sign: str
    name: str


KINDS = {
    "F": Look("#56B4E9", "plain", "F", "forward"),
    "B": Look("#E69F00", "rising", "B", "backward"),
    "I": Look("#3DBB95", "falling", "I", "input gradient"),
    "W": Look("#F0E442", "dotted", "W", "weight gradient"),
    "R": Look("#B9A3E3", "plain", "R", "all-reduce of gradients"),
    "SEND": Look("#A6A6A6", "rising", "→", "send"),
    "RECV": Look("#C8C8C8", "falling", "←", "receive"),
}
MEMORY = "#CC79A7"
MARK = "#D55E00"
LABEL = "#111111"  # on every fill

# The rest of the picture, by role. A PNG is a white card on every background; the live
# timeline takes the same roles from the theme of the page (see live.js).
TONES = {
    "paper": "#ffffff",
    "ink": "#1f1f1f",
    "faint": "#5f5f5f",
    "rule": "#d5d5d5",
    "idle": "#efefef",
    "idle hatch": "#d2d2d2",
}


def mix(colour: str, other: str, share: float) -> str:
    """`colour` with `share` of `other` in it."""
    pairs = zip(_channels(colour), _channels(other), strict=True)
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in pairs)


@lru_cache(maxsize=256)
def fill(kind: str, shade: float) -> str:
    """The colour of a kind of op; `shade` runs from 0, a rank's first stage, to 1, its last."""
    return mix(KINDS[kind].fill, "#ffffff", 0.62 * shade)


@lru_cache(maxsize=256)
def edge(colour: str) -> str:
    """A darker version of a fill, for its outline and its hatch."""
    return mix(colour, "#000000", 0.28)


def _channels(colour):
    return [int(colour[k : k + 2], 16) for k in (1, 3, 5)]
