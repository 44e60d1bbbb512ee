"""S2ViTE (Chen et al., 2021): structured masks of heads and FFN channels.

Each layer keeps its number of heads and of channels, as in VITA-Group/SViTE. At an update the
share to drop is rounded up; what goes are the heads with the smallest mean of |A * dL/dA| over
their attention map A, and the channels with the smallest L1 norm of fc1 row and fc2 column. What
comes, among all that were not kept, are those with the largest L1 norm of the gradient: of query,
key and value for a head, of fc1 row and fc2 column for a channel.

What is masked of a head are its query, key and value weights. Of a channel there are two variants:

`as_released` masks the fc1 row, the fc1 bias and the fc2 column. A channel that is off then has
  exactly zero gradient, for each of its two sides is multiplied by the other; so whatever was just
  dropped is the only thing that can be grown, and the FFN topology never changes.
`repaired` masks fc1 alone, row and bias. The channel still computes nothing, but its fc2 column
  stands and gives the fc1 row a gradient.

A head that comes back starts with query, key and value weights of zero. Where these projections
have biases it can learn to attend again. Where they have none, as in CCT, the gradients of its
query and key are zero for as long as both are zero: it attends evenly for the rest of the run, and
only its value weights learn. The method has it so; we leave it.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from barter_jax.core.topology import UNITS
from barter_jax.core.units import INPUT, UnitTable
from barter_jax.masked.layers import Leaves, Masks
from barter_jax.masked.selection import drop_and_grow, share_of_up

AS_RELEASED, REPAIRED = "as_released", "repaired"
VARIANTS = (AS_RELEASED, REPAIRED)

# {"heads": (bool [h_0], bool [h_1], ...), "channels": ...}, one array for each layer.
Active = dict[str, tuple[jax.Array, ...]]


def update(
    active: jax.Array, keep_scores: jax.Array, growth_scores: jax.Array, fraction: jax.Array
) -> jax.Array:
    """Which units of one layer are active next; as many as before.

    Args:
      active: bool `[n]`.
      keep_scores: float32 `[n]`.
      growth_scores: float32 `[n]`.
      fraction: float32 scalar, of the active units to replace.
    """
    amount = share_of_up(jnp.sum(active, dtype=jnp.int32), fraction)
    return drop_and_grow(active, keep_scores, growth_scores, amount)


def masks(active: Active, table: UnitTable, leaves: Leaves, variant: str) -> Masks:
    """The masks of the leaves.

    Args:
      active: the units.
      table: the model's unit axes.
      leaves: parameters by name, for their shapes.
      variant: `"as_released"` or `"repaired"`.
    """
    found = {}
    for axis in table.axes:
        kernel, feeds = axis.path[-1] == "kernel", axis.role == INPUT
        if axis.unit == "heads":
            masked = kernel and feeds
        else:
            masked = feeds or variant == AS_RELEASED
        if masked:
            shape = [1] * len(leaves[axis.name].shape)
            shape[axis.axis] = -1
            units = active[axis.unit][axis.layer].reshape(shape)
            found[axis.name] = jnp.broadcast_to(units, leaves[axis.name].shape)
    return found


def active_units(found: Masks, table: UnitTable) -> Active:
    """The units that the masks leave active."""
    units: dict[str, dict[int, jax.Array]] = {unit: {} for unit in UNITS}
    for axis in table.axes:
        if axis.path[-1] == "kernel" and axis.role == INPUT:
            others = tuple(i for i in range(found[axis.name].ndim) if i != axis.axis)
            units[axis.unit][axis.layer] = jnp.any(found[axis.name], axis=others)
    return {unit: tuple(layers[i] for i in sorted(layers)) for unit, layers in units.items()}


def norms(table: UnitTable, leaves: Leaves, unit: str, roles: Sequence[str]) -> list[jax.Array]:
    """L1 norm of each unit's kernels of some roles: float32 `[n]` for each layer."""
    found: dict[int, jax.Array] = {}
    for axis in table.axes:
        if axis.unit == unit and axis.role in roles and axis.path[-1] == "kernel":
            leaf = leaves[axis.name].astype(jnp.float32)
            others = tuple(i for i in range(leaf.ndim) if i != axis.axis)
            part = jnp.sum(jnp.abs(leaf), axis=others)
            found[axis.layer] = found[axis.layer] + part if axis.layer in found else part
    return [found[layer] for layer in sorted(found)]
