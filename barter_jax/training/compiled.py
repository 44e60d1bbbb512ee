"""How a padded topology becomes the compiled steps of its shapes."""

from __future__ import annotations

import jax
import numpy as np
import optax
from ml_collections import config_dict

from barter_jax.blueprint import Blueprint
from barter_jax.core.barter import Barter
from barter_jax.core.topology import Topology
from barter_jax.training import state as state_lib
from barter_jax.training import step
from barter_jax.training.distributed import Placement
from barter_jax.training.executables import Entry, compile_ahead


def compile_entry(
    physical: Topology,
    *,
    config: config_dict.ConfigDict,
    blueprint: Blueprint,
    barter: Barter,
    tx: optax.GradientTransformation,
    placement: Placement,
) -> Entry:
    """Compiles the training and the evaluation step of one padded topology.

    Depends on shapes alone, so it may run on any thread, ahead of need.
    """
    module = blueprint.model.module(physical, blueprint.num_classes)
    state = placement.abstract_state(state_lib.abstract(blueprint, tx, physical))
    key = jax.eval_shape(lambda: jax.random.key(0))
    key = jax.ShapeDtypeStruct(key.shape, key.dtype, sharding=placement.everywhere)
    size, train, evaluate = (
        blueprint.image_size,
        config.train.batch_size,
        config.train.eval_batch_size,
    )

    def batch(n, *shape, dtype=np.float32):
        return placement.abstract_batch((n, *shape), dtype)

    return Entry(
        train=compile_ahead(
            step.make_train_step(
                module,
                tx,
                barter,
                masked=blueprint.masked,
                micro_batches=config.train.micro_batches,
                ema_decay=blueprint.ema_decay,
            ),
            (state, batch(train, size, size, 3), batch(train, blueprint.num_classes), key),
            out_shardings=placement.everywhere,
            donate=(0,),
            name="train_step",
        ),
        evaluate=compile_ahead(
            step.make_eval_step(module),
            (
                state.params,
                batch(evaluate, size, size, 3),
                batch(evaluate, dtype=np.int32),
                batch(evaluate),
            ),
            out_shardings=placement.everywhere,
            name="eval_step",
        ),
    )
