"""RigL (Evci et al., 2020): drop by magnitude, grow by the dense gradient of one batch.

As in google-research/rigl, the count to drop is rounded down, and what was just dropped may be
grown again, in which case it goes on as if nothing had happened.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from barter_jax.masked.selection import drop_and_grow, share_of


def update(
    active: jax.Array, weights: jax.Array, gradient: jax.Array, fraction: jax.Array
) -> jax.Array:
    """The new mask of one layer, with as many active weights as before.

    Args:
      active: bool `[in, out]`.
      weights: float32 `[in, out]`.
      gradient: float32 `[in, out]`, dense: also of weights that are masked.
      fraction: float32 scalar, of the active weights to replace.
    """
    amount = share_of(jnp.sum(active, dtype=jnp.int32), fraction)
    return drop_and_grow(active, jnp.abs(weights), jnp.abs(gradient), amount)
