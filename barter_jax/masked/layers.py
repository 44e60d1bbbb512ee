"""Which leaves are masked: the weights of the Transformer layers, grouped into matrices.

A mask layer is one linear map: query, key and value together, the output projection, the first and
the second FFN layer. The methods work on it as on one matrix `[in, out]`, whatever the leaves
look like that hold it. Nothing else is masked: no bias, norm, embedding or classifier.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from barter_jax.core.topology import UNITS
from barter_jax.core.units import INPUT, OUTPUT, UnitTable, path_names

PyTree = Any
# By the path of a leaf, joined by "/".
Leaves = Mapping[str, Any]
Masks = dict[str, jax.Array]


@dataclasses.dataclass(frozen=True)
class MaskLayer:
    """One masked matrix.

    Attributes:
      layer: number of the Transformer layer.
      unit: the units that it belongs to, `"heads"` or `"channels"`.
      role: `"input"` if the units are on its output side, `"output"` if on its input side.
      names: the leaves that hold it, paths joined by `/`. Their columns stand side by side.
      shapes: shapes of the leaves.
      axes: how many leading axes of each leaf make up the input side.
    """

    layer: int
    unit: str
    role: str
    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    axes: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, int]:
        """`(in, out)` of the whole matrix."""
        pairs = list(zip(self.shapes, self.axes, strict=True))
        return math.prod(pairs[0][0][: pairs[0][1]]), sum(math.prod(s[n:]) for s, n in pairs)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def matrix(self, leaves: Leaves) -> jax.Array:
        """`[in, out]`, from leaves by name (of parameters, gradients, masks or averages)."""
        rows = self.shape[0]
        return jnp.concatenate([leaves[name].reshape(rows, -1) for name in self.names], axis=1)

    def leaves(self, matrix: jax.Array) -> dict[str, jax.Array]:
        """The leaves that `matrix` came from."""
        widths = [math.prod(shape) // self.shape[0] for shape in self.shapes]
        parts = jnp.split(matrix, np.cumsum(widths)[:-1], axis=1)
        return {
            name: part.reshape(shape)
            for name, part, shape in zip(self.names, parts, self.shapes, strict=True)
        }


def mask_layers(table: UnitTable, params: PyTree) -> tuple[MaskLayer, ...]:
    """The mask layers of a model, from the input to the output.

    Args:
      table: the model's unit axes. A unit's weights are those of its leaves that are called
        `kernel`.
      params: dense parameters, arrays or shape structs.

    Raises:
      ValueError: a kernel lacks an input or an output side, or the kernels of a layer that read
        the same input differ in its width.
    """
    shapes = {name: leaf.shape for name, leaf in leaves_by_name(params).items()}
    groups: dict[tuple[int, str, str], list] = {}
    for axis in table.axes:
        if axis.path[-1] != "kernel":
            continue
        shape = shapes.get(axis.name)
        if shape is None:
            raise ValueError(f"the parameters have no leaf {axis.name}")
        # Units are the outputs of what feeds them, and the inputs of what reads them.
        inputs = axis.axis if axis.role == INPUT else len(shape) - 1
        if not axis.axis <= inputs < len(shape) or inputs == 0:
            raise ValueError(
                f"{axis.name} of shape {list(shape)} with its {axis.unit} on axis {axis.axis} has "
                "no input or no output side"
            )
        groups.setdefault((axis.layer, axis.unit, axis.role), []).append((axis.name, shape, inputs))
    layers = []
    for layer, unit, role in sorted(
        groups, key=lambda g: (g[0], UNITS.index(g[1]), (INPUT, OUTPUT).index(g[2]))
    ):
        names, leaf_shapes, inputs = zip(*groups[layer, unit, role], strict=True)
        widths = {math.prod(s[:n]) for s, n in zip(leaf_shapes, inputs, strict=True)}
        if len(widths) > 1:
            raise ValueError(f"{' and '.join(names)} read inputs of different widths")
        layers.append(MaskLayer(layer, unit, role, names, leaf_shapes, inputs))
    return tuple(layers)


def leaves_by_name(tree: PyTree) -> dict[str, Any]:
    """Leaves of a tree by their path, joined by `/`."""
    return {
        "/".join(path_names(path)): leaf
        for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]
    }


def mask_tree(params: PyTree, masks: Masks) -> PyTree:
    """A tree like the parameters with the mask of each leaf, or True where it has none."""
    return jax.tree_util.tree_map_with_path(
        lambda path, _: masks.get("/".join(path_names(path)), True), params
    )


def apply_masks(tree: PyTree, masks: Masks) -> PyTree:
    """A tree like the parameters with zeros where a mask is False."""
    return jax.tree.map(hidden, tree, mask_tree(tree, masks))


def hidden(leaf: jax.Array, mask: jax.Array | bool) -> jax.Array:
    """A leaf with zeros where its mask is False; the leaf itself where the mask is True as such."""
    return leaf if mask is True else jnp.where(mask, leaf, 0)
