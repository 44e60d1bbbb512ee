"""How many weights of each layer are active: Erdos-Renyi-kernel and uniform densities.

Erdos-Renyi (Mocanu et al., 2018), its "kernel" form (Evci et al., 2020): the density of a layer is
proportional to the sum of its dimensions over their product; layers that would come out above 1
are dense, and the others share what is left, repeatedly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from barter_jax.core.schedule import largest_remainder
from barter_jax.errors import UserError

ERK, UNIFORM = "erk", "uniform"
ALLOCATIONS = (ERK, UNIFORM)


def densities(
    shapes: Sequence[tuple[int, int]], density: float, allocation: str = ERK
) -> tuple[float, ...]:
    """The density of each layer; weighted by size they average to `density`.

    Args:
      shapes: `(in, out)` of each layer.
      density: of all layers together, in (0, 1].
      allocation: `"erk"` or `"uniform"`.

    Raises:
      UserError: the density is out of range or the allocation unknown.
    """
    if not 0 < density <= 1:
        raise UserError(f"density must be in (0, 1], got {density:g}")
    if allocation not in ALLOCATIONS:
        raise UserError(f"allocation must be one of {', '.join(ALLOCATIONS)}, got {allocation!r}")
    return _densities(shapes, density, allocation, frozenset())


def _densities(shapes, density, allocation, dense: frozenset[int]) -> tuple[float, ...]:
    """With the layers in `dense` known to be full."""
    sizes = [math.prod(shape) for shape in shapes]
    raw = [sum(s) / math.prod(s) if allocation == ERK else 1.0 for s in shapes]
    while True:
        rest = [i for i in range(len(shapes)) if i not in dense]
        left = density * sum(sizes) - sum(sizes[i] for i in dense)
        if not rest:
            return (1.0,) * len(shapes)
        scale = left / sum(raw[i] * sizes[i] for i in rest)
        over = {i for i in rest if scale * raw[i] > 1}
        if not over:
            return tuple(1.0 if i in dense else scale * raw[i] for i in range(len(shapes)))
        # The largest first: with them full, others may come below 1 again.
        most = max(raw[i] for i in over)
        dense |= {i for i in over if raw[i] == most}


def active_counts(
    shapes: Sequence[tuple[int, int]], density: float, allocation: str = ERK
) -> tuple[int, ...]:
    """The active weights of each layer, `round(density * all weights)` together, exactly.

    Fractions are settled by largest remainder, ties to the earlier layer.

    Args:
      shapes, density, allocation: see `densities`.

    Raises:
      UserError: as `densities`, or a layer would have no active weight at all.
    """
    sizes = [math.prod(shape) for shape in shapes]
    total = round(density * sum(sizes))
    wanted = densities(shapes, density, allocation)
    full: frozenset[int] = frozenset(i for i, d in enumerate(wanted) if d >= 1)
    while True:
        wanted = _densities(shapes, density, allocation, full)
        rest = [i for i in range(len(shapes)) if i not in full]
        counts = list(sizes)
        if rest:
            left = total - sum(sizes[i] for i in full)
            shares = largest_remainder(left, [wanted[i] * sizes[i] for i in rest])
            for i, count in zip(rest, shares, strict=True):
                counts[i] = count
        # The total is rounded too, which may lift a layer of almost density 1 above its size.
        over = frozenset(i for i in rest if counts[i] > sizes[i])
        if not over:
            break
        full |= over
    if min(counts) < 1:
        raise UserError(
            f"density={density:g} leaves a layer of {sizes[counts.index(min(counts))]} weights "
            "without any: raise it"
        )
    return tuple(counts)
