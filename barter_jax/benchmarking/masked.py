"""The rival with full-size tensors: the dense model under a fixed random mask.

It stands for a training step of methods such as SET and RigL, without their updates of the mask:
parameters are masked in the forward pass, and masked weights are exactly zero after each optimizer
step. Dense kernels multiply the zeros, so its time and memory are those of the dense model and
the masks'.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from barter_jax.core.barter import Barter
from barter_jax.core.units import UnitTable, path_names
from barter_jax.training import step
from barter_jax.training.state import TrainState

PyTree = Any
# By the path of a kernel, joined by "/".
Masks = dict[str, Any]


def random_masks(params: PyTree, table: UnitTable, density: float, seed: int) -> Masks:
    """A random mask of each Transformer weight that keeps `round(density * size)` elements.

    Args:
      params: dense parameters without padding, arrays or shape structs.
      table: the model's unit axes.
      density: share of the weights to keep, in (0, 1].
      seed: determines the masks.

    Returns:
      Bool arrays, shaped like the kernels they are for.
    """
    rng = np.random.default_rng(seed)

    def mask(shape):
        size = math.prod(shape)
        flat = np.zeros(size, bool)
        flat[rng.permutation(size)[: round(density * size)]] = True
        return flat.reshape(shape)

    return {name: mask(leaf.shape) for name, leaf in abstract_masks(params, table).items()}


def abstract_masks(params: PyTree, table: UnitTable) -> dict[str, jax.ShapeDtypeStruct]:
    """Shapes of the masks: one for each Transformer weight, that is, kernel of a unit.

    Biases are kept whole, as the density's definition has it.
    """
    kernels = {axis.name for axis in table.axes if axis.path[-1] == "kernel"}
    named = {
        "/".join(path_names(path)): leaf
        for path, leaf in jax.tree_util.tree_flatten_with_path(params)[0]
    }
    return {
        name: jax.ShapeDtypeStruct(leaf.shape, bool)
        for name, leaf in named.items()
        if name in kernels
    }


def pad_masks(masks: Masks, params: PyTree, table: UnitTable) -> Masks:
    """The masks at the sizes of padded parameters; padding is masked, which changes nothing."""
    return {
        name: np.pad(
            masks[name], [(0, n - m) for n, m in zip(like.shape, masks[name].shape, strict=True)]
        )
        for name, like in abstract_masks(params, table).items()
    }


def apply_masks(params: PyTree, masks: Masks) -> PyTree:
    """The parameters with zeros where a mask is False."""

    def one(path, leaf):
        mask = masks.get("/".join(path_names(path)))
        return leaf if mask is None else jnp.where(mask, leaf, 0)

    return jax.tree_util.tree_map_with_path(one, params)


@dataclasses.dataclass(frozen=True)
class _MaskedModule:
    """A module whose parameters are masked before it sees them."""

    module: nn.Module
    masks: Masks

    def apply(self, variables: dict[str, PyTree], *args, **kwargs):
        masked = {"params": apply_masks(variables["params"], self.masks)}
        return self.module.apply(masked, *args, **kwargs)


def make_masked_step(
    module: nn.Module,
    tx: optax.GradientTransformation,
    barter: Barter,
    *,
    micro_batches: int = 1,
    ema_decay: float = 0.0,
):
    """The training step of `training.step` with masks as a fifth argument.

    Args:
      module: the dense model.
      tx: the optimizer.
      barter, micro_batches, ema_decay: as for the unmasked step.

    Returns:
      (state, images, targets, key, masks) to (state, metrics).
    """

    def masked_step(state: TrainState, images, targets, key, masks: Masks):
        inner = step.make_train_step(
            _MaskedModule(module, masks),
            tx,
            barter,
            micro_batches=micro_batches,
            ema_decay=ema_decay,
        )
        state, metrics = inner(state, images, targets, key)
        return state._replace(params=apply_masks(state.params, masks)), metrics

    return masked_step
