"""Exact selection of the k largest, with a traced k: the mechanism of every drop and growth.

A threshold alone would enable too much where scores tie (many gradients are exactly zero), and a
sort of every matrix is slow. So the k-th largest value is found by bisection over the bits of the
scores, 32 counts of the array, and ties at that value go to the lowest indices.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np


def top_k(scores: jax.Array, k: jax.Array | int, eligible: jax.Array | None = None) -> jax.Array:
    """The k largest scores; all the eligible ones if there are fewer.

    Args:
      scores: float32, of any shape. NaN counts as larger than everything, so that the number of
        those chosen never depends on the values.
      k: int32 scalar, may be traced; at most 0 chooses none.
      eligible: bool, of the same shape: what may be chosen. Everything by default.

    Returns:
      Bool of the same shape with `min(k, eligible ones)` True. Of equal scores the first in
      row-major order are taken.
    """
    keys = _ordered_bits(scores).reshape(-1)
    if eligible is not None:
        # 0 is below every key there is.
        keys = jnp.where(eligible.reshape(-1), keys, 0)

    def bit(i, threshold):
        higher = threshold | (np.uint32(1) << (31 - i).astype(jnp.uint32))
        return jnp.where(jnp.sum(keys >= higher, dtype=jnp.int32) >= k, higher, threshold)

    # The largest threshold that at least k keys reach: the k-th largest key.
    threshold = jax.lax.fori_loop(0, 32, bit, jnp.zeros((), jnp.uint32))
    above = keys > threshold
    tied = (keys == threshold) & (keys > 0)
    room = k - jnp.sum(above, dtype=jnp.int32)
    chosen = above | (tied & (jnp.cumsum(tied, dtype=jnp.int32) <= room))
    # Where k is 0 or less, bisection ends at a threshold of no meaning.
    return (chosen & (jnp.asarray(k) > 0)).reshape(scores.shape)


def top_k_of_each(
    scores: jax.Array, k: jax.Array | int, eligible: jax.Array | None = None
) -> jax.Array:
    """`top_k` of each column.

    Args:
      scores: float32 `[in, out]`.
      k: int32, one for all columns or `[out]`.
      eligible: bool `[in, out]`.
    """
    if eligible is None:
        eligible = jnp.ones(scores.shape, bool)
    k = jnp.broadcast_to(k, scores.shape[1:])
    return jax.vmap(top_k, in_axes=(1, 0, 1), out_axes=1)(scores, k, eligible)


def _ordered_bits(scores: jax.Array) -> jax.Array:
    """Unsigned ints above 0 that order as the floats do, with NaN at the top."""
    # -0 and 0 are equal, and any NaN may carry a sign.
    scores = jnp.where(scores == 0, 0.0, scores.astype(jnp.float32))
    scores = jnp.where(jnp.isnan(scores), jnp.float32(np.nan), scores)
    bits = jax.lax.bitcast_convert_type(scores, jnp.uint32)
    negative = bits >> 31 == 1
    return jnp.where(negative, ~bits, bits | np.uint32(1 << 31))


def drop_and_grow(
    active: jax.Array, keep_scores: jax.Array, growth_scores: jax.Array, amount: jax.Array
) -> jax.Array:
    """Drops the active elements with the lowest scores and grows as many among all not kept.

    What was just dropped may be grown again, as in RigL and SET.

    Args:
      active: bool, any shape.
      keep_scores: float32, the same shape; those of inactive elements do not matter.
      growth_scores: float32, the same shape.
      amount: int32 scalar, at most the number of active elements.

    Returns:
      Bool with as many True as `active` has.
    """
    kept = top_k(keep_scores, jnp.sum(active, dtype=jnp.int32) - amount, active)
    return kept | top_k(growth_scores, amount, ~kept)


def share_of(count: jax.Array, fraction: jax.Array) -> jax.Array:
    """`floor(fraction * count)`, int32: how many of `count` to drop."""
    return jnp.floor(fraction * count.astype(jnp.float32)).astype(jnp.int32)


def share_of_up(count: jax.Array, fraction: jax.Array) -> jax.Array:
    """`ceil(fraction * count)`, int32."""
    return jnp.ceil(fraction * count.astype(jnp.float32)).astype(jnp.int32)
