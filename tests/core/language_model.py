"""A language model in plain JAX: the method has to do with it, Flax does not.

RMS norms, causal attention without biases, a gated FFN (SwiGLU): a channel has two inputs, `gate`
and `up`. Layers stand in a list. `gates` multiply the output of every head and channel.
"""

import jax
import jax.numpy as jnp
import numpy as np

from barter_jax.core.topology import Topology
from barter_jax.core.units import UnitTable

VOCABULARY, WIDTH, HEAD_WIDTH, LENGTH = 11, 12, 4, 6

HEADS = {
    "input": {f"layers/{{layer}}/attention/{name}": 1 for name in "qkv"},
    "output": {"layers/{layer}/attention/o": 0},
}
CHANNELS = {
    "input": {"layers/{layer}/ffn/gate": 1, "layers/{layer}/ffn/up": 1},
    "output": {"layers/{layer}/ffn/down": 0},
}


def unit_table(layers: int, heads: bool = True) -> UnitTable:
    patterns = {"heads": HEADS, "channels": CHANNELS} if heads else {"channels": CHANNELS}
    return UnitTable.from_patterns(layers, patterns)


def init(topology: Topology, seed: int = 0):
    """Random parameters as numpy arrays; a topology without heads gives a model without them."""
    rng = np.random.default_rng(seed)

    def leaf(*shape):
        return (0.5 * rng.standard_normal(shape)).astype(np.float32)

    def layer(i):
        channels = topology.channels[i]
        found = {
            "ffn": {
                "norm": 1 + leaf(WIDTH),
                "gate": leaf(WIDTH, channels),
                "up": leaf(WIDTH, channels),
                "down": leaf(channels, WIDTH),
            }
        }
        if topology.heads:
            heads = topology.heads[i]
            found["attention"] = {"norm": 1 + leaf(WIDTH), "o": leaf(heads, HEAD_WIDTH, WIDTH)}
            for name in "qkv":
                found["attention"][name] = leaf(WIDTH, heads, HEAD_WIDTH)
        return found

    return {
        "embedding": leaf(VOCABULARY, WIDTH),
        "position": leaf(LENGTH, WIDTH),
        "layers": [layer(i) for i in range(len(topology.channels))],
        "head": leaf(WIDTH, VOCABULARY),
    }


def ones(topology: Topology):
    """Gates that do nothing."""
    return {unit: [jnp.ones(n) for n in topology.of(unit)] for unit in ("heads", "channels")}


def forward(params, tokens, gates=None):
    """`[batch, length]` token ids to logits `[batch, length, vocabulary]`."""

    def norm(x, scale):
        return x * scale / jnp.sqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6)

    def gated(x, unit, i, axis):
        if gates is None:
            return x
        shape = [1] * x.ndim
        shape[axis] = -1
        return x * gates[unit][i].reshape(shape)

    length = tokens.shape[1]
    x = params["embedding"][tokens] + params["position"][:length]
    causal = jnp.tril(jnp.ones((length, length), bool))
    for i, layer in enumerate(params["layers"]):
        if "attention" in layer:
            p = layer["attention"]
            y = norm(x, p["norm"])
            q, k, v = (jnp.einsum("bnd,dhk->bhnk", y, p[name]) for name in "qkv")
            scores = jnp.einsum("bhnk,bhmk->bhnm", q, k) / HEAD_WIDTH**0.5
            weights = jax.nn.softmax(jnp.where(causal, scores, -1e9))
            mixed = gated(jnp.einsum("bhnm,bhmk->bhnk", weights, v), "heads", i, 1)
            x = x + jnp.einsum("bhnk,hkd->bnd", mixed, p["o"])
        p = layer["ffn"]
        y = norm(x, p["norm"])
        hidden = gated(jax.nn.silu(y @ p["gate"]) * (y @ p["up"]), "channels", i, 2)
        x = x + hidden @ p["down"]
    return x @ params["head"]


def loss(params, tokens, gates=None):
    """Mean next-token cross-entropy."""
    logits = jax.nn.log_softmax(forward(params, tokens, gates)[:, :-1])
    return -jnp.mean(jnp.take_along_axis(logits, tokens[:, 1:, None], axis=-1))


def random_tokens(batch: int = 4, seed: int = 0):
    return np.random.default_rng(seed).integers(0, VOCABULARY, (batch, LENGTH))
