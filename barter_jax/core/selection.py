"""Which units of a dense model a compact one starts with.

Each layer keeps its best units, in the order in which they stood, with the parameters that they
had: nothing is rescaled. What "best" means is this project's choice; the paper does not say how
its compact model comes out of the dense one when fine-tuning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import numpy as np

from barter_jax.core import scores
from barter_jax.core.surgery import LayerMap, Maps, resize
from barter_jax.core.topology import UNITS, Topology
from barter_jax.core.units import UnitTable
from barter_jax.errors import UserError

PyTree = Any
# Importance of each unit: {unit type: one float64 array [units] for each layer}.
Importance = dict[str, tuple[np.ndarray, ...]]
# Indices of the units to keep, ascending: {unit type: one tuple for each layer}.
Kept = dict[str, tuple[tuple[int, ...], ...]]

KINDS = ("taylor", "magnitude", "random")


def importances(
    loss_and_grads: Callable[[PyTree, Any], tuple[Any, PyTree]],
    table: UnitTable,
    params: PyTree,
    batches: Iterable[Any],
    kind: str = "taylor",
    seed: int = 0,
) -> Importance:
    """How much each unit matters.

    - `taylor`: mean over the batches of (dL/dg)^2 with a gate g on the unit's output, which is the
      square of what the loss changes by without the unit, to first order (Molchanov et al., 2019).
    - `magnitude`: Euclidean norm of the unit's output weights; reads no batch.
    - `random`: uniform numbers that follow from the seed; reads no batch.

    Args:
      loss_and_grads: `(params, batch) -> (loss, gradients)` as `jax.value_and_grad` makes it;
        compiled, without dropout.
      table: the model's unit axes.
      params: dense parameters, without padding.
      batches: a few batches, each as `loss_and_grads` takes it. For `taylor` many small ones tell
        more than few large ones: in a trained model the gradients of many images cancel.
      kind: one of `KINDS`.
      seed: of `random`, not negative.

    Raises:
      ValueError: an unknown kind, or `taylor` without a batch.
    """
    if kind not in KINDS:
        raise ValueError(f"units are chosen by one of {', '.join(KINDS)}, not {kind!r}")
    if kind == "random":
        rng = np.random.default_rng(seed)
        counts = table.measure(params)
        return {unit: tuple(rng.random(n) for n in counts.of(unit)) for unit in UNITS}
    if kind == "magnitude":
        # This sample does not look at gradients.
        return _float64(scores.sample("magnitude", table, params, params))
    sample = jax.jit(lambda params, grads: scores.sample("gate_squared", table, params, grads))
    total, count = None, 0
    for batch in batches:
        _, grads = loss_and_grads(params, batch)
        found = _float64(sample(params, grads))
        total = found if total is None else jax.tree.map(np.add, total, found)
        count += 1
    if total is None:
        raise ValueError("the Taylor importance needs at least one batch")
    return jax.tree.map(lambda x: x / count, total)


def _float64(values: scores.PerUnit) -> Importance:
    return jax.tree.map(lambda x: np.asarray(x, np.float64), values)


def choose(
    importance: Mapping[str, tuple[np.ndarray, ...]], dense: Topology, target: Topology
) -> Kept:
    """The best units of each layer, ascending; of equal ones, those that come first.

    Args:
      importance: from `importances`.
      dense: counts of the model to choose from.
      target: how many to keep in each layer.

    Raises:
      UserError: a layer is to keep more units than it has.
      ValueError: importances do not fit the counts, or are not finite.
    """
    return {
        unit: tuple(
            _best(np.asarray(values), n, keep, f"{unit} of layer {layer}")
            for layer, (values, n, keep) in enumerate(
                zip(importance[unit], dense.of(unit), target.of(unit), strict=True)
            )
        )
        for unit in UNITS
    }


def _best(values: np.ndarray, count: int, keep: int, what: str) -> tuple[int, ...]:
    if values.shape != (count,):
        raise ValueError(f"{count} {what}, but importances of shape {list(values.shape)}")
    if not np.isfinite(values).all():
        raise ValueError(f"the importances of the {what} are not finite: has the model diverged?")
    if keep > count:
        raise UserError(
            f"{keep} {what} are to be kept, but the model to start from has {count}: lower "
            "config.density, or start from a larger model"
        )
    return tuple(sorted(np.argsort(-values, kind="stable")[:keep].tolist()))


def select(params: PyTree, table: UnitTable, kept: Kept) -> PyTree:
    """The parameters of the kept units and of all that belongs to no unit.

    Args:
      params: dense parameters, without padding.
      table: the model's unit axes.
      kept: from `choose`.

    Returns:
      The tree with numpy arrays in place of the leaves that changed; a layer that keeps all its
      units has the very leaves that went in.
    """
    dense = table.measure(params)
    target = Topology(**{unit: tuple(len(indices) for indices in kept[unit]) for unit in UNITS})
    return resize(params, table, dense, target, keeping(dense, kept))


def keeping(dense: Topology, kept: Kept) -> Maps:
    """The surgery's maps of a selection; layers that keep everything have none."""
    return {
        (unit, layer): LayerMap(indices, (1.0,) * len(indices))
        for unit in UNITS
        for layer, indices in enumerate(kept[unit])
        if indices != tuple(range(dense.of(unit)[layer]))
    }
