"""SET, sparse evolutionary training (Mocanu et al., 2018).

Drops the smallest weights of each layer and grows as many at random among all that were not kept,
as google-research/rigl does it.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from barter_jax.masked.selection import drop_and_grow, share_of


def update(
    active: jax.Array, weights: jax.Array, draws: jax.Array, fraction: jax.Array
) -> jax.Array:
    """The new mask of one layer, with as many active weights as before.

    Args:
      active: bool `[in, out]`.
      weights: float32 `[in, out]`.
      draws: float32 `[in, out]`, random and uniform.
      fraction: float32 scalar, of the active weights to replace (rounded down).
    """
    amount = share_of(jnp.sum(active, dtype=jnp.int32), fraction)
    return drop_and_grow(active, jnp.abs(weights), draws, amount)
