"""The optimizer and learning-rate schedule that a config names."""

from __future__ import annotations

from typing import Any

import jax
import optax
from ml_collections import config_dict

from barter_jax.core.units import path_names

PyTree = Any


def learning_rate(config: config_dict.ConfigDict, total_steps: int) -> optax.Schedule:
    """Linear warm-up over a fraction of the steps, then cosine decay.

    Args:
      config: the `optimizer` section.
      total_steps: optimizer steps of the run.

    Returns:
      Step, counted from 0, to learning rate.
    """
    warmup = round(config.warmup_fraction * total_steps)
    return optax.join_schedules(
        [
            optax.linear_schedule(config.start_learning_rate, config.learning_rate, warmup),
            optax.cosine_decay_schedule(
                config.learning_rate,
                max(total_steps - warmup, 1),
                alpha=config.end_learning_rate / config.learning_rate,
            ),
        ],
        [warmup],
    )


def decay_mask(params: PyTree) -> PyTree:
    """True for the leaves that weight decay acts on under `decay_mask="kernels"`.

    Biases and norm scales are left out, as in the usual rule that spares one-dimensional
    parameters. The rule goes by name: here a bias of the heads has two axes.
    """
    return jax.tree_util.tree_map_with_path(
        lambda path, _: path_names(path)[-1] not in ("bias", "scale"), params
    )


def make(config: config_dict.ConfigDict, total_steps: int) -> optax.GradientTransformation:
    """The optimizer of the `optimizer` section, clipping included."""
    rate = learning_rate(config, total_steps)
    mask = decay_mask if config.decay_mask == "kernels" else None
    makers = {
        "adamw": lambda: optax.adamw(
            rate,
            b1=config.beta1,
            b2=config.beta2,
            eps=config.epsilon,
            weight_decay=config.weight_decay,
            mask=mask,
        ),
        "sgd": lambda: optax.chain(
            optax.add_decayed_weights(config.weight_decay, mask),
            optax.sgd(rate, momentum=config.beta1),
        ),
        "lion": lambda: optax.lion(
            rate,
            b1=config.beta1,
            b2=config.beta2,
            weight_decay=config.weight_decay,
            mask=mask,
        ),
        # Known by name so that it is refused by name: its factored state cannot be resized.
        "adafactor": lambda: optax.adafactor(rate, min_dim_size_to_factor=1),
    }
    tx = makers[config.name]()
    if config.clip_norm:
        tx = optax.chain(optax.clip_by_global_norm(config.clip_norm), tx)
    return tx
