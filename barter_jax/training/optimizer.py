"""The optimizer and learning-rate schedule that a config names."""

from __future__ import annotations

import fnmatch
import functools
from collections.abc import Sequence
from typing import Any

import jax
import optax
from ml_collections import config_dict

from barter_jax.config import OPTIMIZERS
from barter_jax.core.barter import Barter
from barter_jax.core.optimizer_state import UnsupportedOptimizerError, check_optimizer
from barter_jax.core.units import path_names
from barter_jax.errors import UserError

PyTree = Any

# Names in the models of this package.
_BLOCK = "block_"
_BEFORE_BLOCKS = ("embedding", "tokenizer", "cls_token", "position")


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


def decay_mask(params: PyTree, rule: str, exclude: Sequence[str] = ()) -> PyTree:
    """True for the leaves that weight decay acts on.

    Args:
      params: parameters.
      rule: `"all"`; or `"kernels"`, which leaves out biases and norm scales, as the usual rule
        that spares one-dimensional parameters does. It goes by name: here a bias of the heads has
        two axes.
      exclude: patterns, as of file names, of parameters or groups of them to leave out besides:
        `"position"`, `"block_0"`, `"block_*/mlp/*"`.
    """

    def decays(path, _) -> bool:
        names = path_names(path)
        if rule == "kernels" and names[-1] in ("bias", "scale"):
            return False
        return not any(_matches(names, pattern) for pattern in exclude)

    return jax.tree_util.tree_map_with_path(decays, params)


def excluded(config: config_dict.ConfigDict) -> tuple[str, ...]:
    """The patterns of `decay_exclude` in the `optimizer` section."""
    return tuple(part.strip() for part in config.decay_exclude.split(",") if part.strip())


def layer_scales(params: PyTree, decay: float) -> PyTree:
    """The factor on each leaf's learning rate under layer-wise decay (ELECTRA, BEiT).

    1 for what comes after the blocks, `decay` for the last block, `decay**2` for the one before
    it, and so on down to what comes before the blocks.

    Args:
      params: parameters, those of block i under `block_i`.
      decay: in (0, 1].
    """
    paths = [path_names(path) for path, _ in jax.tree_util.tree_flatten_with_path(params)[0]]
    blocks = 1 + max(int(path[0].removeprefix(_BLOCK)) for path in paths if _in_block(path))

    def scale(path, _) -> float:
        names = path_names(path)
        if _in_block(names):
            return decay ** (blocks - int(names[0].removeprefix(_BLOCK)))
        return decay ** (blocks + 1) if names[0] in _BEFORE_BLOCKS else 1.0

    return jax.tree_util.tree_map_with_path(scale, params)


def scale_by_layer(decay: float) -> optax.GradientTransformation:
    """Multiplies updates by `layer_scales`; has no state."""

    def scaled(updates, params):
        del params
        return jax.tree.map(lambda u, s: u * s, updates, layer_scales(updates, decay))

    return optax.stateless(scaled)


def _in_block(names: Sequence[str]) -> bool:
    return names[0].startswith(_BLOCK)


def _matches(names: Sequence[str], pattern: str) -> bool:
    """Whether a pattern fits a parameter's path or one of the groups that it is in."""
    return any(
        fnmatch.fnmatchcase("/".join(names[:depth]), pattern) for depth in range(1, len(names) + 1)
    )


def make_checked(
    config: config_dict.ConfigDict, total_steps: int, params: PyTree, barter: Barter
) -> optax.GradientTransformation:
    """The optimizer, known to fit the parameters and to follow changes of their topology.

    The check fills a cache of what is known of the optimizer, from which topology updates read.

    Args:
      config: the `optimizer` section.
      total_steps: optimizer steps of the run.
      params: parameters at the starting topology (arrays or shape structs).
      barter: the method.

    Raises:
      UserError: a pattern of `decay_exclude` fits no parameter, or the optimizer's state cannot be
        resized.
    """
    names = [path_names(path) for path, _ in jax.tree_util.tree_flatten_with_path(params)[0]]
    for pattern in excluded(config):
        if not any(_matches(name, pattern) for name in names):
            groups = ", ".join(dict.fromkeys(name[0] for name in names))
            raise UserError(
                f"config.optimizer.decay_exclude: {pattern!r} fits no parameter: name some of "
                f"{groups}, or what is in them, as block_0/mlp/*"
            )
    tx = make(config, total_steps)
    try:
        check_optimizer(tx, params, barter.units, barter.moments)
    except UnsupportedOptimizerError as error:
        known = ", ".join(OPTIMIZERS)
        raise UserError(
            f"config.optimizer.name={config.name}: {error}; use one of {known}"
        ) from error
    return tx


def make(config: config_dict.ConfigDict, total_steps: int) -> optax.GradientTransformation:
    """The optimizer of the `optimizer` section, clipping included."""
    rate = learning_rate(config, total_steps)
    rule, patterns = config.decay_mask, excluded(config)
    mask = None
    if rule != "all" or patterns:
        mask = functools.partial(decay_mask, rule=rule, exclude=patterns)
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
    if config.layer_decay < 1:
        tx = optax.chain(tx, scale_by_layer(config.layer_decay))
    if config.clip_norm:
        tx = optax.chain(optax.clip_by_global_norm(config.clip_norm), tx)
    return tx
