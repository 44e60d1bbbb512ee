"""The pure training step of a masked method, in the manner of the compact models' step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from barter_jax.masked.attention import Scores, make_scores
from barter_jax.masked.layers import apply_masks
from barter_jax.masked.masked import S2VITE, Masked, MaskState

PyTree = Any


class MaskedTrainState(NamedTuple):
    """The state on the device. All arrays have the dense sizes.

    Attributes:
      step: int32 scalar, steps taken.
      params: float32 parameters, zero where masked.
      opt_state: state of the optimizer.
      masks: the masks, and what else the method carries.
      ema: a running average of the parameters, or None. It remembers weights that have been pruned
        since: `averaged` is it under the masks.
    """

    step: jax.Array
    params: PyTree
    opt_state: PyTree
    masks: MaskState
    ema: PyTree = None

    @property
    def averaged(self) -> PyTree:
        """What is evaluated and kept: the average of the parameters, or else themselves."""
        return self.params if self.ema is None else apply_masks(self.ema, self.masks.masks)


MaskedTrainStep = Callable[
    [MaskedTrainState, jax.Array, jax.Array, jax.Array],
    tuple[MaskedTrainState, dict[str, jax.Array]],
]


def initial(
    masked: Masked,
    tx: optax.GradientTransformation,
    params: PyTree,
    key: jax.Array,
    *,
    with_average: bool = False,
) -> MaskedTrainState:
    """The state before the first step.

    Args:
      masked: the method.
      tx: the optimizer.
      params: dense parameters.
      key: PRNG key of the masks.
      with_average: whether to keep a running average of the parameters.
    """
    params, masks = masked.init(params, key)
    ema = jax.tree.map(jnp.copy, params) if with_average else None
    return MaskedTrainState(jnp.zeros((), jnp.int32), params, jax.jit(tx.init)(params), masks, ema)


def make_masked_train_step(
    module: nn.Module,
    tx: optax.GradientTransformation,
    masked: Masked,
    scores: Scores | None = None,
    *,
    micro_batches: int = 1,
    ema_decay: float = 0.0,
) -> MaskedTrainStep:
    """One optimizer step under masks, or the change of the masks that stands for one.

    The step maps (state, images, targets, key) to (state, metrics):
      images: normalised float32 `[batch, height, width, 3]`.
      targets: float32 `[batch, classes]`, rows summing to 1.
      key: the run's PRNG key; the step folds its own number into it.
      metrics: float32 scalars `loss`, `accuracy` (against the likeliest target) and
        `gradient_norm`, that of the masked gradient.

    Args:
      module: the dense model.
      tx: the optimizer.
      masked: the method.
      scores: S2ViTE's scores of heads; by default those of `attention.make_scores`. Called in steps
        with a change of masks alone.
      micro_batches: parts of the batch, equal in size, that go through the model one after the
        other; gradients and scores are averaged over them.
      ema_decay: of the running average of parameters, where the state has one.
    """
    gradient = jax.value_and_grad(_loss(module), has_aux=True)
    if masked.method == S2VITE and scores is None:
        scores = make_scores(module)

    def train_step(state: MaskedTrainState, images, targets, key):
        key = jax.random.fold_in(key, state.step)

        def over_parts(fn):
            return _mean_over_parts(fn, micro_batches, state.params, images, targets, key)

        (loss, accuracy), grads = over_parts(gradient)
        params, opt_state, masks = masked.step(
            state.masks,
            state.params,
            state.opt_state,
            grads,
            tx,
            state.step,
            # Apart from the keys of dropout, which come from the same one.
            jax.random.fold_in(key, 2**31),
            None if scores is None else lambda: over_parts(scores),
        )
        ema = None if state.ema is None else _average(state.ema, params, ema_decay, state.step)
        return MaskedTrainState(state.step + 1, params, opt_state, masks, ema), {
            "loss": loss,
            "accuracy": accuracy,
            "gradient_norm": optax.tree_utils.tree_norm(apply_masks(grads, state.masks.masks)),
        }

    return train_step


def _loss(module: nn.Module):
    """(params, images, targets, key) to the loss and the accuracy."""

    def loss_of(params, images, targets, key):
        logits = module.apply({"params": params}, images, train=True, rngs={"dropout": key})
        hit = jnp.argmax(logits, axis=-1) == jnp.argmax(targets, axis=-1)
        loss = jnp.mean(optax.softmax_cross_entropy(logits, targets))
        return loss, jnp.mean(hit.astype(jnp.float32))

    return loss_of


def _mean_over_parts(fn, parts: int, params, images, targets, key):
    """The mean of `fn(params, images, targets, key)` over equal parts of a batch."""
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
    """The running average after one more step, quicker at the start, as that of compact models."""
    decay = jnp.minimum(decay, (1.0 + step) / (10.0 + step))
    return jax.tree.map(lambda old, new: old + (1 - decay) * (new - old), ema, params)
