"""What a masked model amounts to: its count of parameters, and S2ViTE's as a compact model."""

from __future__ import annotations

import math
from typing import Any

import jax
import numpy as np

from barter_jax.core import surgery
from barter_jax.core.topology import UNITS, Topology
from barter_jax.core.units import INPUT, OUTPUT, UnitTable
from barter_jax.masked import s2vite
from barter_jax.masked.layers import Leaves, Masks, leaves_by_name

PyTree = Any


def nonzero(params: PyTree, masks: Masks) -> int:
    """Parameters of the model with those masked left out; biases and the like are all counted.

    It goes by the masks: a weight that is active and happens to be zero counts. (For S2ViTE see
    `compact`: an exported head lacks its output weights too, which are not masked.)

    Args:
      params: dense parameters, arrays or shape structs.
      masks: bool arrays by name.
    """
    sizes = (math.prod(leaf.shape) for leaf in jax.tree.leaves(params))
    return sum(sizes) - sum(int(np.sum(~np.asarray(mask))) for mask in masks.values())


def compact(params: PyTree, masks: Masks, table: UnitTable) -> tuple[PyTree, Topology]:
    """The active heads and channels of S2ViTE alone, as parameters of a compact model.

    The compact model computes what the masked one does in evaluation. A channel that is off gives
    nothing. A head that is off still gives its value bias, whatever it attends to, since attention
    weights add up to 1: that constant goes into the bias of the output projection.

    Args:
      params: parameters under the masks.
      masks: S2ViTE's.
      table: the model's unit axes.

    Returns:
      Numpy parameters, and their topology.

    Raises:
      ValueError: a layer has no active unit.
    """
    params = jax.tree.map(np.asarray, params)
    active = jax.tree.map(np.asarray, s2vite.active_units(masks, table))
    maps, counts = {}, {}
    for unit in UNITS:
        for layer, units in enumerate(active[unit]):
            kept = tuple(int(i) for i in np.flatnonzero(units))
            if not kept:
                raise ValueError(f"no {unit} of layer {layer} are active")
            maps[unit, layer] = surgery.LayerMap(kept, (1.0,) * len(kept))
        counts[unit] = tuple(int(np.sum(units)) for units in active[unit])
    topology = Topology(**counts)
    folded = _fold_value_biases(params, active["heads"], table)
    return surgery.resize(folded, table, table.measure(params), topology, maps), topology


def _fold_value_biases(params: PyTree, heads, table: UnitTable) -> PyTree:
    """Adds what the value biases of inactive heads contribute to the output biases."""
    leaves = leaves_by_name(params)
    folded = {}
    for axis in table.axes:
        if axis.unit == "heads" and axis.role == INPUT and axis.path[-2:] == ("value", "bias"):
            out = next(
                other.path
                for other in table.axes
                if (other.unit, other.layer, other.role) == ("heads", axis.layer, OUTPUT)
            )
            off = ~heads[axis.layer]
            bias = "/".join((*out[:-1], "bias"))
            kernel = leaves["/".join(out)][off].astype(np.float64)
            extra = np.einsum("hk,hkd->d", leaves[axis.name][off].astype(np.float64), kernel)
            folded[bias] = (leaves[bias] + extra).astype(leaves[bias].dtype)
    return _with_leaves(params, folded)


def _with_leaves(params: PyTree, new: Leaves) -> PyTree:
    names = iter(leaves_by_name(params))
    return jax.tree.map(lambda leaf: new.get(next(names), leaf), params)
