"""Models built from a topology, by name.

A model joins the registry with a frozen dataclass of its config fields that has `check`, `module`
and `dimensions`; its blocks carry the parameter names of `models.layers`.
"""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from barter_jax.core.topology import Topology
from barter_jax.core.units import UnitTable
from barter_jax.models.cct import CCT, CCTConfig
from barter_jax.models.layers import unit_table
from barter_jax.models.vit import ViT, ViTConfig

__all__ = ["CCT", "MODELS", "CCTConfig", "ModelConfig", "ViT", "ViTConfig", "init_params", "units"]

ModelConfig = ViTConfig | CCTConfig
MODELS: dict[str, type[ModelConfig]] = {"vit": ViTConfig, "cct": CCTConfig}


def units(config: ModelConfig) -> UnitTable:
    """The unit axes of a model."""
    return unit_table(config.layers, config.qkv_bias)


def init_params(
    config: ModelConfig, topology: Topology, image_size: int, num_classes: int, key: jax.Array
) -> Any:
    """Fresh float32 parameters at a topology, as a nested dict.

    Args:
      config: the model's sizes.
      topology: units of each layer.
      image_size: side of the square input images in pixels.
      num_classes: classes.
      key: PRNG key.
    """
    module: nn.Module = config.module(topology, num_classes)
    images = jnp.zeros((1, image_size, image_size, 3), jnp.float32)
    return jax.jit(module.init)(key, images)["params"]
