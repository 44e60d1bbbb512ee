"""SNFS, sparse networks from scratch (Dettmers and Zettlemoyer, 2019).

Each layer drops its smallest weights. What was dropped in all is grown where the running average of
the dense gradient is large: layers share it in proportion to the mean magnitude of that average
over their active weights, and within a layer the largest magnitudes win. So weights move between
layers; their total stays.

The original caps what a layer can take at 99% of its room and hands the rest out evenly, and lets
nearly dense layers drop less. Here a layer can be filled to the last weight, the rest goes out in
proportion again, and every layer drops by the same fraction.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from barter_jax.masked.batching import over_layers
from barter_jax.masked.selection import share_of_up, top_k


def average(ema: jax.Array, gradient: jax.Array, decay: float) -> jax.Array:
    """The running average after one more dense gradient."""
    return decay * ema + (1 - decay) * gradient.astype(ema.dtype)


def update(
    active: Sequence[jax.Array],
    weights: Sequence[jax.Array],
    ema: Sequence[jax.Array],
    fraction: jax.Array,
) -> list[jax.Array]:
    """The new masks of all layers, with as many active weights together as before.

    Args:
      active: bool `[in, out]` of each layer.
      weights: float32, likewise.
      ema: running averages of the dense gradients, float32, likewise.
      fraction: float32 scalar, of the active weights of each layer to drop (rounded up).
    """

    def dropped(mask, w):
        count = jnp.sum(mask, dtype=jnp.int32)
        drop = share_of_up(count, fraction)
        return count, drop, top_k(jnp.abs(w), count - drop, mask)

    def mean(mask, e):
        # Before the drop, as in the original. A layer without active weights has no mean.
        count = jnp.sum(mask, dtype=jnp.int32)
        return jnp.sum(jnp.where(mask, jnp.abs(e), 0)) / jnp.maximum(count, 1)

    counts, drops, kept = zip(*over_layers(dropped, active, weights), strict=True)
    room = [mask.size - n + drop for mask, n, drop in zip(active, counts, drops, strict=True)]
    means = over_layers(mean, active, ema)
    grown = share_out(sum(drops), jnp.stack(means), jnp.stack(room), jnp.stack(drops))
    return over_layers(
        lambda mask, e, amount: mask | top_k(jnp.abs(e), amount, ~mask), kept, ema, list(grown)
    )


def share_out(
    total: jax.Array, weights: jax.Array, capacity: jax.Array, fallback: jax.Array
) -> jax.Array:
    """Splits a whole number in proportion to weights, within capacities, to the last unit.

    What a full part cannot take goes to the others in proportion, repeatedly. Fractions are settled
    by largest remainder, ties to the earlier part. If the weights of all that still have room
    are zero, they are filled from the first on.

    Args:
      total: int32 scalar, at most the sum of the capacities.
      weights: float32 `[n]`, not negative.
      capacity: int32 `[n]`.
      fallback: int32 `[n]`: the weights to use where `weights` are all zero or not finite.

    Returns:
      int32 `[n]`, `total` together.
    """
    scale = jnp.sum(weights)
    usable = jnp.isfinite(scale) & (scale > 0)
    weights = jnp.where(usable, weights, fallback.astype(jnp.float32))

    def shares(full):
        """What each part would take of what the full ones leave."""
        left = (total - jnp.sum(jnp.where(full, capacity, 0))).astype(jnp.float32)
        share = jnp.where(full, 0.0, weights)
        return left * share / jnp.maximum(jnp.sum(share), jnp.finfo(jnp.float32).tiny)

    def give(parts, amounts):
        """Adds amounts, in order, as far as there is room and something left."""
        amounts = jnp.clip(amounts, 0, capacity - parts)
        before = jnp.cumsum(amounts) - amounts
        return parts + jnp.clip(total - jnp.sum(parts) - before, 0, amounts)

    # A part that is full stays so, for the others' shares only grow.
    full = jax.lax.fori_loop(
        0,
        capacity.shape[0],
        lambda _, full: full | (shares(full) >= capacity),
        jnp.zeros(capacity.shape, bool),
    )
    wanted = shares(full)
    whole = jnp.floor(wanted).astype(jnp.int32)
    parts = give(give(jnp.zeros_like(capacity), jnp.where(full, capacity, 0)), whole)
    one = top_k(wanted - whole, total - jnp.sum(parts), ~full & (wanted > 0))
    return give(give(parts, one.astype(jnp.int32)), capacity)
