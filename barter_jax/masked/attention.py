"""The scores of heads that S2ViTE prunes by: the mean of |A * dL/dA| over the attention map A.

Neither A nor its gradient is kept by a training step, and kept for all layers at once they would
take gigabytes. So the scores come from a pass of their own, in which each layer's weights pass
through an identity with a second argument, the probe. The backward pass of the identity lets the
gradient of A through and gives as the probe's "gradient" the mean of |A * dL/dA| for each head. A
layer's map is then needed no longer than it is in any backward pass.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

PyTree = Any
# (params, images, targets, key) to the scores of the heads, float32 [heads] for each layer.
Scores = Callable[[PyTree, jax.Array, jax.Array, jax.Array], tuple[jax.Array, ...]]


@jax.custom_vjp
def tap(weights: jax.Array, probe: jax.Array) -> jax.Array:
    """The weights as they are; the probe's cotangent is the mean of |A * dL/dA|.

    Args:
      weights: A, `[batch, heads, queries, keys]`.
      probe: float32 `[heads]`; its values do not matter.
    """
    del probe
    return weights


def _tap_forward(weights, probe):
    del probe
    return weights, weights


def _tap_backward(weights, gradient):
    scores = jnp.abs(weights.astype(jnp.float32) * gradient.astype(jnp.float32))
    return gradient, jnp.mean(scores, axis=(0, 2, 3))


tap.defvjp(_tap_forward, _tap_backward)


def attend(probe: jax.Array, query, key, value, keep=None) -> jax.Array:
    """Attention by its formula, as `models.ops.plain.attend`, with a tap on the softmax.

    Dropout comes after the tap: A is what the softmax gives.

    Args:
      probe: float32 `[heads]`.
      query, key, value: `[batch, tokens, heads, width]`.
      keep: what dropout keeps: bool `mask` `[heads, batch, keys, queries]` and `share`; or None.
    """
    logits = jnp.einsum("bnhk,bmhk->bhnm", query * query.shape[-1] ** -0.5, key)
    weights = tap(nn.softmax(logits.astype(jnp.float32), axis=-1), probe)
    if keep is not None:
        weights = jnp.where(jnp.einsum("hbmn->bhnm", keep.mask), weights / keep.share, 0)
    return jnp.einsum("bhnm,bmhk->bnhk", weights.astype(value.dtype), value)


def make_scores(module: nn.Module) -> Scores:
    """S2ViTE's scores of the heads: the mean of |A * dL/dA| for the loss of a training step.

    Costs a forward and a backward pass without the gradients of parameters.

    Args:
      module: the dense model (see `apply_probed`).
    """

    def scores(params, images, targets, key):
        def loss(probes):
            logits = apply_probed(
                module, probes, {"params": params}, images, train=True, rngs={"dropout": key}
            )
            return jnp.mean(optax.softmax_cross_entropy(logits, targets))

        return jax.grad(loss)(tuple(jnp.zeros(n, jnp.float32) for n in module.topology.heads))

    return scores


def apply_probed(module: nn.Module, probes: Sequence[jax.Array], *args: Any, **kwargs: Any):
    """`module.apply(*args, **kwargs)` with a probe on the attention of each layer.

    Args:
      module: a model whose `ops` property has an `attend`, which its layers call in order.
      probes: float32 `[heads]` for each layer.

    Raises:
      ValueError: the module did not attend once for each probe.
    """
    feed = iter(probes)
    try:
        result = _probed(type(module))(**_fields(module), probes=_Feed(feed)).apply(*args, **kwargs)
    except StopIteration as error:
        raise ValueError(f"the model attends more often than {len(probes)} times") from error
    if next(feed, None) is not None:
        raise ValueError(f"the model attends less often than {len(probes)} times")
    return result


class _Feed:
    """Hides the iterator from Flax, which looks into the fields of a module."""

    def __init__(self, probes: Iterator[jax.Array]):
        self.probes = probes

    def attend(self, *args):
        return attend(next(self.probes), *args)


def _fields(module: nn.Module) -> dict[str, Any]:
    names = (field.name for field in dataclasses.fields(module) if field.init)
    return {name: getattr(module, name) for name in names if name not in ("parent", "name")}


@functools.cache
def _probed(base: type[nn.Module]) -> type[nn.Module]:
    """The class of a model whose attention is probed; its parameters are those of the model."""

    class Probed(base):
        probes: Any = None

        @property
        def ops(self):
            return base.ops.fget(self)._replace(attend=self.probes.attend)

    return Probed
