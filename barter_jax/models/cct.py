"""Compact Convolutional Transformer: convolutional tokenizer, sequence pooling, no class token.

The tokenizer is one 3x3 convolution with stride 1 and a 3x3 max-pool with stride 2, so a 32x32
image gives 256 tokens (Hassani et al., 2021).
"""

from __future__ import annotations

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp

from barter_jax.core.accounting import Dimensions
from barter_jax.core.topology import Topology
from barter_jax.models import layers
from barter_jax.models.layers import Dtype

NORM_EPSILON = 1e-5
KERNEL = 3


class CCT(nn.Module):
    """CCT with heads and channels per layer as its topology says.

    Attributes:
      topology: heads and channels of each layer.
      num_classes: classes.
      width: embedding width.
      head_width: width of one head.
      qkv_bias: whether query, key and value have biases (the reference has none).
      attention_dropout: rate in training.
      drop_path: stochastic depth of the last layer; rises linearly from 0.
      dtype: dtype of the computation; parameters are float32.
    """

    topology: Topology
    num_classes: int
    width: int = 256
    head_width: int = 16
    qkv_bias: bool = False
    attention_dropout: float = 0.1
    drop_path: float = 0.1
    dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(self, images: jax.Array, train: bool = False) -> jax.Array:
        """Normalised images `[batch, height, width, 3]` to float32 logits `[batch, classes]`."""
        x = nn.Conv(
            self.width,
            (KERNEL, KERNEL),
            padding=1,
            use_bias=False,
            dtype=self.dtype,
            kernel_init=nn.initializers.variance_scaling(2.0, "fan_in", "normal"),
            name="tokenizer",
        )(images)
        x = nn.max_pool(nn.relu(x), (3, 3), (2, 2), padding=((1, 1), (1, 1)))
        x = x.reshape(len(x), -1, self.width)
        position = self.param("position", nn.initializers.normal(0.2), (1, x.shape[1], self.width))
        x = x + position.astype(self.dtype)
        depth = len(self.topology.heads)
        for layer, rate in enumerate(layers.drop_path_rates(depth, self.drop_path)):
            x = Block(
                self.topology.heads[layer],
                self.topology.channels[layer],
                self.head_width,
                self.qkv_bias,
                self.attention_dropout,
                rate,
                self.dtype,
                name=f"block_{layer}",
            )(x, train)
        x = nn.LayerNorm(NORM_EPSILON, dtype=self.dtype, name="norm")(x)
        x = SequencePooling(self.dtype, name="pooling")(x)
        logits = nn.Dense(
            self.num_classes, dtype=self.dtype, kernel_init=layers.linear_init, name="classifier"
        )(x)
        return logits.astype(jnp.float32)


class Block(nn.Module):
    """CCT block. Mind the order: `norm1` replaces the residual stream itself."""

    heads: int
    channels: int
    head_width: int
    qkv_bias: bool
    attention_dropout: float
    drop_path: float
    dtype: Dtype

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        def norm(name):
            return nn.LayerNorm(NORM_EPSILON, dtype=self.dtype, name=name)

        drop_path = layers.DropPath(self.drop_path)
        attention = layers.Attention(
            self.heads,
            self.head_width,
            self.qkv_bias,
            self.attention_dropout,
            self.dtype,
            name="attention",
        )
        x = x + drop_path(attention(norm("pre_norm")(x), train), train)
        x = norm("norm1")(x)
        return x + drop_path(layers.Mlp(self.channels, self.dtype, name="mlp")(x), train)


class SequencePooling(nn.Module):
    """Softmax over tokens of a learned score, then the weighted sum: `[b, n, d]` to `[b, d]`."""

    dtype: Dtype

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        score = nn.Dense(1, dtype=self.dtype, kernel_init=layers.linear_init, name="score")(x)
        weights = nn.softmax(score[..., 0].astype(jnp.float32), axis=-1).astype(self.dtype)
        return jnp.einsum("bn,bnd->bd", weights, x)


@dataclasses.dataclass(frozen=True)
class CCTConfig:
    """The `model` section of a config that names `cct`: the dense model's sizes and options."""

    layers: int = 7
    width: int = 256
    heads: int = 16
    head_width: int = 16
    channels: int = 512
    qkv_bias: bool = False
    attention_dropout: float = 0.1
    drop_path: float = 0.1
    dtype: str = "float32"

    def check(self, image_size: int) -> None:
        """Raises `UserError` where this model cannot take such images."""
        layers.check_sizes(self)

    def module(self, topology: Topology, num_classes: int) -> CCT:
        return CCT(
            topology=topology,
            num_classes=num_classes,
            width=self.width,
            head_width=self.head_width,
            qkv_bias=self.qkv_bias,
            attention_dropout=self.attention_dropout,
            drop_path=self.drop_path,
            dtype=jnp.dtype(self.dtype),
        )

    def dimensions(self, image_size: int, num_classes: int) -> Dimensions:
        """The numbers that cost accounting needs."""
        tokens = ((image_size + 1) // 2) ** 2
        kernel = KERNEL**2 * 3 * self.width
        return Dimensions(
            layers=self.layers,
            width=self.width,
            head_width=self.head_width,
            heads=self.heads,
            channels=self.channels,
            qkv_bias=self.qkv_bias,
            tokens=tokens,
            other_parameters=(
                kernel
                + tokens * self.width  # positions
                + self.layers * layers.block_parameters_outside_units(self.width)
                + 2 * self.width  # final norm
                + self.width
                + 1  # pooling score
                + (self.width + 1) * num_classes
            ),
            embedding_macs=image_size**2 * kernel,
            head_macs=2 * tokens * self.width + self.width * num_classes,
        )
