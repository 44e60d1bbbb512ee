"""One body for all layers of a shape: deep models compile no more of a rule than shallow ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

PyTree = Any


def over_layers(fn: Callable[..., PyTree], *arguments: Sequence[PyTree]) -> list[PyTree]:
    """`[fn(*of_layer) for of_layer in zip(*arguments)]`, looping over layers of equal shapes.

    Args:
      fn: pure; from arrays (or pytrees of them) of one layer to such.
      *arguments: for each argument of `fn` what it is for each layer.
    """
    layers = list(zip(*arguments, strict=True))
    groups: dict[Any, list[int]] = {}
    for i, layer in enumerate(layers):
        leaves, structure = jax.tree.flatten(layer)
        shapes = tuple((jnp.shape(leaf), jnp.asarray(leaf).dtype) for leaf in leaves)
        groups.setdefault((structure, shapes), []).append(i)
    results: list[PyTree] = [None] * len(layers)
    for members in groups.values():
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(layers[i] for i in members))
        found = jax.lax.map(lambda layer: fn(*layer), stacked)
        for place, i in enumerate(members):
            results[i] = jax.tree.map(lambda leaf, place=place: leaf[place], found)
    return results
