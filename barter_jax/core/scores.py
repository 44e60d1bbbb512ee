"""Per-unit statistics: pruning and growth samples of a step, and their running averages.

Give unit i a gate g = 1 on its output. Then dL/dg is the sum over the unit's output weights of
w * dL/dw: parameters and gradients that the training step has anyway, so no statistic ever needs
an inactive candidate (the paper's requirement). Which samples to take is this project's choice.

| name | sample of unit i |
| --- | --- |
| `gate_squared` | (dL/dg)^2, first-order Taylor importance (Molchanov et al., 2019) |
| `gate_abs` | absolute dL/dg |
| `magnitude` | Euclidean norm of the unit's output weights |
| `input_gradient` | squared norm of the gradient of the unit's input parameters |
| `all_gradient` | squared norm of the gradient of its input and output parameters |
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from barter_jax.core.topology import UNITS, Topology
from barter_jax.core.units import INPUT, OUTPUT, UnitTable, path_names

PyTree = Any
PerUnit = dict[str, tuple[jax.Array, ...]]

# Born long before the first step: a unit of the starting topology is never a fresh clone.
FOUNDER = -(2**30)


class UnitState(NamedTuple):
    """What the method remembers of each active unit; follows its unit through surgery.

    Attributes:
      pruning: `{unit: ([n_0], [n_1], ...)}`, float32, running pruning scores D, one array a layer.
      growth: the same for the growth scores S.
      born: the same, int32: the optimizer step at which the unit was cloned, `FOUNDER` otherwise.
      observed: int32 scalar, samples averaged so far (for bias correction).
    """

    pruning: PerUnit
    growth: PerUnit
    born: PerUnit
    observed: jax.Array


def init_unit_state(topology: Topology) -> UnitState:
    """The state before the first step, as numpy arrays: zero scores, every unit a founder."""

    def per_unit(value, dtype):
        return {u: tuple(np.full(n, value, dtype) for n in topology.of(u)) for u in UNITS}

    return UnitState(
        pruning=per_unit(0, np.float32),
        growth=per_unit(0, np.float32),
        born=per_unit(FOUNDER, np.int32),
        observed=np.zeros((), np.int32),
    )


# A sample is built from sums over a unit's leaves: `term` of each leaf whose role is in `roles`,
# added up, then `finish`. `share_power` tells how the sample changes when a clone takes over a
# share s of its parent's output weights: by s ** share_power (chain rule: gate gradients and
# input gradients scale with s, output gradients do not).
class Sample(NamedTuple):
    roles: tuple[str, ...]
    term: Callable[[jax.Array, jax.Array], jax.Array]
    finish: Callable[[jax.Array], jax.Array]
    share_power: float


SAMPLES: dict[str, Sample] = {
    "gate_squared": Sample((OUTPUT,), lambda w, g: w * g, jnp.square, 2.0),
    "gate_abs": Sample((OUTPUT,), lambda w, g: w * g, jnp.abs, 1.0),
    "magnitude": Sample((OUTPUT,), lambda w, g: w * w, jnp.sqrt, 1.0),
    "input_gradient": Sample((INPUT,), lambda w, g: g * g, lambda x: x, 2.0),
    # The output part does not change with the share; the input part is the one that tells a
    # clone from its parent's old self, so the sum is scaled as if it were alone.
    "all_gradient": Sample((INPUT, OUTPUT), lambda w, g: g * g, lambda x: x, 2.0),
}
PRUNING_SAMPLES = ("gate_squared", "gate_abs", "magnitude")
GROWTH_SAMPLES = ("input_gradient", "all_gradient", "gate_abs")


def sample(name: str, table: UnitTable, params: PyTree, grads: PyTree) -> PerUnit:
    """One step's sample of every unit.

    Args:
      name: a key of `SAMPLES`.
      table: the model's unit axes.
      params: parameters, any float dtype.
      grads: gradients of the loss, same structure and shapes.

    Returns:
      `{unit: (float32 [n_0], float32 [n_1], ...)}`.
    """
    kind = SAMPLES[name]
    flat_params = _leaves_by_path(params)
    flat_grads = _leaves_by_path(grads)
    sums: dict[tuple[str, int], jax.Array] = {}
    for axis in table.axes:
        if axis.role not in kind.roles:
            continue
        w = flat_params[axis.path].astype(jnp.float32)
        g = flat_grads[axis.path].astype(jnp.float32)
        others = tuple(i for i in range(w.ndim) if i != axis.axis)
        part = jnp.sum(kind.term(w, g), axis=others)
        key = (axis.unit, axis.layer)
        sums[key] = sums[key] + part if key in sums else part
    return {
        unit: tuple(kind.finish(sums[unit, layer]) for layer in range(table.layers(unit)))
        for unit in UNITS
    }


def observe(
    state: UnitState,
    table: UnitTable,
    params: PyTree,
    grads: PyTree,
    *,
    decay: float,
    pruning: str,
    growth: str,
) -> UnitState:
    """Folds one step's samples into the running averages (the paper's EMA with decay beta).

    Pure; meant to run inside the compiled training step. The averages start at zero:
    `corrected` removes that bias.
    """

    def average(running, new):
        return jax.tree.map(lambda r, x: decay * r + (1 - decay) * x, running, new)

    return state._replace(
        pruning=average(state.pruning, sample(pruning, table, params, grads)),
        growth=average(state.growth, sample(growth, table, params, grads)),
        observed=state.observed + 1,
    )


def corrected(scores: PerUnit, observed: int, decay: float) -> PerUnit:
    """Bias-corrected running averages, on the host, float64 numpy arrays."""
    scale = 1.0 - decay ** int(observed)
    scale = scale if scale > 0 else 1.0
    return jax.tree.map(lambda x: np.asarray(x, np.float64) / scale, scores)


def _leaves_by_path(tree: PyTree) -> dict[tuple[str, ...], jax.Array]:
    return {path_names(p): leaf for p, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]}
