"""The compiled steps of a case: the training loop's own, or the masked rival's."""

from __future__ import annotations

import jax
import numpy as np

from barter_jax.benchmarking import masked
from barter_jax.benchmarking.plans import Plan
from barter_jax.training import state as state_lib
from barter_jax.training import step
from barter_jax.training.compiled import compile_entry
from barter_jax.training.executables import Entry, compile_ahead


def compile_case(plan: Plan) -> Entry:
    """Compiles what the case runs; depends on `plan.program` alone."""
    if plan.case.method == "masked":
        return _compile_masked(plan)
    return compile_entry(
        plan.physical,
        config=plan.config,
        blueprint=plan.blueprint,
        barter=plan.barter,
        tx=plan.tx,
        placement=plan.placement,
    )


def _compile_masked(plan: Plan) -> Entry:
    """As `compile_entry`, with the masks as another argument."""
    blueprint, placement, size = plan.blueprint, plan.placement, plan.blueprint.image_size
    batch_size = plan.case.batch_size
    module = blueprint.model.module(plan.physical, blueprint.num_classes)
    state = placement.abstract_state(state_lib.abstract(blueprint, plan.tx, plan.physical))
    key = jax.eval_shape(lambda: jax.random.key(0))
    masks = masked.abstract_masks(state.params, plan.barter.units)
    everywhere = placement.abstract_state((key, masks))

    def batch(*shape, dtype=np.float32):
        return placement.abstract_batch((batch_size, *shape), dtype)

    images = batch(size, size, 3)
    return Entry(
        train=compile_ahead(
            masked.make_masked_step(
                module,
                plan.tx,
                plan.barter,
                micro_batches=plan.config.train.micro_batches,
                ema_decay=blueprint.ema_decay,
            ),
            (state, images, batch(blueprint.num_classes), *everywhere),
            out_shardings=placement.everywhere,
            donate=(0,),
            name="train_step",
        ),
        evaluate=compile_ahead(
            step.make_eval_step(module),
            (state.params, images, batch(dtype=np.int32), batch()),
            out_shardings=placement.everywhere,
            name="eval_step",
        ),
    )
