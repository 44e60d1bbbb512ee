"""The operations that a step's time goes into, in a formulation for each kind of backend.

`plain` is the reference: each operation by its formula, differentiated by JAX. The other sets
compute the same values and the same gradients (tests/models/test_ops.py holds them to that) and
differ in what the compiler makes of them. `choose` is the one place that decides.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import jax

from barter_jax.models.ops import cpu, gpu, plain


class Attend(Protocol):
    """`(query, key, value, keep) -> mixed`; all but `keep` are `[batch, heads, tokens, width]`."""

    def __call__(
        self, query: jax.Array, key: jax.Array, value: jax.Array, keep: plain.Keep | None
    ) -> jax.Array: ...


class Ops(NamedTuple):
    """A set of formulations.

    Attributes:
      layer_norm: `(x, scale, bias, epsilon)`: LayerNorm over the last axis.
      linear: `(x, kernel, bias or None)`: `[..., i]` by `[i, o]` to `[..., o]`.
      gelu: exact GELU, elementwise.
      attend: scaled dot-product attention with optional dropout of its weights.
      tokenize: `(images, kernel)`: CCT's 3x3 convolution, ReLU and 3x3 max-pool of stride 2.
    """

    layer_norm: Callable[[jax.Array, jax.Array, jax.Array, float], jax.Array]
    linear: Callable[[jax.Array, jax.Array, jax.Array | None], jax.Array]
    gelu: Callable[[jax.Array], jax.Array]
    attend: Attend
    tokenize: Callable[[jax.Array, jax.Array], jax.Array]


PLAIN = Ops(plain.layer_norm, plain.linear, plain.gelu, plain.attend, plain.tokenize)
CPU = Ops(cpu.layer_norm, cpu.linear, cpu.gelu, cpu.attend, cpu.tokenize)
# XLA fuses the plain formulas well there; only attention has something better.
GPU = PLAIN._replace(attend=gpu.attend)

SETS = {"plain": PLAIN, "cpu": CPU, "gpu": GPU}
BY_PLATFORM = {"cpu": CPU, "gpu": GPU}
AUTO = "auto"


def choose(name: str) -> Ops:
    """The set of that name; `"auto"` is the one made for the backend in use.

    Raises:
      KeyError: there is no such set.
    """
    if name == AUTO:
        return BY_PLATFORM.get(jax.default_backend(), PLAIN)
    return SETS[name]
