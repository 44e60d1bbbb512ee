"""How many padded topologies a run can come to, told before its first step.

Which layers will give and receive depends on scores that are not known yet. What is known is how
many units each planned update moves, and how many a layer must gain or lose before its padding
changes.
"""

from __future__ import annotations

from collections.abc import Sequence

from barter_jax.core.schedule import PlannedUpdate
from barter_jax.core.topology import UNITS, Budget, Topology, pad


def shapes_at_most(
    initial: Topology,
    schedule: Sequence[PlannedUpdate],
    *,
    caps: Topology,
    min_units: int,
    bucket: Budget,
    waste: float,
) -> int:
    """A bound on the different physical topologies of a run, the initial one included.

    An update makes at most one new shape, and none where it moves nothing or where all that has
    moved by then is too little to change the padding of any layer.

    Args:
      initial: logical counts at the start.
      schedule: the planned updates.
      caps: the most units each layer may have.
      min_units: the fewest.
      bucket: see `topology.pad`.
      waste: likewise.
    """
    planned = dict.fromkeys(UNITS, 0)
    first = {unit: _first_change(unit, initial, caps, min_units, bucket, waste) for unit in UNITS}
    carries = {unit: may_carry(unit, initial, schedule, caps, min_units) for unit in UNITS}
    shapes = 1
    for update in schedule:
        changes = False
        for unit in UNITS:
            planned[unit] += update.amount(unit)
            moves = update.amount(unit) > 0 or carries[unit]
            changes |= moves and first[unit] is not None and planned[unit] >= first[unit]
        shapes += changes
    return shapes


def _first_change(
    unit: str, initial: Topology, caps: Topology, min_units: int, bucket: Budget, waste: float
) -> int | None:
    """How few units must move until a layer's padding differs from that at the start, if ever."""
    start = pad(initial, bucket)
    fewest = []
    counts = initial.of(unit)
    for layer, (n, most) in enumerate(zip(counts, caps.of(unit), strict=True)):
        # A layer reaches the counts next to its own first, upwards and downwards.
        for reached in (range(n + 1, most + 1), range(n - 1, min_units - 1, -1)):
            for count in reached:
                there = initial.with_counts(unit, (*counts[:layer], count, *counts[layer + 1 :]))
                if pad(there, bucket, start, waste) != start:
                    fewest.append(abs(count - n))
                    break
    return min(fewest, default=None)


def may_carry(
    unit: str,
    initial: Topology,
    schedule: Sequence[PlannedUpdate],
    caps: Topology,
    min_units: int,
) -> bool:
    """Whether units planned for one update may have to wait for another.

    Not where, whatever has moved before, every layer has room for what is left, parents for it,
    and donors outside it: founders, which are never too young.
    """
    total = sum(update.amount(unit) for update in schedule)
    counts = initial.of(unit)
    spare = sum(counts) - min_units * len(counts)
    return any(
        total > min(most - n, n, spare - (n - min_units))
        for n, most in zip(counts, caps.of(unit), strict=True)
    )
