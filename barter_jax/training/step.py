"""The pure training and evaluation steps. They read top to bottom; nothing here masks anything."""

from __future__ import annotations

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from barter_jax.core.barter import Barter
from barter_jax.training import metrics
from barter_jax.training.state import TrainState

TrainStep = Callable[
    [TrainState, jax.Array, jax.Array, jax.Array], tuple[TrainState, dict[str, jax.Array]]
]
EvalStep = Callable[[dict, jax.Array, jax.Array, jax.Array], metrics.Counts]


def make_train_step(
    module: nn.Module, tx: optax.GradientTransformation, barter: Barter
) -> TrainStep:
    """One optimizer step, with the units' statistics taken from its gradients.

    The step maps (state, images, targets, key) to (state, metrics):
      images: normalised float32 `[batch, height, width, 3]`.
      targets: float32 `[batch, classes]`, rows summing to 1.
      key: the run's PRNG key; the step folds its own number into it.
      metrics: float32 scalars `loss`, `accuracy` (against the likeliest target), `gradient_norm`.
    """

    def train_step(state: TrainState, images, targets, key):
        def loss_of(params):
            logits = module.apply(
                {"params": params},
                images,
                train=True,
                rngs={"dropout": jax.random.fold_in(key, state.step)},
            )
            return jnp.mean(optax.softmax_cross_entropy(logits, targets)), logits

        (loss, logits), grads = jax.value_and_grad(loss_of, has_aux=True)(state.params)
        units = barter.observe(state.units, state.params, grads)
        updates, opt_state = tx.update(grads, state.opt_state, state.params)
        updates = barter.warm_up(updates, units, state.step)
        params = optax.apply_updates(state.params, updates)
        hit = jnp.argmax(logits, axis=-1) == jnp.argmax(targets, axis=-1)
        return TrainState(state.step + 1, params, opt_state, units), {
            "loss": loss,
            "accuracy": jnp.mean(hit.astype(jnp.float32)),
            "gradient_norm": optax.tree_utils.tree_norm(grads),
        }

    return train_step


def make_eval_step(module: nn.Module) -> EvalStep:
    """Counts for one batch: (params, images, labels, mask) to `metrics.Counts`."""

    def eval_step(params, images, labels, mask):
        logits = module.apply({"params": params}, images, train=False)
        return metrics.count(logits, labels, mask)

    return eval_step
