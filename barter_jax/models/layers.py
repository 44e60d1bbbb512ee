"""Layers that ViT and CCT share. Heads and channels each sit on an axis of their own.

Nothing here masks anything: a padded unit has all-zero parameters, so its output and its gradient
are zero by themselves. The arithmetic is that of an `Ops` set (`models.ops`); here are the
parameters, named and shaped as in Flax's own layers.
"""

from __future__ import annotations

import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from barter_jax.models.ops import Ops, random_bits
from barter_jax.models.ops.plain import Keep

Dtype = Any
DTYPES = ("float32", "bfloat16")

linear_init = nn.initializers.normal(stddev=0.02)


class LayerNorm(nn.Module):
    """LayerNorm over the last axis: `scale` and `bias`, `[d]`.

    Attributes:
      epsilon: added to the variance.
      ops: the formulations to use.
      dtype: dtype of the result.
    """

    epsilon: float
    ops: Ops
    dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        scale = self.param("scale", nn.initializers.ones, x.shape[-1:])
        bias = self.param("bias", nn.initializers.zeros, x.shape[-1:])
        return self.ops.layer_norm(x.astype(self.dtype), scale, bias, self.epsilon)


class Linear(nn.Module):
    """`kernel` `[i, features]` and `bias` `[features]`.

    Attributes:
      features: width of the result.
      ops: the formulations to use.
      dtype: dtype of the computation.
      kernel_init: initializer of the kernel.
    """

    features: int
    ops: Ops
    dtype: Dtype = jnp.float32
    kernel_init: nn.initializers.Initializer = linear_init

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        kernel = self.param("kernel", self.kernel_init, (x.shape[-1], self.features))
        bias = self.param("bias", nn.initializers.zeros, (self.features,))
        return self.ops.linear(x.astype(self.dtype), kernel, bias)


class Attention(nn.Module):
    """Multi-head self-attention with one axis for the heads.

    Parameters: `query`, `key`, `value` kernels `[d, h, dh]` (and biases `[h, dh]`), `out` kernel
    `[h, dh, d]` and bias `[d]`.

    Attributes:
      heads: number of heads, h.
      head_width: width of a head, dh.
      qkv_bias: whether query, key and value have biases.
      ops: the formulations to use.
      dtype: dtype of the computation; parameters are float32.
    """

    heads: int
    head_width: int
    qkv_bias: bool
    ops: Ops
    dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array, keep: Keep | None = None) -> jax.Array:
        """`[batch, tokens, d]` to the same shape.

        Args:
          x: the normed stream.
          keep: the attention weights that dropout keeps; all of them if None.
        """
        batch, tokens, width = x.shape
        projections = [
            _HeadProjection(self.heads, self.head_width, self.qkv_bias, name=name)(width)
            for name in ("query", "key", "value")
        ]
        # One product for the three.
        kernel, bias = (
            None if parts[0] is None else jnp.concatenate(parts, axis=-1)
            for parts in zip(*projections, strict=True)
        )
        qkv = self.ops.linear(x.astype(self.dtype), kernel, bias)
        qkv = qkv.reshape(batch, tokens, 3, self.heads, self.head_width)
        mixed = self.ops.attend(qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2], keep)
        kernel, bias = _OutProjection(self.heads, self.head_width, width, name="out")()
        return self.ops.linear(mixed.reshape(batch, tokens, -1), kernel, bias)


class _HeadProjection(nn.Module):
    """Parameters of query, key or value, flattened: `[d, h * dh]` and `[h * dh]` or None."""

    heads: int
    head_width: int
    bias: bool

    @nn.compact
    def __call__(self, width: int):
        shape = (self.heads, self.head_width)
        kernel = self.param("kernel", linear_init, (width, *shape))
        bias = self.param("bias", nn.initializers.zeros, shape) if self.bias else None
        return kernel.reshape(width, -1), None if bias is None else bias.reshape(-1)


class _OutProjection(nn.Module):
    """Parameters of the output projection, flattened: `[h * dh, d]` and `[d]`."""

    heads: int
    head_width: int
    width: int

    @nn.compact
    def __call__(self):
        kernel = self.param("kernel", linear_init, (self.heads, self.head_width, self.width))
        return kernel.reshape(-1, self.width), self.param(
            "bias", nn.initializers.zeros, (self.width,)
        )


class Mlp(nn.Module):
    """Two-layer FFN with exact GELU: `fc1` kernel `[d, c]`, bias `[c]`; `fc2` kernel `[c, d]`.

    Attributes:
      channels: hidden channels, c.
      ops: the formulations to use.
      dtype: dtype of the computation.
    """

    channels: int
    ops: Ops
    dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        hidden = self.ops.gelu(Linear(self.channels, self.ops, self.dtype, name="fc1")(x))
        return Linear(x.shape[-1], self.ops, self.dtype, name="fc2")(hidden)


# --- what is dropped in training -------------------------------------------------------------


def keep_heads(keys: jax.Array, batch: int, tokens: int, rate: float) -> Keep:
    """Attention dropout whose mask for head i depends on its key alone.

    A padded model then drops what an unpadded one does.

    Args:
      keys: PRNG keys `[heads]`.
      batch: images.
      tokens: tokens of each.
      rate: probability of dropping a weight, in [0, 1).
    """
    kept = round((1 - rate) * 2**32)
    drawn = random_bits.bits(keys, (batch, tokens, tokens))
    # Without the barrier XLA would draw them again in each place that uses the mask.
    mask = jax.lax.optimization_barrier(drawn <= np.uint32(kept - 1))
    return Keep(mask, kept / 2**32)


def drop_path_factors(key: jax.Array, rates: tuple[float, ...], batch: int) -> jax.Array:
    """Stochastic depth (Huang et al., 2016) of all layers in one draw.

    Args:
      key: PRNG key.
      rates: probability of dropping a branch of each layer, in [0, 1).
      batch: images.

    Returns:
      `[layers, 2, batch, 1, 1]` float32: what to multiply the two residual branches of each layer
      with, 0 or 1 / (1 - rate).
    """
    kept = 1 - np.asarray(rates, np.float32)[:, None, None]
    keep = jax.random.uniform(key, (len(rates), 2, batch)) < kept
    return jnp.where(keep, 1 / kept, 0)[..., None, None]


def drop_path_rates(layers: int, highest: float) -> tuple[float, ...]:
    """Rates rising linearly from 0 in the first layer to `highest` in the last."""
    return tuple(highest * layer / max(layers - 1, 1) for layer in range(layers))


def fan_in_uniform(key: jax.Array, shape: tuple[int, ...], dtype=jnp.float32) -> jax.Array:
    """Uniform in +-1/sqrt(fan-in), as patch embeddings usually start; kernel `[..., in, out]`."""
    bound = 1 / math.sqrt(math.prod(shape[:-1]))
    return jax.random.uniform(key, shape, dtype, -bound, bound)
