"""ViT and CCT written a second time, from their papers and public descriptions.

`xp` is numpy (float64, to check against) or jax.numpy (to differentiate). `gates` multiply the
output of each head and channel: `{unit: [array of layer 0, ...]}`.
"""

import jax.scipy.special
import numpy as np
import scipy.special


def _gelu(x, xp):
    erf = scipy.special.erf if xp is np else jax.scipy.special.erf
    return 0.5 * x * (1 + erf(x / 2**0.5))


def _softmax(x, xp):
    e = xp.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def _norm(x, p, epsilon):
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) / (variance + epsilon) ** 0.5 * p["scale"] + p["bias"]


def _attention(x, p, gates, xp):
    """Head by head."""
    out = p["out"]["bias"]
    heads, head_width, _ = p["out"]["kernel"].shape
    for h in range(heads):
        q, k, v = (
            x @ p[name]["kernel"][:, h] + (p[name]["bias"][h] if "bias" in p[name] else 0)
            for name in ("query", "key", "value")
        )
        weights = _softmax(q @ k.swapaxes(-1, -2) / head_width**0.5, xp)
        out = out + gates[h] * (weights @ v) @ p["out"]["kernel"][h]
    return out


def _mlp(x, p, gates, xp):
    hidden = _gelu(x @ p["fc1"]["kernel"] + p["fc1"]["bias"], xp)
    return (gates * hidden) @ p["fc2"]["kernel"] + p["fc2"]["bias"]


def open_gates(params):
    """Gates of ones, for as many heads and channels as each block has."""
    blocks = [params[f"block_{i}"] for i in range(sum("block_" in name for name in params))]
    return {
        "heads": [np.ones(len(b["attention"]["out"]["kernel"])) for b in blocks],
        "channels": [np.ones(len(b["mlp"]["fc2"]["kernel"])) for b in blocks],
    }


def vit(params, images, patch, gates=None, xp=np):
    gates = gates or open_gates(params)
    batch, height, width, _ = images.shape
    p = params["embedding"]["projection"]
    tokens = [xp.broadcast_to(params["cls_token"][:, 0], (batch, p["bias"].size))]
    for row in range(0, height, patch):
        for column in range(0, width, patch):
            pixels = images[:, row : row + patch, column : column + patch]
            tokens.append(pixels.reshape(batch, -1) @ p["kernel"] + p["bias"])
    x = xp.stack(tokens, 1) + params["position"]
    for i, (heads, channels) in enumerate(zip(gates["heads"], gates["channels"], strict=True)):
        block = params[f"block_{i}"]
        x = x + _attention(_norm(x, block["norm1"], 1e-6), block["attention"], heads, xp)
        x = x + _mlp(_norm(x, block["norm2"], 1e-6), block["mlp"], channels, xp)
    x = _norm(x, params["norm"], 1e-6)[:, 0]
    return x @ params["classifier"]["kernel"] + params["classifier"]["bias"]


def cct(params, images, gates=None, xp=np):
    gates = gates or open_gates(params)
    batch, height, width, _ = images.shape
    # Convolution 3x3, stride 1, padding 1: nine shifted products.
    padded = xp.pad(images, ((0, 0), (1, 1), (1, 1), (0, 0)))
    kernel = params["tokenizer"]["kernel"]
    x = sum(
        padded[:, i : i + height, j : j + width] @ kernel[i, j] for i in range(3) for j in range(3)
    )
    x = xp.maximum(x, 0)
    # Maximum over 3x3, stride 2, padding 1.
    padded = xp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=-np.inf)
    corners = [padded[:, i : i + height : 2, j : j + width : 2] for i in range(3) for j in range(3)]
    x = xp.stack(corners).max(0)
    x = x.reshape(batch, -1, x.shape[-1]) + params["position"]
    for i, (heads, channels) in enumerate(zip(gates["heads"], gates["channels"], strict=True)):
        block = params[f"block_{i}"]
        x = x + _attention(_norm(x, block["norm1"], 1e-5), block["attention"], heads, xp)
        x = _norm(x, block["norm2"], 1e-5)
        x = x + _mlp(x, block["mlp"], channels, xp)
    x = _norm(x, params["norm"], 1e-5)
    score = params["pooling"]["score"]
    weights = _softmax((x @ score["kernel"] + score["bias"])[..., 0], xp)
    x = (weights[..., None] * x).sum(1)
    return x @ params["classifier"]["kernel"] + params["classifier"]["bias"]
