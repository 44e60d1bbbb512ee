"""Each operation by its formula: the reference for the others, and what TPUs run."""

from __future__ import annotations

from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp


class Keep(NamedTuple):
    """Which attention weights dropout keeps.

    Attributes:
      mask: bool `[heads, batch, keys, queries]`.
      share: probability of keeping one; what is kept is divided by it.
    """

    mask: jax.Array
    share: float


def layer_norm(x: jax.Array, scale: jax.Array, bias: jax.Array, epsilon: float) -> jax.Array:
    """LayerNorm over the last axis, in float32 inside (Ba et al., 2016); the dtype of `x`."""
    wide = x.astype(jnp.float32)
    mean = jnp.mean(wide, axis=-1, keepdims=True)
    # In one pass; never below 0, which rounding could make of it.
    variance = jnp.maximum(jnp.mean(wide * wide, axis=-1, keepdims=True) - mean * mean, 0)
    normed = (wide - mean) * jax.lax.rsqrt(variance + epsilon) * scale + bias
    return normed.astype(x.dtype)


def linear(x: jax.Array, kernel: jax.Array, bias: jax.Array | None = None) -> jax.Array:
    """`x @ kernel + bias` in the dtype of `x`: `[..., i]` by `[i, o]` to `[..., o]`."""
    y = x @ kernel.astype(x.dtype)
    return y if bias is None else y + bias.astype(x.dtype)


def gelu(x: jax.Array) -> jax.Array:
    """Exact GELU (Hendrycks and Gimpel, 2016)."""
    return nn.gelu(x, approximate=False)


def attend(
    query: jax.Array, key: jax.Array, value: jax.Array, keep: Keep | None = None
) -> jax.Array:
    """Scaled dot-product attention: `[batch, tokens, heads, width]` to the same shape."""
    logits = jnp.einsum("bnhk,bmhk->bhnm", query * query.shape[-1] ** -0.5, key)
    # The softmax is taken in float32 whatever the compute dtype: bfloat16 sums lose too much.
    weights = nn.softmax(logits.astype(jnp.float32), axis=-1).astype(value.dtype)
    if keep is not None:
        mask = jnp.einsum("hbmn->bhnm", keep.mask)
        weights = jnp.where(mask, weights / keep.share, 0).astype(value.dtype)
    return jnp.einsum("bhnm,bmhk->bnhk", weights, value)


def tokenize(images: jax.Array, kernel: jax.Array) -> jax.Array:
    """Convolution 3x3, ReLU, max-pool 3x3 of stride 2, both padded by 1: CCT's tokenizer.

    Args:
      images: `[batch, height, width, 3]`.
      kernel: `[3, 3, 3, d]`.

    Returns:
      `[batch, ceil(height / 2), ceil(width / 2), d]`.
    """
    x = jax.lax.conv_general_dilated(
        images,
        kernel.astype(images.dtype),
        window_strides=(1, 1),
        padding=((1, 1), (1, 1)),
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )
    return nn.max_pool(nn.relu(x), (3, 3), (2, 2), padding=((1, 1), (1, 1)))
