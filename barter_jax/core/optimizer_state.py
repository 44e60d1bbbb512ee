"""Which leaves of an optimizer state follow the parameters, and how.

Any optax transform will do whose state is made of counters and of trees shaped like the
parameters, each of a known degree in the gradient. Others are refused by name, before training.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import numpy as np
import optax

from barter_jax.core import surgery
from barter_jax.core.topology import Topology
from barter_jax.core.units import Path, UnitTable, path_names

PyTree = Any

# Steps of the probe below: enough for the inner state of multi-steps to see a gradient.
PROBE_STEPS = 64


class UnsupportedOptimizerError(ValueError):
    """The optimizer's state cannot follow a change of topology."""


@dataclasses.dataclass(frozen=True)
class StateLeaf:
    """What a leaf of the optimizer state stands for.

    Attributes:
      path: the parameter it belongs to, or None for a counter or another scalar.
      field: name of the state's field, as in `ScaleByAdamState.mu`.
      power: how the leaf scales with a unit's gradients (1 for a first moment, 2 for a second,
        0 for what is normalised), None where it has no such degree.
    """

    path: Path | None
    field: str
    power: float | None = None


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
    marked = _mark(tx, params, state)

    def label(key_path, leaf, power):
        field = _field(state, key_path, leaf)
        if isinstance(leaf, _Marked):
            if leaf.leaf.shape != leaf.param.shape:
                raise UnsupportedOptimizerError(
                    f"{field} has shape {list(leaf.leaf.shape)} for the parameter "
                    f"{'/'.join(leaf.param.path)} of shape {list(leaf.param.shape)}: "
                    "it cannot follow a topology update"
                )
            return StateLeaf(leaf.param.path, field, None if np.isnan(power) else float(power))
        if leaf.shape and not jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            raise UnsupportedOptimizerError(
                f"{field} has shape {list(leaf.shape)} and belongs to no parameter: "
                "it cannot follow a topology update"
            )
        return StateLeaf(None, field)

    # First without degrees: a state of the wrong shapes is refused before it is probed.
    nothing = jax.tree.map(lambda _: np.nan, state)
    _map_marked(label, marked, nothing)
    powers = jax.tree.unflatten(jax.tree.structure(state), _powers(tx, jax.tree.structure(params)))
    return _map_marked(label, marked, powers)


def _map_marked(fn, marked: PyTree, other: PyTree) -> PyTree:
    return jax.tree_util.tree_map_with_path(
        fn, marked, other, is_leaf=lambda x: isinstance(x, _Marked)
    )


def _mark(tx: optax.GradientTransformation, params: PyTree, state: PyTree) -> PyTree:
    """The state with each parameter-shaped leaf as a `_Marked`, as optax tells them."""
    paths = jax.tree_util.tree_map_with_path(
        lambda key_path, leaf: _Param(path_names(key_path), leaf.shape), params
    )
    try:
        return optax.tree_utils.tree_map_params(
            tx,
            lambda leaf, param: (
                leaf if isinstance(leaf, optax.MaskedNode) else _Marked(leaf, param)
            ),
            state,
            paths,
            is_leaf=lambda x: isinstance(x, optax.MaskedNode | _Param),
        )
    except (ValueError, TypeError) as error:
        raise UnsupportedOptimizerError(
            f"optax cannot tell which leaves of {type(state).__name__} belong to which parameter: "
            "it cannot follow a topology update"
        ) from error


@functools.lru_cache(maxsize=32)
def _powers(tx: optax.GradientTransformation, structure: Any) -> tuple[float, ...]:
    """Measures the degree in the gradient of each leaf of the state; NaN where it has none.

    Names do not tell (Adamax keeps a maximum of absolute gradients in a field that elsewhere
    holds squares), so two copies of the optimizer see gradients that differ in one element, by a
    factor of two. The other elements are large and equal, so a global norm is the same for both.
    Parameters are zero, so decay adds nothing. Shapes do not matter; tiny ones stand in.
    """
    rng = np.random.default_rng(0)
    params = jax.tree.unflatten(structure, [np.zeros((2, 2), np.float32)] * structure.num_leaves)
    start = tx.init(params)
    states = [start, start]
    update = jax.jit(tx.update)
    powers: list[float] = []
    for _ in range(PROBE_STEPS):
        grads = [jax.tree.map(lambda _: np.full((2, 2), 1e3, np.float32), params) for _ in states]
        for whole, half in zip(*map(jax.tree.leaves, grads), strict=True):
            whole[0, 0] = rng.uniform(0.5, 2.0) * rng.choice([-1, 1])
            half[0, 0] = whole[0, 0] / 2
        states = [update(g, s, params)[1] for g, s in zip(grads, states, strict=True)]
        found = [
            _power(*leaves) for leaves in zip(*map(jax.tree.leaves, (start, *states)), strict=True)
        ]
        powers = [
            new if np.isnan(old) else old for new, old in zip(found, powers or found, strict=True)
        ]
        if not np.any(np.isnan(powers)):
            break
    return tuple(powers)


def _power(start, whole, half) -> float:
    """The degree of one leaf, 0 for a scalar, NaN if it has not moved or has no degree."""
    if np.shape(start) != (2, 2):
        return 0.0
    moved, moved_half = (float(x[0, 0]) - float(start[0, 0]) for x in (whole, half))
    if moved == 0 or moved_half == 0 or moved * moved_half < 0:
        return float("nan")
    power = np.log2(moved / moved_half)
    nearest = round(power)
    fits = abs(power - nearest) < 0.05 and 0 <= nearest <= 2
    return float(nearest) if fits else float("nan")


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
    for leaf in jax.tree.leaves(label_state(tx, params)):
        if leaf.path in table.by_path and moments != "copy":
            known_power(leaf)
    # One by one, the operations of a start would take a second to compile.
    init, update = jax.jit(tx.init), jax.jit(tx.update)
    # A tiny tree suffices: elementwise rules do not depend on the shape.
    tiny = jax.tree.map(lambda _: np.zeros((2, 2), np.float32), params)
    ones = jax.tree.map(np.ones_like, tiny)
    for zero, one in zip(jax.tree.leaves(init(tiny)), jax.tree.leaves(init(ones)), strict=True):
        if np.shape(zero) == (2, 2) and not np.array_equal(zero, one):
            raise UnsupportedOptimizerError(
                "the optimizer's state holds a copy of the parameters, which moments do not follow "
                "like: it cannot follow a topology update"
            )
    state = init(tiny)
    for _ in range(2):
        updates, state = update(tiny, state, tiny)
    if any(np.any(np.asarray(leaf) != 0) for leaf in jax.tree.leaves(updates)):
        raise UnsupportedOptimizerError(
            "the optimizer moves a parameter that is zero and has zero gradient, so padded units "
            "would not stay empty (does it add noise?)"
        )


def known_power(leaf: StateLeaf) -> float:
    """The degree in the gradient of a leaf of the state.

    Raises:
      UnsupportedOptimizerError: it has none.
    """
    if leaf.power is None:
        raise UnsupportedOptimizerError(
            f"{leaf.field} does not scale with the gradient by a whole power, so it cannot be "
            "scaled for a clone: set topology.moments to 'copy'"
        )
    return leaf.power


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
            follow = surgery.moments(known_power(label), moments)
        return surgery.resize_leaf(leaf, axis, logical, physical, maps, follow)

    return jax.tree.map(one, labels, state)
