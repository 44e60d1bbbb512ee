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
from barter_jax.models.ops import Ops
from barter_jax.models.transformer import Transformer, TransformerConfig

KERNEL = 3


class CCT(Transformer):
    """CCT; see `Transformer` for its fields. Mind its blocks' order of norm and residual."""

    norm_epsilon = 1e-5
    norm2_replaces_stream = True

    @nn.compact
    def __call__(self, images: jax.Array, train: bool = False) -> jax.Array:
        """Normalised images `[batch, height, width, 3]` to float32 logits `[batch, classes]`."""
        x = Tokenizer(self.width, self.ops, self.dtype, name="tokenizer")(images)
        x = x.reshape(len(x), -1, self.width)
        position = self.param("position", nn.initializers.normal(0.2), (1, x.shape[1], self.width))
        x = self.blocks(x + position.astype(self.dtype), train)
        return self.classify(SequencePooling(self.ops, self.dtype, name="pooling")(self.norm(x)))


class Tokenizer(nn.Module):
    """Convolution, ReLU and max-pool: `kernel` `[3, 3, 3, d]`, without bias."""

    width: int
    ops: Ops
    dtype: Dtype

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        init = nn.initializers.variance_scaling(2.0, "fan_in", "normal")
        kernel = self.param("kernel", init, (KERNEL, KERNEL, images.shape[-1], self.width))
        return self.ops.tokenize(images.astype(self.dtype), kernel)


class SequencePooling(nn.Module):
    """Softmax over tokens of a learned score, then the weighted sum: `[b, n, d]` to `[b, d]`."""

    ops: Ops
    dtype: Dtype

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        score = layers.Linear(1, self.ops, self.dtype, name="score")(x)
        weights = nn.softmax(score[..., 0].astype(jnp.float32), axis=-1).astype(self.dtype)
        return jnp.einsum("bn,bnd->bd", weights, x)


@dataclasses.dataclass(frozen=True)
class CCTConfig(TransformerConfig):
    """The `model` section of a config that names `cct`."""

    layers: int = 7
    width: int = 256
    heads: int = 16
    head_width: int = 16
    channels: int = 512
    qkv_bias: bool = False
    attention_dropout: float = 0.1
    drop_path: float = 0.1

    def module(self, topology: Topology, num_classes: int) -> CCT:
        return CCT(topology=topology, num_classes=num_classes, **self.module_fields())

    def dimensions(self, image_size: int, num_classes: int) -> Dimensions:
        tokens = ((image_size + 1) // 2) ** 2
        kernel = KERNEL**2 * 3 * self.width
        return self.dimensions_with(
            tokens=tokens,
            ends_parameters=(
                kernel
                + tokens * self.width  # positions
                + 2 * self.width  # final norm
                + self.width
                + 1  # pooling score
                + (self.width + 1) * num_classes
            ),
            embedding_macs=image_size**2 * kernel,
            head_macs=2 * tokens * self.width + self.width * num_classes,
        )
