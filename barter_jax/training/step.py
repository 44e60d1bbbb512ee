"""The pure training and evaluation steps. They read top to bottom; nothing here masks anything."""

from __future__ import annotations

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from barter_jax.core.barter import Barter
from barter_jax.masked.attention import make_scores
from barter_jax.masked.layers import apply_masks
from barter_jax.masked.masked import S2VITE, Masked
from barter_jax.training import metrics
from barter_jax.training.state import TrainState

# Folded into the key of a step for what a change of masks draws, apart from the keys of dropout.
_MASK_UPDATE = 2**31

TrainStep = Callable[
    [TrainState, jax.Array, jax.Array, jax.Array], tuple[TrainState, dict[str, jax.Array]]
]
EvalStep = Callable[[dict, jax.Array, jax.Array, jax.Array], metrics.Counts]


def make_train_step(
    module: nn.Module,
    tx: optax.GradientTransformation,
    barter: Barter,
    *,
    masked: Masked | None = None,
    micro_batches: int = 1,
    ema_decay: float = 0.0,
) -> TrainStep:
    """One optimizer step, with the units' statistics taken from its gradients.

    The step maps (state, images, targets, key) to (state, metrics):
      images: normalised float32 `[batch, height, width, 3]`.
      targets: float32 `[batch, classes]`, rows summing to 1.
      key: the run's PRNG key; the step folds its own number into it.
      metrics: float32 scalars `loss`, `accuracy` (against the likeliest target), `gradient_norm`.

    Args:
      module: the model at the topology of the state.
      tx: the optimizer.
      barter: the method.
      masked: the masked method, if it is one: it takes the optimizer step.
      micro_batches: parts of the batch, equal in size, that go through the model one after the
        other; their gradients are averaged before anything is done with them. It saves memory,
        and draws other dropout.
      ema_decay: of the running average of parameters, where the state has one.
    """

    def loss_of(params, images, targets, key):
        logits = module.apply({"params": params}, images, train=True, rngs={"dropout": key})
        hit = jnp.argmax(logits, axis=-1) == jnp.argmax(targets, axis=-1)
        loss = jnp.mean(optax.softmax_cross_entropy(logits, targets))
        return loss, jnp.mean(hit.astype(jnp.float32))

    gradient = jax.value_and_grad(loss_of, has_aux=True)
    head_scores = make_scores(module) if masked and masked.method == S2VITE else None

    def train_step(state: TrainState, images, targets, key):
        key = jax.random.fold_in(key, state.step)

        def over_batch(fn):
            return _mean_over_parts(fn, micro_batches, state.params, images, targets, key)

        (loss, accuracy), grads = over_batch(gradient)
        units = barter.observe(state.units, state.params, grads)
        if masked is None:
            masks = None
            updates, opt_state = tx.update(grads, state.opt_state, state.params)
            updates = barter.warm_up(updates, units, state.step)
            params = optax.apply_updates(state.params, updates)
        else:
            params, opt_state, masks = masked.step(
                state.masks,
                state.params,
                state.opt_state,
                grads,
                tx,
                state.step,
                jax.random.fold_in(key, _MASK_UPDATE),
                head_scores and (lambda: over_batch(head_scores)),
            )
            # What it is of the sparse model: masked weights take no step.
            grads = apply_masks(grads, state.masks.masks)
        ema = None if state.ema is None else _average(state.ema, params, ema_decay, state.step)
        return TrainState(state.step + 1, params, opt_state, units, ema, masks), {
            "loss": loss,
            "accuracy": accuracy,
            "gradient_norm": optax.tree_utils.tree_norm(grads),
        }

    return train_step


def _mean_over_parts(fn, parts, params, images, targets, key):
    """The mean of `fn(params, images, targets, key)` over equal parts of a batch, one at a time."""
    if parts == 1:
        return fn(params, images, targets, key)

    def split(x):
        # Strided, so that each part lies spread over the devices as the batch does.
        return x.reshape(-1, parts, *x.shape[1:]).swapaxes(0, 1)

    def add(total, part):
        index, images, targets = part
        found = fn(params, images, targets, jax.random.fold_in(key, index))
        return jax.tree.map(jnp.add, total, found), None

    each = (jnp.arange(parts), split(images), split(targets))
    shapes = jax.eval_shape(fn, params, each[1][0], each[2][0], key)
    nothing = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    total, _ = jax.lax.scan(add, nothing, each)
    return jax.tree.map(lambda x: x / parts, total)


def _average(ema, params, decay, step):
    """The running average after one more step.

    Its decay is (1 + step) / (10 + step) while that is smaller, so that the random start does not
    linger in it.
    """
    decay = jnp.minimum(decay, (1.0 + step) / (10.0 + step))
    return jax.tree.map(lambda old, new: old + (1 - decay) * (new - old), ema, params)


def make_eval_step(module: nn.Module) -> EvalStep:
    """Counts for one batch: (params, images, labels, mask) to `metrics.Counts`."""

    def eval_step(params, images, labels, mask):
        logits = module.apply({"params": params}, images, train=False)
        return metrics.count(logits, labels, mask)

    return eval_step
