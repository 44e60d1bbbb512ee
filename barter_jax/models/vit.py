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
from barter_jax.models.ops import Ops
from barter_jax.models.transformer import Transformer, TransformerConfig


class ViT(Transformer):
    """ViT; see `Transformer` for the fields it shares.

    Attributes:
      patch_size: side of a square patch in pixels; divides the image size.
    """

    patch_size: int

    norm_epsilon = 1e-6
    norm2_replaces_stream = False

    @nn.compact
    def __call__(self, images: jax.Array, train: bool = False) -> jax.Array:
        """Normalised images `[batch, height, width, 3]` to float32 logits `[batch, classes]`."""
        x = PatchEmbedding(self.patch_size, self.width, self.ops, self.dtype, name="embedding")(
            images
        )
        cls = self.param("cls_token", layers.linear_init, (1, 1, self.width))
        x = jnp.concatenate([jnp.broadcast_to(cls, (len(x), 1, self.width)).astype(x.dtype), x], 1)
        position = self.param("position", layers.linear_init, (1, x.shape[1], self.width))
        x = self.blocks(x + position.astype(self.dtype), train)
        # The norm acts on each token alone, so only the class token's is needed.
        return self.classify(self.norm(x[:, 0]))


class PatchEmbedding(nn.Module):
    """Non-overlapping patches, flattened and projected: a convolution written as a product."""

    patch_size: int
    width: int
    ops: Ops
    dtype: Dtype

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        b, h, w, c = images.shape
        p = self.patch_size
        # Rows of a patch stay whole (p * c values): fewer, longer copies than by single values.
        patches = images.reshape(b * (h // p), p, w // p, p * c).transpose(0, 2, 1, 3)
        patches = patches.reshape(b, (h // p) * (w // p), p * p * c)
        return layers.Linear(
            self.width, self.ops, self.dtype, layers.fan_in_uniform, name="projection"
        )(patches)


@dataclasses.dataclass(frozen=True)
class ViTConfig(TransformerConfig):
    """The `model` section of a config that names `vit`."""

    layers: int = 9
    width: int = 192
    heads: int = 12
    head_width: int = 16
    channels: int = 384
    qkv_bias: bool = True
    attention_dropout: float = 0.0
    drop_path: float = 0.1
    patch_size: int = 8

    def check(self, image_size: int) -> None:
        super().check(image_size)
        if self.patch_size < 1:
            raise UserError(f"config.model.patch_size must be at least 1, got {self.patch_size}")
        if image_size % self.patch_size:
            raise UserError(
                f"config.data.image_size={image_size} is not divisible by "
                f"config.model.patch_size={self.patch_size}: choose a patch size that divides it"
            )

    def module(self, topology: Topology, num_classes: int) -> ViT:
        return ViT(
            topology=topology,
            num_classes=num_classes,
            patch_size=self.patch_size,
            **self.module_fields(),
        )

    def dimensions(self, image_size: int, num_classes: int) -> Dimensions:
        patches = (image_size // self.patch_size) ** 2
        tokens = patches + 1
        patch_values = 3 * self.patch_size**2
        return self.dimensions_with(
            tokens=tokens,
            ends_parameters=(
                (patch_values + 1) * self.width  # embedding
                + self.width  # class token
                + tokens * self.width  # positions
                + 2 * self.width  # final norm
                + (self.width + 1) * num_classes
            ),
            embedding_macs=patches * patch_values * self.width,
            head_macs=self.width * num_classes,
        )
