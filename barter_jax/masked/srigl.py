"""SRigL (Lasby et al., 2024): RigL with one fan-in for all active neurons of a layer.

One update of a layer, as in calgaryml/condensed-sparsity:

1. The K smallest active weights are to go (K rounded down), K with the largest gradients to come.
   A weight is salient if it is among those that stay or among the K largest gradients.
2. Neurons with fewer than gamma * k salient weights are ablated, k being the fan-in that all
   neurons would have; as many stay, though, as can hold the layer's weights. What is ablated may
   come back at a later update.
3. The fan-in becomes k' = floor(weights of the layer / active neurons).
4. Of the neurons left, the largest weights stay, at most k' for each; each grows by its largest
   gradients up to k'.

So a layer of N weights at density 1 - S has `k' * active neurons` of them, at most N(1 - S): the
rounding costs up to one weight for each neuron. Where more than k' weights of a neuron would stay,
the original keeps arbitrary ones; here it is the largest.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from barter_jax.masked.selection import share_of, top_k, top_k_of_each


class Limits(NamedTuple):
    """What the update of a layer must keep to; ints, or int32 scalars.

    Attributes:
      weights: N(1 - S), the most weights that the layer may have.
      salient: a neuron with fewer salient weights is ablated.
      place: of the neurons by salient weights, the first `place + 1` are never ablated.
    """

    weights: jax.Array | int
    salient: jax.Array | int
    place: jax.Array | int

    @classmethod
    def of(cls, shape: tuple[int, int], weights: int, gamma: float) -> Limits:
        """The limits of a layer `[in, out]` with so many weights.

        Args:
          shape: `(in, out)`.
          weights: N(1 - S).
          gamma: the least part of k that must be salient, in [0, 1]; 0 ablates nothing.
        """
        inputs, neurons = shape
        salient = max(1, math.floor(gamma * (weights // neurons))) if gamma else 0
        # So many neurons can hold the weights. The original keeps one more where there is one.
        place = min(-(-weights // inputs), neurons - 1)
        return cls(weights, salient, place)


def initial(scores: jax.Array, weights: jax.Array | int) -> jax.Array:
    """The first mask: of each neuron those with the highest scores, as many in all of them.

    Args:
      scores: float32 `[in, out]`.
      weights: N(1 - S), the most weights that the layer may have.
    """
    return top_k_of_each(scores, weights // scores.shape[1])


def update(
    active: jax.Array,
    weights: jax.Array,
    gradient: jax.Array,
    fraction: jax.Array,
    limits: Limits,
) -> jax.Array:
    """The new mask of one layer.

    Args:
      active: bool `[in, out]`; the columns are the neurons.
      weights: float32 `[in, out]`.
      gradient: float32 `[in, out]`, dense.
      fraction: float32 scalar, of the active weights to drop.
      limits: of the layer.

    Returns:
      Bool `[in, out]` whose columns have k' True or none.
    """
    magnitude, gradient = jnp.where(active, jnp.abs(weights), 0), jnp.abs(gradient)
    count = jnp.sum(active, dtype=jnp.int32)
    # Weights that are exactly zero are never kept.
    nonzero = jnp.sum(magnitude != 0, dtype=jnp.int32)
    keep = jnp.minimum(count - share_of(count, fraction), nonzero)

    salient = top_k(magnitude, keep, active) | top_k(gradient, count - keep)
    salient = jnp.sum(salient, axis=0, dtype=jnp.int32)
    enough = jnp.sort(salient, descending=True)[limits.place]
    alive = salient >= jnp.minimum(limits.salient, enough)
    k = jnp.minimum(limits.weights // jnp.sum(alive, dtype=jnp.int32), active.shape[0])

    kept = top_k_of_each(magnitude, k, top_k(magnitude, keep, active & alive))
    missing = jnp.where(alive, k - jnp.sum(kept, axis=0, dtype=jnp.int32), 0)
    return kept | top_k_of_each(gradient, missing, ~kept)
