"""Surgery: one plan, one index map, any pytree.

A plan becomes, for each layer that changes, a `LayerMap`: which old unit stands behind each new
one, with what share of its output weights. The same map then resizes parameters, optimizer
moments, parameter averages and scores. What differs between them is only how a leaf's values
follow the map; that is named by a `Follow` rule.

All of it is numpy on the host: an update is rare and its tensors are small, and no shape is
compiled for it. Untouched leaves come back as the very objects that went in.

Physical leaves may be padded: beyond the logical count of their layer they hold zeros. They are
cut before the map is applied and padded again to the new physical count after it.
"""

from __future__ import annotations

import dataclasses
import math
import zlib
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from barter_jax.core.policy import Plan
from barter_jax.core.topology import Topology
from barter_jax.core.units import INPUT, UnitAxis, UnitTable, map_units

PyTree = Any


class Nudge(NamedTuple):
    """Symmetry-breaking noise: add `weight` times the noise of clone `clone` to unit `position`."""

    position: int
    clone: int
    weight: float


@dataclasses.dataclass(frozen=True)
class LayerMap:
    """How the units of one layer come out of the old ones.

    Attributes:
      sources: old index of each new unit; clones stand at the end.
      shares: what each new unit keeps of its source's output weights. The shares of one source
        add up to 1 where it was kept at all, so the layer computes what it did.
      clones: how many of the last units are clones.
      nudges: where the noise of each clone goes: to the clone and, opposite, to its parent,
        weighted so that the function is unchanged to first order.
    """

    sources: tuple[int, ...]
    shares: tuple[float, ...]
    clones: int = 0
    nudges: tuple[Nudge, ...] = ()


Maps = dict[tuple[str, int], LayerMap]


def next_topology(topology: Topology, plans: Iterable[Plan]) -> Topology:
    """The counts after the plans."""
    for plan in plans:
        counts = list(topology.of(plan.unit))
        counts[plan.receiver] += plan.amount
        for layer, _ in plan.donors:
            counts[layer] -= 1
        topology = topology.with_counts(plan.unit, counts)
    return topology


def index_maps(topology: Topology, plans: Iterable[Plan], share: float = 0.5) -> Maps:
    """The maps of all layers that change.

    Args:
      topology: logical counts before the plans.
      plans: at most one per unit type.
      share: what a single clone takes over of its parent's output weights, in (0, 1). With 0.5
        several clones of one parent and the parent share evenly; in general parent and clones
        share in the proportion (1 - share) : share : share ...

    Raises:
      ValueError: a plan names a unit that does not exist, or two plans the same unit type.
    """
    if not 0 < share < 1:
        raise ValueError(f"the clone's share must be between 0 and 1, got {share}")
    maps: Maps = {}
    planned = set()
    for plan in plans:
        if plan.unit in planned:
            raise ValueError(f"two plans for {plan.unit} in one update")
        planned.add(plan.unit)
        counts = topology.of(plan.unit)
        for layer, i in plan.donors:
            _check_unit(plan.unit, layer, i, counts)
        for i in plan.parents:
            _check_unit(plan.unit, plan.receiver, i, counts)
        for layer in sorted({layer for layer, _ in plan.donors}):
            pruned = {i for donor_layer, i in plan.donors if donor_layer == layer}
            kept = tuple(i for i in range(counts[layer]) if i not in pruned)
            maps[plan.unit, layer] = LayerMap(kept, (1.0,) * len(kept))
        if plan.amount:
            maps[plan.unit, plan.receiver] = _clone_map(counts[plan.receiver], plan.parents, share)
    return maps


def _check_unit(unit: str, layer: int, i: int, counts: Sequence[int]) -> None:
    if not (0 <= layer < len(counts) and 0 <= i < counts[layer]):
        raise ValueError(f"the plan names unit {i} of the {unit} of layer {layer}: none such")


def _clone_map(count: int, parents: Sequence[int], share: float) -> LayerMap:
    clones_of = {p: parents.count(p) for p in parents}

    def split(parent: int) -> tuple[float, float]:
        whole = (1 - share) + clones_of[parent] * share
        return (1 - share) / whole, share / whole

    shares = [split(i)[0] if i in clones_of else 1.0 for i in range(count)]
    nudges = []
    for clone, parent in enumerate(parents):
        parent_share, clone_share = split(parent)
        shares.append(clone_share)
        # parent_share * 2 clone_share - clone_share * 2 parent_share = 0: no first-order change.
        nudges.append(Nudge(count + clone, clone, -2 * parent_share))
        nudges.append(Nudge(parent, clone, 2 * clone_share))
    return LayerMap((*range(count), *parents), tuple(shares), len(parents), tuple(nudges))


@dataclasses.dataclass(frozen=True)
class Follow:
    """How the values of a leaf follow their units through a map.

    Attributes:
      input_power: input leaves of a unit with share s are multiplied by s ** input_power.
      output_power: likewise for output leaves.
      noise: amplitude of the symmetry-breaking noise on input leaves, in units of the root mean
        square of the parent's own slice.
      fresh_clones: set clones to zero instead of copying them.
    """

    input_power: float = 0.0
    output_power: float = 0.0
    noise: float = 0.0
    fresh_clones: bool = False


COPY = Follow()


def parameters(noise: float = 0.0) -> Follow:
    """Parameters: input copied (and nudged apart), output split. Also for parameter averages."""
    return Follow(output_power=1.0, noise=noise)


def moments(gradient_power: float, mode: str = "scaled") -> Follow:
    """Optimizer moments of degree `gradient_power` in the gradient.

    A unit whose output weights are scaled by s has input gradients scaled by s and output
    gradients unchanged, so with `"scaled"` first moments of input leaves go with s and second
    moments with s^2. `"copy"` leaves all as it was. `"reset"` is `"scaled"` for the parents with
    clones started at zero (pair it with a learning-rate warm-up of the clones).

    Raises:
      ValueError: an unknown mode.
    """
    if mode == "copy":
        return COPY
    if mode not in ("scaled", "reset"):
        raise ValueError(f"moments follow as 'scaled', 'copy' or 'reset', not {mode!r}")
    return Follow(input_power=gradient_power, fresh_clones=mode == "reset")


def resize(
    tree: PyTree,
    table: UnitTable,
    logical: Topology,
    physical: Topology,
    maps: Maps,
    follow: Follow = COPY,
    seed: Sequence[int] = (0,),
) -> PyTree:
    """Resizes every unit leaf of a parameter-shaped tree.

    Args:
      tree: leaves are arrays, possibly padded beyond `logical`.
      table: the model's unit axes.
      logical: counts that `tree` really holds.
      physical: counts that the result is padded to (equal to the logical counts after the maps
        where no padding is wanted).
      maps: from `index_maps`; empty to change the padding only.
      follow: how the values follow.
      seed: non-negative ints that determine the noise (with the leaf's path).

    Returns:
      The tree, with numpy arrays where a leaf changed and the same objects elsewhere.
    """

    def one(axis: UnitAxis, leaf):
        return resize_leaf(leaf, axis, logical, physical, maps, follow, seed)

    return map_units(one, table, tree)


def resize_leaf(
    leaf,
    axis: UnitAxis,
    logical: Topology,
    physical: Topology,
    maps: Maps,
    follow: Follow = COPY,
    seed: Sequence[int] = (0,),
):
    """Resizes one leaf; see `resize`."""
    layer_map = maps.get((axis.unit, axis.layer))
    target = physical.of(axis.unit)[axis.layer]
    if layer_map is None and leaf.shape[axis.axis] == target:
        return leaf
    values = np.moveaxis(np.asarray(leaf), axis.axis, 0)[: logical.of(axis.unit)[axis.layer]]
    if layer_map is not None:
        values = _follow(values, axis, layer_map, follow, seed)
    if len(values) > target:
        raise ValueError(f"{axis.name}: {len(values)} units do not fit in {target}")
    padded = np.zeros((target, *values.shape[1:]), values.dtype)
    padded[: len(values)] = values
    return np.ascontiguousarray(np.moveaxis(padded, 0, axis.axis))


def _follow(
    values: np.ndarray, axis: UnitAxis, layer_map: LayerMap, follow: Follow, seed: Sequence[int]
) -> np.ndarray:
    """Applies one map to values whose leading axis runs over the units."""
    new = values[list(layer_map.sources)]
    is_input = axis.role == INPUT
    power = follow.input_power if is_input else follow.output_power
    if power:
        for i, share in enumerate(layer_map.shares):
            # Multiplying by 1 would be exact too; not touching survivors makes it plain.
            if share != 1.0:
                new[i] = (new[i].astype(np.float64) * share**power).astype(new.dtype)
    if follow.fresh_clones and layer_map.clones:
        new[-layer_map.clones :] = 0
    if follow.noise and is_input and layer_map.nudges:
        new = _nudged(values, new, axis, layer_map, follow.noise, seed)
    return new


def _nudged(values, new, axis, layer_map, amplitude, seed):
    clones = layer_map.clones
    parents = layer_map.sources[-clones:]
    rng = np.random.default_rng([*seed, zlib.crc32(axis.name.encode())])
    noise = rng.standard_normal((clones, *values.shape[1:]))
    for clone, parent in enumerate(parents):
        slice_ = np.asarray(values[parent], np.float64)
        noise[clone] *= amplitude * math.sqrt(np.mean(slice_ * slice_))
    exact = new.astype(np.float64)
    for nudge in layer_map.nudges:
        exact[nudge.position] += nudge.weight * noise[nudge.clone]
    touched = sorted({nudge.position for nudge in layer_map.nudges})
    new[touched] = exact[touched].astype(new.dtype)
    return new


def check_matches(tree: PyTree, expected: PyTree, what: str) -> None:
    """Checks structure, shapes and dtypes of a resized tree.

    Raises:
      ValueError: they differ; the first difference is named.
    """
    got, want = jax.tree.structure(tree), jax.tree.structure(expected)
    if got != want:
        raise ValueError(f"{what}: structure {got}, expected {want}")
    for (path, a), b in zip(
        jax.tree_util.tree_flatten_with_path(tree)[0], jax.tree.leaves(expected), strict=True
    ):
        if a.shape != b.shape or a.dtype != b.dtype:
            raise ValueError(
                f"{what}: {jax.tree_util.keystr(path)} is {a.dtype}{list(a.shape)}, "
                f"expected {b.dtype}{list(b.shape)}"
            )
