"""Which leaves of an optimizer state follow the parameters, and how.

Any optax transform will do whose state is made of counters and of trees shaped like the
parameters, each of a known degree in the gradient. Others are refused by name, before training.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np
import optax

from barter_jax.core import surgery
from barter_jax.core.topology import Topology
from barter_jax.core.units import Path, UnitTable, path_names

PyTree = Any

# The degree in the gradient of the accumulators of optax's states, by field name: how a leaf
# scales when the gradient does.
GRADIENT_POWER = {
    "mu": 1.0,
    "trace": 1.0,
    "ema": 1.0,
    "acc_grads": 1.0,
    "nu": 2.0,
    "nu_max": 2.0,
    "sum_of_squares": 2.0,
}


class UnsupportedOptimizerError(ValueError):
    """The optimizer's state cannot follow a change of topology."""


@dataclasses.dataclass(frozen=True)
class StateLeaf:
    """What a leaf of the optimizer state stands for.

    Attributes:
      path: the parameter it belongs to, or None for a counter or another scalar.
      field: name of the state's field, as in `ScaleByAdamState.mu`.
    """

    path: Path | None
    field: str


def label_state(tx: optax.GradientTransformation, params: PyTree) -> PyTree:
    """Labels each leaf of `tx.init(params)` with a `StateLeaf`.

    Args:
      tx: any optax transform, masked, chained, in multi-steps or with injected hyperparameters.
      params: parameter tree of arrays or shape structs.

    Raises:
      UnsupportedOptimizerError: a leaf that optax counts among the parameter-shaped ones has
        another shape (Adafactor's factors), or a leaf is an array that belongs to no parameter.
    """
    state = jax.eval_shape(tx.init, params)
    paths = jax.tree_util.tree_map_with_path(
        lambda key_path, leaf: _Param(path_names(key_path), leaf.shape), params
    )
    marked = optax.tree_utils.tree_map_params(
        tx,
        lambda leaf, param: leaf if isinstance(leaf, optax.MaskedNode) else _Marked(leaf, param),
        state,
        paths,
        is_leaf=lambda x: isinstance(x, optax.MaskedNode | _Param),
    )

    def label(key_path, leaf):
        field = _field(state, key_path, leaf)
        if isinstance(leaf, _Marked):
            if leaf.leaf.shape != leaf.param.shape:
                raise UnsupportedOptimizerError(
                    f"{field} has shape {list(leaf.leaf.shape)} for the parameter "
                    f"{'/'.join(leaf.param.path)} of shape {list(leaf.param.shape)}: "
                    "it cannot follow a topology update"
                )
            return StateLeaf(leaf.param.path, field)
        if leaf.shape and not jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            raise UnsupportedOptimizerError(
                f"{field} has shape {list(leaf.shape)} and belongs to no parameter: "
                "it cannot follow a topology update"
            )
        return StateLeaf(None, field)

    return jax.tree_util.tree_map_with_path(label, marked, is_leaf=lambda x: isinstance(x, _Marked))


@dataclasses.dataclass(frozen=True)
class _Param:
    path: Path
    shape: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class _Marked:
    leaf: Any
    param: _Param


def _field(state: PyTree, key_path: tuple, leaf) -> str:
    """`StateName.field` of the innermost named tuple on the way to a leaf of the state."""
    # Beyond the field lies the parameter's own path.
    own = len(leaf.param.path) if isinstance(leaf, _Marked) else 0
    node, name = state, "state"
    for key in key_path[: len(key_path) - own]:
        if isinstance(key, jax.tree_util.GetAttrKey):
            name = f"{type(node).__name__}.{key.name}"
            node = getattr(node, key.name)
        elif isinstance(key, jax.tree_util.SequenceKey):
            node = node[key.idx]
        elif isinstance(key, jax.tree_util.DictKey):
            node = node[key.key]
    return name


def check_optimizer(
    tx: optax.GradientTransformation, params: PyTree, table: UnitTable, moments: str
) -> None:
    """Refuses, before training, an optimizer whose state cannot be resized.

    Besides `label_state`'s conditions: with `moments` other than `"copy"` the degree in the
    gradient of each unit leaf must be known, and a unit of all-zero parameters with zero
    gradients must stay exactly zero (that is what makes padding invisible).

    Raises:
      UnsupportedOptimizerError: names the state's field and what to do.
    """
    labels = jax.tree.leaves(label_state(tx, params))
    for leaf in labels:
        if leaf.path in table.by_path and moments != "copy":
            gradient_power(leaf.field)
    # A tiny tree suffices: elementwise rules do not depend on the shape.
    tiny = jax.tree.map(lambda _: np.zeros((2, 2), np.float32), params)
    state = tx.init(tiny)
    for _ in range(2):
        updates, state = tx.update(tiny, state, tiny)
    if any(np.any(np.asarray(leaf) != 0) for leaf in jax.tree.leaves(updates)):
        raise UnsupportedOptimizerError(
            "the optimizer moves a parameter that is zero and has zero gradient, so padded units "
            "would not stay empty (does it add noise?)"
        )


def gradient_power(field: str) -> float:
    """The degree in the gradient of a state field such as `ScaleByAdamState.mu`.

    Raises:
      UnsupportedOptimizerError: it is not known.
    """
    name = field.rpartition(".")[2]
    if name not in GRADIENT_POWER:
        raise UnsupportedOptimizerError(
            f"how {field} scales with the gradient is not known, so it cannot be scaled for a "
            "clone: set topology.moments to 'copy'"
        )
    return GRADIENT_POWER[name]


def resize_state(
    state: PyTree,
    labels: PyTree,
    table: UnitTable,
    logical: Topology,
    physical: Topology,
    maps: surgery.Maps,
    moments: str = "scaled",
) -> PyTree:
    """Resizes an optimizer state by the same maps as its parameters.

    Args:
      state: the state, possibly padded.
      labels: `label_state` of the same transform.
      table: the model's unit axes.
      logical: counts that `state` really holds.
      physical: counts to pad the result to.
      maps: from `surgery.index_maps`; empty to change the padding only.
      moments: see `surgery.moments`.

    Returns:
      The state with numpy arrays where a leaf changed; counters and all else as they were.
    """

    def one(label: StateLeaf, leaf):
        axis = table.by_path.get(label.path)
        if axis is None:
            return leaf
        # Without maps nothing is scaled, so the degree need not be known.
        follow = surgery.COPY
        if maps and moments != "copy":
            follow = surgery.moments(gradient_power(label.field), moments)
        return surgery.resize_leaf(leaf, axis, logical, physical, maps, follow)

    return jax.tree.map(one, labels, state)
