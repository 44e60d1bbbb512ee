"""Models built from a topology, by name.

A model joins the registry with a subclass of `TransformerConfig`: its config fields, and how to
build the module and count its costs from them.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from barter_jax.core.topology import Topology
from barter_jax.models.cct import CCT, CCTConfig
from barter_jax.models.transformer import Transformer, TransformerConfig
from barter_jax.models.vit import ViT, ViTConfig

__all__ = [
    "CCT",
    "MODELS",
    "CCTConfig",
    "Transformer",
    "TransformerConfig",
    "ViT",
    "ViTConfig",
    "init_params",
]

MODELS: dict[str, type[TransformerConfig]] = {"vit": ViTConfig, "cct": CCTConfig}


def init_params(
    config: TransformerConfig, topology: Topology, image_size: int, num_classes: int, key: jax.Array
) -> Any:
    """Fresh float32 parameters at a topology, as a nested dict.

    Args:
      config: the model's sizes.
      topology: units of each layer.
      image_size: side of the square input images in pixels.
      num_classes: classes.
      key: PRNG key.
    """
    module = config.module(topology, num_classes)
    images = jnp.zeros((1, image_size, image_size, 3), jnp.float32)
    return _init(module, key, images)["params"]


# One function for all modules: those that are equal are traced and compiled once.
_init = jax.jit(lambda module, key, images: module.init(key, images), static_argnums=0)
