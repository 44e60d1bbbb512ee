"""The run's planned topology updates: when they come and how many units each one moves.

The paper fixes the totals; how they are spread over a run is this project's choice: evenly spaced
updates, amounts with cosine-decayed weights. A pure function of the configuration, so that a run
can print its plan before its first step.
"""

from __future__ import annotations

import dataclasses
import math

from barter_jax.core.topology import Budget

# Both reproduce every row of the paper's transfer totals.
HEAD_FRACTION = 0.06
CHANNEL_FRACTION = 0.0562


@dataclasses.dataclass(frozen=True)
class PlannedUpdate:
    """One topology update: after `step` optimizer steps, move so many heads and channels."""

    step: int
    heads: int
    channels: int

    def amount(self, unit: str) -> int:
        """Units of one type to move at this update."""
        return Budget(self.heads, self.channels).of(unit)


def default_transfers(budget: Budget, multiplier: float = 1.0) -> Budget:
    """Transfers over a whole run: the paper's fractions of the budgets, times a multiplier.

    The paper studies multipliers of 2, 4 and 6 (its Table 16).
    """
    return Budget(
        round(multiplier * round(HEAD_FRACTION * budget.heads)),
        round(multiplier * round(CHANNEL_FRACTION * budget.channels)),
    )


def plan_updates(
    total_steps: int,
    updates: int,
    start_fraction: float,
    end_fraction: float,
    transfers: Budget,
) -> tuple[PlannedUpdate, ...]:
    """Spreads the transfers of a run over evenly spaced updates.

    Args:
      total_steps: optimizer steps of the run.
      updates: topology updates to plan; fewer come back where a short run puts two of them on
        one step, whose amounts are then added up.
      start_fraction: when the first update comes, as a fraction of the run.
      end_fraction: when the last one comes.
      transfers: heads and channels to move over the whole run; the plan adds up to them exactly.

    Returns:
      The updates in order of their steps, all within [1, total_steps - 1]: one after the last
      step could never be trained. Empty where nothing is to be moved or the run is too short.

    Raises:
      ValueError: a fraction or a count is out of range.
    """
    if not 0 <= start_fraction <= end_fraction <= 1:
        raise ValueError(
            "topology.start_fraction and topology.end_fraction must be 0 <= start <= end <= 1, "
            f"got {start_fraction:g} and {end_fraction:g}"
        )
    if updates < 0 or transfers.heads < 0 or transfers.channels < 0:
        raise ValueError("topology.updates and the transfer totals must not be negative")
    if updates == 0 or total_steps < 2 or not (transfers.heads or transfers.channels):
        return ()
    gaps = max(updates - 1, 1)
    fractions = [
        start_fraction + (end_fraction - start_fraction) * i / gaps for i in range(updates)
    ]
    steps = [min(max(round(f * total_steps), 1), total_steps - 1) for f in fractions]
    weights = [0.5 * (1 + math.cos(math.pi * i / updates)) for i in range(updates)]
    heads = largest_remainder(transfers.heads, weights)
    channels = largest_remainder(transfers.channels, weights)
    merged: dict[int, Budget] = {}
    for step, h, c in zip(steps, heads, channels, strict=True):
        before = merged.get(step, Budget(0, 0))
        merged[step] = Budget(before.heads + h, before.channels + c)
    return tuple(PlannedUpdate(step, b.heads, b.channels) for step, b in sorted(merged.items()))


def largest_remainder(total: int, weights: list[float]) -> list[int]:
    """Splits a whole number in proportion to weights; the parts add up to it exactly.

    Each part is the floor of its share; the units left over go to the largest remainders, ties to
    the earlier part.
    """
    scale = sum(weights)
    shares = [total * w / scale for w in weights]
    parts = [math.floor(s) for s in shares]
    by_remainder = sorted(range(len(parts)), key=lambda i: (parts[i] - shares[i], i))
    for i in by_remainder[: total - sum(parts)]:
        parts[i] += 1
    return parts
