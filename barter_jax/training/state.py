"""What a training step carries forward."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np
import optax

from barter_jax import models
from barter_jax.blueprint import Blueprint
from barter_jax.core.barter import Barter, Progress
from barter_jax.core.scores import UnitState, init_unit_state
from barter_jax.core.surgery import resize
from barter_jax.core.topology import Topology
from barter_jax.masked.layers import apply_masks
from barter_jax.masked.masked import MaskState

PyTree = Any

# Folded into the run's key for the first masks.
_MASKS = 3


class TrainState(NamedTuple):
    """The state on the device. Its arrays have the physical (padded) counts.

    Attributes:
      step: int32 scalar, optimizer steps taken.
      params: float32 parameters.
      opt_state: state of the optimizer.
      units: running scores and births of the units.
      ema: a running average of the parameters, or None.
      masks: of a masked method, and what else it carries; or None.
    """

    step: jax.Array
    params: PyTree
    opt_state: PyTree
    units: UnitState
    ema: PyTree = None
    masks: MaskState | None = None

    @property
    def averaged(self) -> PyTree:
        """What is evaluated and kept: the average of the parameters, or else themselves.

        The average remembers weights that have been pruned since, so it is taken under the masks.
        """
        if self.ema is None:
            return self.params
        return self.ema if self.masks is None else apply_masks(self.ema, self.masks.masks)


def initial(
    blueprint: Blueprint,
    barter: Barter,
    tx: optax.GradientTransformation,
    seed: int,
    params: PyTree = None,
    selection: str = "random",
) -> tuple[TrainState, Progress]:
    """The padded state before the first step; a function of the seed and what it starts from.

    Parameters are drawn at the logical counts and padded afterwards, so the bucket size has no
    say in them.

    Args:
      blueprint: the run.
      barter: its method.
      tx: its optimizer.
      seed: of what is random.
      params: unpadded parameters to start from instead of random ones.
      selection: which weights a masked method keeps of them: `"magnitude"` or `"random"`.
    """
    if params is None:
        params = models.init_params(
            blueprint.model,
            blueprint.initial,
            blueprint.image_size,
            blueprint.num_classes,
            jax.random.key(seed),
        )
    masks = None
    if blueprint.masked:
        key = jax.random.fold_in(jax.random.key(seed), _MASKS)
        params, masks = blueprint.masked.init(params, key, selection)
    progress, units = barter.init(params)
    # Compiled in one piece: op by op, a start would compile dozens of tiny functions.
    # A copy: both are donated to the step.
    ema = jax.tree.map(np.array, params) if blueprint.ema_decay else None
    state = TrainState(np.zeros((), np.int32), params, jax.jit(tx.init)(params), units, ema, masks)
    return repad(state, barter, tx, progress.topology, progress.physical), progress


def repad(
    state: TrainState,
    barter: Barter,
    tx: optax.GradientTransformation,
    logical: Topology,
    physical: Topology,
) -> TrainState:
    """The same state with other padding: none, with `physical == logical`."""
    return TrainState(
        state.step,
        *barter.repad(state.params, state.opt_state, state.units, tx, logical, physical),
        None if state.ema is None else resize(state.ema, barter.units, logical, physical, {}),
        state.masks,  # full-size tensors are not padded
    )


def abstract_params(blueprint: Blueprint, topology: Topology) -> PyTree:
    """Shapes and dtypes of the parameters at a topology."""
    return jax.eval_shape(
        lambda key: models.init_params(
            blueprint.model, topology, blueprint.image_size, blueprint.num_classes, key
        ),
        jax.random.key(0),
    )


def abstract(blueprint: Blueprint, tx: optax.GradientTransformation, topology: Topology) -> PyTree:
    """Shapes and dtypes of an unpadded state at a topology, for restoring a checkpoint."""
    params = abstract_params(blueprint, topology)
    return TrainState(
        jax.ShapeDtypeStruct((), np.int32),
        params,
        jax.eval_shape(tx.init, params),
        jax.eval_shape(lambda: init_unit_state(topology)),
        params if blueprint.ema_decay else None,
        jax.eval_shape(blueprint.masked.init, params, jax.random.key(0))[1]
        if blueprint.masked
        else None,
    )
