"""Random weights under the names of other projects, and their models in NumPy.

The forward passes are written straight from the public descriptions, on the arrays as those
projects keep them. They share nothing with this project's models.
"""

import numpy as np
import safetensors.numpy
import scipy.special

WIDTH, HEADS, HEAD_WIDTH, CHANNELS, LAYERS, CLASSES = 12, 3, 4, 10, 2, 5
PATCH, GRID = 2, 3
SIZES = {"width": WIDTH, "heads": HEADS, "head_width": HEAD_WIDTH, "channels": CHANNELS}

HUGGING_FACE = {
    "cls_token": "{p}embeddings.cls_token",
    "pos_embed": "{p}embeddings.position_embeddings",
    "patch_embed.proj.": "{p}embeddings.patch_embeddings.projection.",
    "norm.": "{p}layernorm.",
    "head.": "classifier.",
}
IN_BLOCK = {
    "norm1.": "layernorm_before.",
    "norm2.": "layernorm_after.",
    "attn.proj.": "attention.output.dense.",
    "mlp.fc1.": "intermediate.dense.",
    "mlp.fc2.": "output.dense.",
}
IN_BLOCK_STATE = {
    "norm1.": "layernorm_before.",
    "norm2.": "layernorm_after.",
    "attn.proj.": "attention.o_proj.",
    "mlp.fc1.": "mlp.fc1.",
    "mlp.fc2.": "mlp.fc2.",
}


def _filler(seed):
    rng = np.random.default_rng(seed)
    return lambda *shape: (0.3 * rng.standard_normal(shape)).astype(np.float32)


def timm(seed=0, layers=LAYERS, width=WIDTH, channels=CHANNELS, classes=CLASSES, grid=GRID):
    """A ViT as timm names it."""
    some = _filler(seed)
    weights = {
        "cls_token": some(1, 1, width),
        "pos_embed": some(1, 1 + grid * grid, width),
        "patch_embed.proj.weight": some(width, 3, PATCH, PATCH),
        "patch_embed.proj.bias": some(width),
        "norm.weight": 1 + some(width),
        "norm.bias": some(width),
        "head.weight": some(classes, width),
        "head.bias": some(classes),
    }
    for i in range(layers):
        weights |= {
            f"blocks.{i}.{name}": value
            for name, value in {
                "norm1.weight": 1 + some(width),
                "norm1.bias": some(width),
                "attn.qkv.weight": some(3 * width, width),
                "attn.qkv.bias": some(3 * width),
                "attn.proj.weight": some(width, width),
                "attn.proj.bias": some(width),
                "norm2.weight": 1 + some(width),
                "norm2.bias": some(width),
                "mlp.fc1.weight": some(channels, width),
                "mlp.fc1.bias": some(channels),
                "mlp.fc2.weight": some(width, channels),
                "mlp.fc2.bias": some(width),
            }.items()
        }
    return weights


def hugging_face(weights, prefix="vit.", state=False):
    """timm's weights under Hugging Face's names: as files have them, or as `state_dict()` has."""
    blocks = IN_BLOCK_STATE if state else IN_BLOCK
    found = {}
    for name, value in weights.items():
        if not name.startswith("blocks."):
            old = max((k for k in HUGGING_FACE if name.startswith(k)), key=len)
            found[HUGGING_FACE[old].format(p=prefix) + name.removeprefix(old)] = value
            continue
        _, layer, rest = name.split(".", 2)
        block = f"{prefix}layers.{layer}." if state else f"{prefix}encoder.layer.{layer}."
        if rest.startswith("attn.qkv."):
            leaf = rest.rpartition(".")[2]
            for part, third in zip(("query", "key", "value"), np.split(value, 3), strict=True):
                inside = f"{part[0]}_proj" if state else f"attention.{part}"
                found[f"{block}attention.{inside}.{leaf}"] = third
            continue
        old = next(k for k in blocks if rest.startswith(k))
        found[block + blocks[old] + rest.removeprefix(old)] = value
    return found


def cct(seed=0, layers=LAYERS, width=WIDTH, channels=CHANNELS, classes=CLASSES, grid=GRID):
    """A CCT with one convolution as SHI-Labs name it."""
    some = _filler(seed)
    weights = {
        "tokenizer.conv_layers.0.0.weight": some(width, 3, 3, 3),
        "classifier.positional_emb": some(1, grid * grid, width),
        "classifier.attention_pool.weight": some(1, width),
        "classifier.attention_pool.bias": some(1),
        "classifier.norm.weight": 1 + some(width),
        "classifier.norm.bias": some(width),
        "classifier.fc.weight": some(classes, width),
        "classifier.fc.bias": some(classes),
    }
    for i in range(layers):
        weights |= {
            f"classifier.blocks.{i}.{name}": value
            for name, value in {
                "pre_norm.weight": 1 + some(width),
                "pre_norm.bias": some(width),
                "self_attn.qkv.weight": some(3 * width, width),
                "self_attn.proj.weight": some(width, width),
                "self_attn.proj.bias": some(width),
                "norm1.weight": 1 + some(width),
                "norm1.bias": some(width),
                "linear1.weight": some(channels, width),
                "linear1.bias": some(channels),
                "linear2.weight": some(width, channels),
                "linear2.bias": some(width),
            }.items()
        }
    return weights


def save(weights, file, metadata=None):
    safetensors.numpy.save_file(weights, file, metadata or {"format": "pt"})
    return file


def without(weights, *names):
    return {name: value for name, value in weights.items() if name not in names}


# --- forward passes ------------------------------------------------------------------------


class _Named:
    """Float64 arrays by name below a prefix."""

    def __init__(self, weights, prefix=""):
        self.weights, self.prefix = weights, prefix

    def __getitem__(self, name):
        return np.float64(self.weights[self.prefix + name])

    def linear(self, name, x):
        bias = self.prefix + name + ".bias"
        y = x @ self[name + ".weight"].T
        return y + self[name + ".bias"] if bias in self.weights else y

    def norm(self, name, x, epsilon):
        centred = x - x.mean(-1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + epsilon)
        return scaled * self[name + ".weight"] + self[name + ".bias"]


def _softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def _gelu(x):
    return x * scipy.special.ndtr(x)


def _attention(named, name, x, heads):
    """timm's and SHI-Labs': one tensor for query, key and value, cut into three and into heads."""
    batch, tokens, width = x.shape
    qkv = named.linear(f"{name}.qkv", x).reshape(batch, tokens, 3, heads, width // heads)
    q, k, v = qkv.transpose(2, 0, 3, 1, 4)
    weights = _softmax(q @ k.transpose(0, 1, 3, 2) / np.sqrt(width // heads))
    return named.linear(f"{name}.proj", (weights @ v).transpose(0, 2, 1, 3).reshape(x.shape))


def vit_logits(weights, images, heads=HEADS, epsilon=1e-6):
    """timm's VisionTransformer on images `[n, height, width, 3]`."""
    named = _Named(weights)
    kernel = named["patch_embed.proj.weight"]
    patch = kernel.shape[-1]
    tokens = [np.broadcast_to(named["cls_token"][0], (len(images), 1, len(kernel)))[:, 0]]
    for top in range(0, images.shape[1], patch):
        for left in range(0, images.shape[2], patch):
            pixels = images[:, top : top + patch, left : left + patch]
            tokens.append(
                np.einsum("nhwc,dchw->nd", pixels, kernel) + named["patch_embed.proj.bias"]
            )
    x = np.stack(tokens, 1) + named["pos_embed"]
    layers = len({name.split(".")[1] for name in weights if name.startswith("blocks.")})
    for i in range(layers):
        block = _Named(weights, f"blocks.{i}.")
        x = x + _attention(block, "attn", block.norm("norm1", x, epsilon), heads)
        hidden = block.linear("mlp.fc1", block.norm("norm2", x, epsilon))
        x = x + block.linear("mlp.fc2", _gelu(hidden))
    return named.linear("head", named.norm("norm", x, epsilon)[:, 0])


def cct_logits(weights, images, heads=HEADS):
    """SHI-Labs' CCT with one 3x3 convolution on images `[n, height, width, 3]`."""
    kernel = np.float64(weights["tokenizer.conv_layers.0.0.weight"])
    _, height, width, _ = images.shape
    padded = np.pad(images, ((0, 0), (1, 1), (1, 1), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(1, 2))
    x = np.maximum(np.einsum("nhwcij,dcij->nhwd", windows, kernel), 0)
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=-np.inf)
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(1, 2))
    x = windows.max((-2, -1))[:, ::2, ::2].reshape(len(images), -1, len(kernel))

    named = _Named(weights, "classifier.")
    x = x + named["positional_emb"]
    layers = len({name.split(".")[2] for name in weights if name.startswith("classifier.blocks.")})
    for i in range(layers):
        block = _Named(weights, f"classifier.blocks.{i}.")
        x = x + _attention(block, "self_attn", block.norm("pre_norm", x, 1e-5), heads)
        x = block.norm("norm1", x, 1e-5)
        x = x + block.linear("linear2", _gelu(block.linear("linear1", x)))
    x = named.norm("norm", x, 1e-5)
    shares = _softmax(named.linear("attention_pool", x)[..., 0])
    return named.linear("fc", np.einsum("nt,ntd->nd", shares, x))
