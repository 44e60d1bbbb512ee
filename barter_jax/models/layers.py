"""Layers that ViT and CCT share. Heads and channels each sit on an axis of their own.

Nothing here masks anything: a padded unit has all-zero parameters, so its output and its gradient
are zero by themselves.
"""

from __future__ import annotations

import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

Dtype = Any
DTYPES = ("float32", "bfloat16")

linear_init = nn.initializers.normal(stddev=0.02)


class Attention(nn.Module):
    """Multi-head self-attention with one axis for the heads.

    Parameters: `query`, `key`, `value` kernels `[d, h, dh]` (and biases `[h, dh]`), `out` kernel
    `[h, dh, d]` and bias `[d]`.

    Attributes:
      heads: number of heads, h.
      head_width: width of a head, dh.
      qkv_bias: whether query, key and value have biases.
      dropout: rate at which attention weights are dropped in training.
      dtype: dtype of the computation; parameters are float32.
    """

    heads: int
    head_width: int
    qkv_bias: bool
    dropout: float = 0.0
    dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        """`[batch, tokens, d]` to the same shape."""
        query, key, value = (
            _HeadProjection(self.heads, self.head_width, self.qkv_bias, self.dtype, name=name)(x)
            for name in ("query", "key", "value")
        )
        logits = jnp.einsum("bhnk,bhmk->bhnm", query * self.head_width**-0.5, key)
        # The softmax is taken in float32 whatever the compute dtype: bfloat16 sums lose too much.
        weights = nn.softmax(logits.astype(jnp.float32), axis=-1).astype(self.dtype)
        if train and self.dropout > 0:
            weights = drop_heads(self.make_rng("dropout"), weights, self.dropout)
        mixed = jnp.einsum("bhnm,bhmk->bhnk", weights, value)
        return _OutProjection(x.shape[-1], self.dtype, name="out")(mixed)


class _HeadProjection(nn.Module):
    """`[b, n, d]` to `[b, h, n, dh]`."""

    heads: int
    head_width: int
    bias: bool
    dtype: Dtype

    @nn.compact
    def __call__(self, x):
        shape = (self.heads, self.head_width)
        kernel = self.param("kernel", linear_init, (x.shape[-1], *shape))
        y = jnp.einsum("bnd,dhk->bhnk", x.astype(self.dtype), kernel.astype(self.dtype))
        if self.bias:
            bias = self.param("bias", nn.initializers.zeros, shape)
            y = y + bias.astype(self.dtype)[:, None, :]
        return y


class _OutProjection(nn.Module):
    """`[b, h, n, dh]` to `[b, n, d]`."""

    width: int
    dtype: Dtype

    @nn.compact
    def __call__(self, x):
        kernel = self.param("kernel", linear_init, (x.shape[1], x.shape[3], self.width))
        bias = self.param("bias", nn.initializers.zeros, (self.width,))
        return jnp.einsum("bhnk,hkd->bnd", x, kernel.astype(self.dtype)) + bias.astype(self.dtype)


def drop_heads(key: jax.Array, weights: jax.Array, rate: float) -> jax.Array:
    """Attention dropout whose mask for head i depends on i alone.

    A padded model then drops what an unpadded one does.

    Args:
      key: PRNG key.
      weights: `[batch, heads, tokens, tokens]`.
      rate: probability of dropping a weight, in [0, 1).
    """
    b, h, n, m = weights.shape
    keys = jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(h))
    keep = jax.vmap(lambda k: jax.random.bernoulli(k, 1 - rate, (b, n, m)), out_axes=1)(keys)
    return jnp.where(keep, weights / (1 - rate), 0).astype(weights.dtype)


class Mlp(nn.Module):
    """Two-layer FFN with exact GELU: `fc1` kernel `[d, c]`, bias `[c]`; `fc2` kernel `[c, d]`.

    Attributes:
      channels: hidden channels, c.
      dtype: dtype of the computation.
    """

    channels: int
    dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        hidden = nn.Dense(self.channels, dtype=self.dtype, kernel_init=linear_init, name="fc1")(x)
        hidden = nn.gelu(hidden, approximate=False)
        return nn.Dense(x.shape[-1], dtype=self.dtype, kernel_init=linear_init, name="fc2")(hidden)


class DropPath(nn.Module):
    """Stochastic depth: drops a residual branch for a whole sample (Huang et al., 2016).

    Attributes:
      rate: probability of dropping, in [0, 1).
    """

    rate: float

    @nn.compact
    def __call__(self, branch: jax.Array, train: bool) -> jax.Array:
        if not train or self.rate == 0:
            return branch
        shape = (branch.shape[0],) + (1,) * (branch.ndim - 1)
        keep = jax.random.bernoulli(self.make_rng("dropout"), 1 - self.rate, shape)
        return jnp.where(keep, branch / (1 - self.rate), 0).astype(branch.dtype)


def drop_path_rates(layers: int, highest: float) -> tuple[float, ...]:
    """Rates rising linearly from 0 in the first layer to `highest` in the last."""
    return tuple(highest * layer / max(layers - 1, 1) for layer in range(layers))


def fan_in_uniform(key: jax.Array, shape: tuple[int, ...], dtype=jnp.float32) -> jax.Array:
    """Uniform in +-1/sqrt(fan-in), as patch embeddings usually start; kernel `[..., in, out]`."""
    bound = 1 / math.sqrt(math.prod(shape[:-1]))
    return jax.random.uniform(key, shape, dtype, -bound, bound)
