"""Vision Transformer for small data sets: pre-norm blocks, class token, learned positions."""

from __future__ import annotations

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp

from barter_jax.core.accounting import Dimensions
from barter_jax.core.topology import Topology
from barter_jax.errors import UserError
from barter_jax.models import layers
from barter_jax.models.layers import Dtype

NORM_EPSILON = 1e-6


class ViT(nn.Module):
    """ViT with heads and channels per layer as its topology says.

    Attributes:
      topology: heads and channels of each layer.
      num_classes: classes.
      patch_size: side of a square patch in pixels; divides the image size.
      width: embedding width.
      head_width: width of one head.
      qkv_bias: whether query, key and value have biases.
      attention_dropout: rate in training.
      drop_path: stochastic depth of the last layer; rises linearly from 0.
      dtype: dtype of the computation; parameters are float32.
    """

    topology: Topology
    num_classes: int
    patch_size: int = 8
    width: int = 192
    head_width: int = 16
    qkv_bias: bool = True
    attention_dropout: float = 0.0
    drop_path: float = 0.1
    dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(self, images: jax.Array, train: bool = False) -> jax.Array:
        """Normalised images `[batch, height, width, 3]` to float32 logits `[batch, classes]`."""
        x = PatchEmbedding(self.patch_size, self.width, self.dtype, name="embedding")(images)
        cls = self.param("cls_token", layers.linear_init, (1, 1, self.width))
        x = jnp.concatenate([jnp.broadcast_to(cls, (len(x), 1, self.width)).astype(x.dtype), x], 1)
        position = self.param("position", layers.linear_init, (1, x.shape[1], self.width))
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
        x = nn.LayerNorm(NORM_EPSILON, dtype=self.dtype, name="norm")(x[:, 0])
        logits = nn.Dense(
            self.num_classes, dtype=self.dtype, kernel_init=layers.linear_init, name="classifier"
        )(x)
        return logits.astype(jnp.float32)


class PatchEmbedding(nn.Module):
    """Non-overlapping patches, flattened and projected: a convolution written as a product."""

    patch_size: int
    width: int
    dtype: Dtype

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        b, h, w, c = images.shape
        p = self.patch_size
        patches = images.reshape(b, h // p, p, w // p, p, c).transpose(0, 1, 3, 2, 4, 5)
        patches = patches.reshape(b, (h // p) * (w // p), p * p * c)
        return nn.Dense(
            self.width, dtype=self.dtype, kernel_init=layers.fan_in_uniform, name="projection"
        )(patches)


class Block(nn.Module):
    """Pre-norm Transformer block."""

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
        x = x + drop_path(attention(norm("norm1")(x), train), train)
        mlp = layers.Mlp(self.channels, self.dtype, name="mlp")
        return x + drop_path(mlp(norm("norm2")(x)), train)


@dataclasses.dataclass(frozen=True)
class ViTConfig:
    """The `model` section of a config that names `vit`: the dense model's sizes and options."""

    layers: int = 9
    width: int = 192
    heads: int = 12
    head_width: int = 16
    channels: int = 384
    qkv_bias: bool = True
    patch_size: int = 8
    attention_dropout: float = 0.0
    drop_path: float = 0.1
    dtype: str = "float32"

    def check(self, image_size: int) -> None:
        """Raises `UserError` where this model cannot take such images."""
        layers.check_sizes(self)
        if image_size % self.patch_size:
            raise UserError(
                f"data.image_size={image_size} is not divisible by "
                f"model.patch_size={self.patch_size}: choose a patch size that divides it"
            )

    def module(self, topology: Topology, num_classes: int) -> ViT:
        return ViT(
            topology=topology,
            num_classes=num_classes,
            patch_size=self.patch_size,
            width=self.width,
            head_width=self.head_width,
            qkv_bias=self.qkv_bias,
            attention_dropout=self.attention_dropout,
            drop_path=self.drop_path,
            dtype=jnp.dtype(self.dtype),
        )

    def dimensions(self, image_size: int, num_classes: int) -> Dimensions:
        """The numbers that cost accounting needs."""
        patches = (image_size // self.patch_size) ** 2
        tokens = patches + 1
        patch_pixels = 3 * self.patch_size**2
        return Dimensions(
            layers=self.layers,
            width=self.width,
            head_width=self.head_width,
            heads=self.heads,
            channels=self.channels,
            qkv_bias=self.qkv_bias,
            tokens=tokens,
            other_parameters=(
                (patch_pixels + 1) * self.width  # embedding
                + self.width  # class token
                + tokens * self.width  # positions
                + self.layers * layers.block_parameters_outside_units(self.width)
                + 2 * self.width  # final norm
                + (self.width + 1) * num_classes
            ),
            embedding_macs=patches * patch_pixels * self.width,
            head_macs=self.width * num_classes,
        )
