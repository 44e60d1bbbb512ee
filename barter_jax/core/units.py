"""The unit-axis table: which axis of which leaf belongs to which unit, on which side of it.

This table is all that the method needs to know of a model. A head's query, key and value
projections are its *input* parameters and the output projection its *output* parameters; a
channel's `fc1` column and bias are input, its `fc2` row is output. Gated FFNs have two input
projections; any pytree will do, as long as the units of a layer lie along one axis of each leaf.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax

from barter_jax.core.topology import UNITS, Topology

INPUT, OUTPUT = "input", "output"

Path = tuple[str, ...]
PyTree = Any


@dataclasses.dataclass(frozen=True)
class UnitAxis:
    """One leaf whose axis `axis` runs over the units of one type in one layer.

    Attributes:
      path: keys from the root of the parameter tree to the leaf, as strings.
      unit: `"heads"` or `"channels"`.
      layer: layer index, from 0.
      axis: axis of the leaf that runs over the units, not negative.
      role: `"input"` for parameters that feed the unit, `"output"` for those that read it.
    """

    path: Path
    unit: str
    layer: int
    axis: int
    role: str

    def __post_init__(self):
        if self.unit not in UNITS:
            raise ValueError(f"{self.name}: unit must be one of {UNITS}, got {self.unit!r}")
        if self.role not in (INPUT, OUTPUT):
            raise ValueError(f"{self.name}: role must be 'input' or 'output', got {self.role!r}")
        if self.axis < 0 or self.layer < 0:
            raise ValueError(f"{self.name}: axis and layer must not be negative")

    @property
    def name(self) -> str:
        return "/".join(self.path)


@dataclasses.dataclass(frozen=True)
class UnitTable:
    """All the unit axes of a model.

    Raises:
      ValueError: a leaf is named twice, or a layer's units lack input or output parameters.
    """

    axes: tuple[UnitAxis, ...]

    def __post_init__(self):
        roles: dict[tuple[str, int], set[str]] = {}
        seen: set[Path] = set()
        for axis in self.axes:
            if axis.path in seen:
                raise ValueError(f"{axis.name} stands twice in the unit table")
            seen.add(axis.path)
            roles.setdefault((axis.unit, axis.layer), set()).add(axis.role)
        for (unit, layer), present in roles.items():
            for role in (INPUT, OUTPUT):
                if role not in present:
                    raise ValueError(f"the {unit} of layer {layer} have no {role} parameters")
        for unit in UNITS:
            layers = sorted(layer for u, layer in roles if u == unit)
            if layers != list(range(len(layers))):
                raise ValueError(f"layers with {unit} must be 0, 1, 2, ..., got {layers}")

    @classmethod
    def from_patterns(
        cls,
        layers: int,
        patterns: Mapping[str, Mapping[str, Mapping[str, int]]],
    ) -> UnitTable:
        """Builds the table of a model whose layers look alike.

        Args:
          layers: number of layers.
          patterns: `{unit: {role: {path: axis}}}`, where a path is a string of keys joined by
            `/` and `{layer}` in it stands for the layer's number, as in
            `{"channels": {"input": {"block_{layer}/fc1/kernel": 1}, "output": {...}}}`.
        """
        return cls(
            tuple(
                UnitAxis(tuple(path.format(layer=layer).split("/")), unit, layer, axis, role)
                for layer in range(layers)
                for unit, roles in patterns.items()
                for role, leaves in roles.items()
                for path, axis in leaves.items()
            )
        )

    @functools.cached_property
    def by_path(self) -> dict[Path, UnitAxis]:
        return {axis.path: axis for axis in self.axes}

    def measure(self, params: PyTree) -> Topology:
        """Reads the topology off a parameter tree (arrays or shape structs).

        Raises:
          ValueError: a leaf of the table is missing, lacks the axis, or disagrees with another
            leaf of its layer about the number of units.
        """
        shapes = {
            path_names(path): leaf.shape
            for path, leaf in jax.tree_util.tree_flatten_with_path(params)[0]
        }
        counts: dict[tuple[str, int], tuple[int, str]] = {}
        for axis in self.axes:
            shape = shapes.get(axis.path)
            if shape is None:
                raise ValueError(f"the parameters have no leaf {axis.name}")
            if axis.axis >= len(shape):
                raise ValueError(f"{axis.name} has shape {shape} and no axis {axis.axis}")
            n, first = counts.setdefault((axis.unit, axis.layer), (shape[axis.axis], axis.name))
            if n != shape[axis.axis]:
                raise ValueError(
                    f"layer {axis.layer} has {n} {axis.unit} by {first} "
                    f"but {shape[axis.axis]} by {axis.name}"
                )
        return Topology(
            *(tuple(counts[unit, layer][0] for layer in range(self.layers(unit))) for unit in UNITS)
        )

    def layers(self, unit: str) -> int:
        """How many layers have units of this type."""
        return len({axis.layer for axis in self.axes if axis.unit == unit})


def path_names(key_path: tuple) -> Path:
    """A JAX key path as a tuple of plain strings."""
    return tuple(
        str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", key)))) for key in key_path
    )


def map_units(fn: Callable[..., Any], table: UnitTable, tree: PyTree, *rest: PyTree) -> PyTree:
    """Maps `fn(unit_axis, leaf, *rest_leaves)` over the leaves that belong to units.

    All other leaves of `tree` come back as they are. `rest` are trees of the same structure.
    """
    by_path = table.by_path

    def visit(key_path, leaf, *others):
        axis = by_path.get(path_names(key_path))
        return leaf if axis is None else fn(axis, leaf, *others)

    return jax.tree_util.tree_map_with_path(visit, tree, *rest)
