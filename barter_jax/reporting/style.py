"""Colours, markers and line styles that tell methods and densities apart.

The hues are Okabe and Ito's, which people with any colour vision can tell apart; a method has its
own marker besides, so that nothing hangs on the colour alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from barter_jax.reporting.groups import Group

METHODS = {
    "barter": ("#0072B2", "o"),
    "static": ("#E69F00", "s"),
    "dense": ("#000000", "*"),
    "random_receiver": ("#009E73", "^"),
    "random_donor": ("#CC79A7", "v"),
    "random_pair": ("#56B4E9", "D"),
    "rigl": ("#D55E00", "P"),
    "set": ("#8A7B00", "X"),
    "snfs": ("#7F7F7F", "<"),
    "srigl": ("#882255", ">"),
    "s2vite": ("#44AA99", "h"),
}
OTHER = ("#555555", "d")
LINES = ("solid", "dashed", "dotted", "dashdot", (0, (8, 2, 1, 2, 1, 2)), (0, (1, 4)))
SHADES = (("#ffffff", 0.0), ("#000000", 0.45), ("#ffffff", 0.45))

# Parts of the wall-clock, and of anything else that is stacked.
KINDS = {
    "step": "#0072B2",
    "data": "#56B4E9",
    "update": "#D55E00",
    "start": "#F0E442",
    "compile": "#E69F00",
    "evaluation": "#009E73",
    "checkpoint": "#999999",
}
HATCHES = {"data": "//", "start": "++", "compile": "..", "evaluation": "\\\\", "checkpoint": "xx"}


@dataclasses.dataclass(frozen=True)
class Style:
    """How a group is drawn."""

    colour: str
    marker: str
    line: object


def styles(groups: Sequence[Group]) -> dict[str, Style]:
    """By label: the method's colour and marker, and a line style for each of its groups.

    A method with more groups than there are line styles goes on in a darker, then a lighter shade.
    """
    found, used = {}, {}
    for group in groups:
        colour, marker = METHODS.get(group.method, OTHER)
        n = used.get(group.method, 0)
        used[group.method] = n + 1
        towards, share = SHADES[n // len(LINES) % len(SHADES)]
        line = LINES[n % len(LINES)]
        found[group.label] = Style(blend(colour, towards, share), marker, line)
    return found


def blend(low: str, high: str, share: float) -> str:
    """The colour a share of the way from one `#rrggbb` to another."""

    def parts(colour):
        return [int(colour[i : i + 2], 16) for i in (1, 3, 5)]

    mixed = (
        round(a + (b - a) * min(max(share, 0.0), 1.0))
        for a, b in zip(parts(low), parts(high), strict=True)
    )
    return "#" + "".join(f"{x:02x}" for x in mixed)


def ink(background: str) -> str:
    """Black or white, whichever is read better on a `#rrggbb` background."""
    red, green, blue = (int(background[i : i + 2], 16) for i in (1, 3, 5))
    return "#000000" if 0.299 * red + 0.587 * green + 0.114 * blue > 140 else "#ffffff"
