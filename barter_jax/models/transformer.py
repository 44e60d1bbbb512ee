"""What ViT and CCT have in common: the blocks, the classifier, and the config fields."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from barter_jax.core.accounting import Dimensions
from barter_jax.core.topology import Topology
from barter_jax.core.units import UnitTable
from barter_jax.errors import UserError
from barter_jax.models import layers, ops
from barter_jax.models.layers import DTYPES, Dtype

# Nearer to 1, a draw of 32 bits could keep nothing at all.
_MOST_DROPPED = 0.999


class Transformer(nn.Module):
    """Base of the models: heads and channels per layer as the topology says.

    Attributes:
      topology: heads and channels of each layer.
      num_classes: classes.
      width: embedding width.
      head_width: width of one head.
      qkv_bias: whether query, key and value have biases.
      attention_dropout: rate in training.
      drop_path: stochastic depth of the last layer; rises linearly from 0.
      dtype: dtype of the computation; parameters are float32.
      kernels: name of the formulations of the heavy operations, see `models.ops.choose`.
      remat: whether the backward pass computes each block again instead of keeping it: less memory
        for more time. XLA's CPU backend moves that work forward again and saves nothing.
    """

    topology: Topology
    num_classes: int
    width: int
    head_width: int
    qkv_bias: bool
    attention_dropout: float
    drop_path: float
    dtype: Dtype
    kernels: str
    remat: bool

    norm_epsilon: ClassVar[float]
    norm2_replaces_stream: ClassVar[bool]

    @property
    def ops(self) -> ops.Ops:
        """The formulations of the heavy operations."""
        return ops.choose(self.kernels)

    def blocks(self, x: jax.Array, train: bool) -> jax.Array:
        """All blocks, `[batch, tokens, width]` to the same shape. For a compact `__call__`."""
        factors, keys = self._drawn(len(x)) if train else (None, None)
        block = nn.remat(Block) if self.remat else Block
        for layer, heads in enumerate(self.topology.heads):
            x = block(
                heads=heads,
                channels=self.topology.channels[layer],
                head_width=self.head_width,
                qkv_bias=self.qkv_bias,
                attention_dropout=self.attention_dropout,
                norm_epsilon=self.norm_epsilon,
                norm2_replaces_stream=self.norm2_replaces_stream,
                ops=self.ops,
                dtype=self.dtype,
                name=f"block_{layer}",
            )(
                x,
                None if factors is None else factors[layer].astype(x.dtype),
                None if keys is None else keys[layer, :heads],
            )
        return x

    def _drawn(self, batch: int) -> tuple[jax.Array | None, jax.Array | None]:
        """What the blocks drop in a training step: branches, and keys for attention's weights.

        Drawn for all layers at once: a generator costs a CPU more to start than to run.
        """
        factors = keys = None
        rates = layers.drop_path_rates(len(self.topology.heads), self.drop_path)
        if self.drop_path > 0:
            factors = layers.drop_path_factors(self.make_rng("dropout"), rates, batch)
        if self.attention_dropout > 0:
            # A key depends on the layer and the head alone, not on how many there are.
            numbers = np.arange(len(rates))[:, None] * 2**16 + np.arange(max(self.topology.heads))
            fold = jax.vmap(jax.vmap(jax.random.fold_in, (None, 0)), (None, 0))
            keys = fold(self.make_rng("dropout"), numbers)
        return factors, keys

    def norm(self, x: jax.Array) -> jax.Array:
        """The final LayerNorm."""
        return layers.LayerNorm(self.norm_epsilon, self.ops, self.dtype, name="norm")(x)

    def classify(self, x: jax.Array) -> jax.Array:
        """`[batch, width]` to float32 logits `[batch, classes]`."""
        dense = layers.Linear(self.num_classes, self.ops, self.dtype, name="classifier")
        return dense(x).astype(jnp.float32)


class Block(nn.Module):
    """Attention and FFN with residual branches, each after a norm of its input.

    With `norm2_replaces_stream` the second norm acts on the residual stream itself and not on the
    FFN's branch alone: that is CCT's order.
    """

    heads: int
    channels: int
    head_width: int
    qkv_bias: bool
    attention_dropout: float
    norm_epsilon: float
    norm2_replaces_stream: bool
    ops: ops.Ops
    dtype: Dtype

    @nn.compact
    def __call__(
        self, x: jax.Array, factors: jax.Array | None, keys: jax.Array | None
    ) -> jax.Array:
        """`[batch, tokens, width]` to the same shape.

        Args:
          x: the residual stream.
          factors: `[2, batch, 1, 1]`, what stochastic depth multiplies the branches with, or None.
          keys: PRNG keys `[heads]` of attention's dropout, or None.
        """

        def norm(name):
            return layers.LayerNorm(self.norm_epsilon, self.ops, self.dtype, name=name)

        def added(x, branch, which):
            return x + (branch if factors is None else branch * factors[which])

        attention = layers.Attention(
            self.heads, self.head_width, self.qkv_bias, self.ops, self.dtype, name="attention"
        )
        keep = None
        if keys is not None:
            keep = layers.keep_heads(keys, x.shape[0], x.shape[1], self.attention_dropout)
        x = added(x, attention(norm("norm1")(x), keep), 0)
        normed = norm("norm2")(x)
        if self.norm2_replaces_stream:
            x = normed
        mlp = layers.Mlp(self.channels, self.ops, self.dtype, name="mlp")
        return added(x, mlp(normed), 1)


@dataclasses.dataclass(frozen=True)
class TransformerConfig:
    """The fields that the `model` section of any config has: the dense model's sizes and options.

    Raises nothing by itself; `check` does.
    """

    layers: int
    width: int
    heads: int
    head_width: int
    channels: int
    qkv_bias: bool
    attention_dropout: float
    drop_path: float
    dtype: str = "float32"
    kernels: str = ops.AUTO
    remat: bool = False

    def check(self, image_size: int) -> None:
        """Raises `UserError`, naming the field, where the model cannot be built for such images."""
        for field in ("layers", "width", "heads", "head_width", "channels"):
            if getattr(self, field) < 1:
                raise UserError(
                    f"config.model.{field} must be at least 1, got {getattr(self, field)}"
                )
        for field in ("attention_dropout", "drop_path"):
            if not 0 <= getattr(self, field) <= _MOST_DROPPED:
                raise UserError(
                    f"config.model.{field} must be in [0, {_MOST_DROPPED}], got "
                    f"{getattr(self, field)}"
                )
        if self.dtype not in DTYPES:
            raise UserError(
                f"config.model.dtype must be one of {', '.join(DTYPES)}, got {self.dtype!r}"
            )
        if self.kernels not in (ops.AUTO, *ops.SETS):
            known = ", ".join((ops.AUTO, *ops.SETS))
            raise UserError(f"config.model.kernels must be one of {known}, got {self.kernels!r}")

    def module(self, topology: Topology, num_classes: int) -> Transformer:
        """The Flax module at a topology."""
        raise NotImplementedError

    def dimensions(self, image_size: int, num_classes: int) -> Dimensions:
        """The numbers that cost accounting needs."""
        raise NotImplementedError

    def module_fields(self) -> dict[str, object]:
        """The fields that `Transformer` takes as they are."""
        names = (
            "width",
            "head_width",
            "qkv_bias",
            "attention_dropout",
            "drop_path",
            "kernels",
            "remat",
        )
        return {**{n: getattr(self, n) for n in names}, "dtype": jnp.dtype(self.dtype)}

    def dimensions_with(
        self, *, tokens: int, ends_parameters: int, embedding_macs: int, head_macs: int
    ) -> Dimensions:
        """Completes the numbers that differ between models.

        Args:
          tokens: tokens that the blocks see.
          ends_parameters: parameters outside the blocks.
          embedding_macs: multiply-accumulates of the embedding.
          head_macs: of pooling and classifier.
        """
        # Two norms, and the biases of `out` and `fc2`.
        block_outside_units = 2 * (2 * self.width) + 2 * self.width
        return Dimensions(
            layers=self.layers,
            width=self.width,
            head_width=self.head_width,
            heads=self.heads,
            channels=self.channels,
            qkv_bias=self.qkv_bias,
            tokens=tokens,
            other_parameters=ends_parameters + self.layers * block_outside_units,
            embedding_macs=embedding_macs,
            head_macs=head_macs,
        )

    def units(self) -> UnitTable:
        """The unit axes of the model's parameters."""
        attention, mlp = "block_{layer}/attention", "block_{layer}/mlp"
        projections = ("query", "key", "value")
        head_inputs = {f"{attention}/{name}/kernel": 1 for name in projections}
        if self.qkv_bias:
            head_inputs |= {f"{attention}/{name}/bias": 0 for name in projections}
        return UnitTable.from_patterns(
            self.layers,
            {
                "heads": {"input": head_inputs, "output": {f"{attention}/out/kernel": 0}},
                "channels": {
                    "input": {f"{mlp}/fc1/kernel": 1, f"{mlp}/fc1/bias": 0},
                    "output": {f"{mlp}/fc2/kernel": 0},
                },
            },
        )
