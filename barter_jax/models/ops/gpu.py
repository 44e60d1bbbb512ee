"""What GPUs have that XLA's own fusions do not reach: cuDNN's fused attention."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from barter_jax.models.ops import plain

HALF = (jnp.bfloat16, jnp.float16)


def attend(
    query: jax.Array, key: jax.Array, value: jax.Array, keep: plain.Keep | None = None
) -> jax.Array:
    """As `plain.attend`, by cuDNN where it can: the logits are then never in memory."""
    if keep is not None or not cudnn_takes(query.dtype, query.shape[-1], _device()):
        return plain.attend(query, key, value, keep)
    return jax.nn.dot_product_attention(query, key, value, implementation="cudnn")


def cudnn_takes(dtype, head_width: int, device) -> bool:
    """Whether cuDNN's attention serves: half precision, a width it knows, NVIDIA's Ampere or newer.

    Args:
      dtype: of query, key and value.
      head_width: width of a head.
      device: a `jax.Device`.
    """
    if device.platform != "gpu" or "cuda" not in device.client.platform_version.lower():
        return False
    major = int(str(device.compute_capability).partition(".")[0])
    return dtype in HALF and head_width % 8 == 0 and head_width <= 128 and major >= 8


def _device():
    return jax.devices()[0]
