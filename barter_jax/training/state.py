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
from barter_jax.core.topology import Topology

PyTree = Any


class TrainState(NamedTuple):
    """The state on the device. Its arrays have the physical (padded) counts.

    Attributes:
      step: int32 scalar, optimizer steps taken.
      params: float32 parameters.
      opt_state: state of the optimizer.
      units: running scores and births of the units.
    """

    step: jax.Array
    params: PyTree
    opt_state: PyTree
    units: UnitState


def initial(
    blueprint: Blueprint, barter: Barter, tx: optax.GradientTransformation, seed: int
) -> tuple[TrainState, Progress]:
    """The padded state before the first step; a function of the seed alone.

    Parameters are drawn at the logical counts and padded afterwards, so the bucket size has no
    say in them.
    """
    params = models.init_params(
        blueprint.model,
        blueprint.initial,
        blueprint.image_size,
        blueprint.num_classes,
        jax.random.key(seed),
    )
    progress, units = barter.init(params)
    # Compiled in one piece: op by op, a start would compile dozens of tiny functions.
    state = TrainState(np.zeros((), np.int32), params, jax.jit(tx.init)(params), units)
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
    )


def abstract(blueprint: Blueprint, tx: optax.GradientTransformation, topology: Topology) -> PyTree:
    """Shapes and dtypes of an unpadded state at a topology, for restoring a checkpoint."""
    params = jax.eval_shape(
        lambda key: models.init_params(
            blueprint.model, topology, blueprint.image_size, blueprint.num_classes, key
        ),
        jax.random.key(0),
    )
    return TrainState(
        jax.ShapeDtypeStruct((), np.int32),
        params,
        jax.eval_shape(tx.init, params),
        jax.eval_shape(lambda: init_unit_state(topology)),
    )
