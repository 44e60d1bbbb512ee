"""The same ViT and CCT in eager PyTorch: a rival that is no work of this project.

PyTorch is no dependency; only the benchmark's `torch_*` methods import this module. The modules
are written as one would write them in PyTorch 2: one product for query, key and value, fused
attention or explicit, stochastic depth as a scaled mask per sample.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from barter_jax.core.topology import Topology
from barter_jax.models import CCTConfig, TransformerConfig, ViTConfig
from barter_jax.models.cct import CCT
from barter_jax.models.layers import drop_path_rates
from barter_jax.models.vit import ViT


class Attention(nn.Module):
    """Multi-head self-attention, `[batch, tokens, width]` to the same shape.

    Attributes:
      fused: whether to use `scaled_dot_product_attention`, or products and a softmax. With dropout
        PyTorch's fused kernels serve CUDA only; on a CPU the same call then takes its slower path.
    """

    fused = True

    def __init__(self, width: int, heads: int, head_width: int, bias: bool, dropout: float):
        super().__init__()
        self.heads, self.head_width, self.dropout = heads, head_width, dropout
        self.qkv = nn.Linear(width, 3 * heads * head_width, bias=bias)
        self.out = nn.Linear(heads * head_width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, n, _ = x.shape
        qkv = self.qkv(x).view(b, n, 3, self.heads, self.head_width).permute(2, 0, 3, 1, 4)
        query, key, value = qkv.unbind(0)
        dropout = self.dropout if self.training else 0.0
        if self.fused:
            mixed = F.scaled_dot_product_attention(query, key, value, dropout_p=dropout)
        else:
            weights = (query * self.head_width**-0.5) @ key.transpose(-2, -1)
            weights = F.dropout(weights.softmax(-1), dropout, training=dropout > 0)
            # Under autocast the softmax comes back in float32.
            mixed = weights.to(value.dtype) @ value
        return self.out(mixed.transpose(1, 2).reshape(b, n, -1))


class Block(nn.Module):
    """Attention and FFN, each behind a norm, on residual branches with stochastic depth."""

    def __init__(self, model: TransformerConfig, heads: int, channels: int, drop_path: float,
                 epsilon: float, norm2_replaces_stream: bool):  # fmt: skip
        super().__init__()
        self.drop_path, self.norm2_replaces_stream = drop_path, norm2_replaces_stream
        self.norm1 = nn.LayerNorm(model.width, eps=epsilon)
        self.attention = Attention(
            model.width, heads, model.head_width, model.qkv_bias, model.attention_dropout
        )
        self.norm2 = nn.LayerNorm(model.width, eps=epsilon)
        self.fc1 = nn.Linear(model.width, channels)
        self.fc2 = nn.Linear(channels, model.width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self._drop(self.attention(self.norm1(x)))
        normed = self.norm2(x)
        if self.norm2_replaces_stream:
            x = normed
        return x + self._drop(self.fc2(F.gelu(self.fc1(normed))))

    def _drop(self, branch: torch.Tensor) -> torch.Tensor:
        if not self.training or self.drop_path == 0:
            return branch
        keep = branch.new_empty(branch.shape[0], 1, 1).bernoulli_(1 - self.drop_path)
        return branch * keep.div_(1 - self.drop_path)


class TorchTransformer(nn.Module):
    """ViT or CCT at a topology: images `[batch, 3, size, size]` to logits `[batch, classes]`."""

    def __init__(
        self, model: TransformerConfig, topology: Topology, image_size: int, num_classes: int
    ):
        super().__init__()
        width = model.width
        tokens = model.dimensions(image_size, num_classes).tokens
        twin = {ViTConfig: ViT, CCTConfig: CCT}[type(model)]
        self.is_vit = twin is ViT
        if self.is_vit:
            self.embedding = nn.Conv2d(3, width, model.patch_size, stride=model.patch_size)
            self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        else:
            self.tokenizer = nn.Conv2d(3, width, 3, padding=1, bias=False)
            self.score = nn.Linear(width, 1)
        self.position = nn.Parameter(torch.zeros(1, tokens, width))
        self.blocks = nn.ModuleList(
            Block(model, heads, channels, rate, twin.norm_epsilon, twin.norm2_replaces_stream)
            for heads, channels, rate in zip(
                topology.heads,
                topology.channels,
                drop_path_rates(len(topology.heads), model.drop_path),
                strict=True,
            )
        )
        self.norm = nn.LayerNorm(width, eps=twin.norm_epsilon)
        self.classifier = nn.Linear(width, num_classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if self.is_vit:
            x = self.embedding(images).flatten(2).transpose(1, 2)
            x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], 1)
        else:
            x = F.max_pool2d(F.relu(self.tokenizer(images)), 3, 2, padding=1)
            x = x.flatten(2).transpose(1, 2)
        x = x + self.position
        for block in self.blocks:
            x = block(x)
        if self.is_vit:
            return self.classifier(self.norm(x[:, 0]))
        x = self.norm(x)
        weights = self.score(x).softmax(1)
        return self.classifier((weights.transpose(1, 2) @ x).squeeze(1))

    def use_fused_attention(self, fused: bool) -> None:
        """Chooses how attention is computed, in all blocks."""
        for block in self.blocks:
            block.attention.fused = fused


def from_flax(params: Any) -> dict[str, np.ndarray]:
    """A Flax parameter tree (or gradients, or whatever is shaped like it) as a torch state dict.

    Args:
      params: nested dict of arrays, as `models.init_params` returns.

    Returns:
      Numpy arrays by the names of `TorchTransformer`'s parameters.
    """
    tree = _numpy(params)
    state = {"position": tree["position"]}
    if "cls_token" in tree:
        projection = tree["embedding"]["projection"]
        width = projection["kernel"].shape[1]
        side = math.isqrt(projection["kernel"].shape[0] // 3)
        kernel = projection["kernel"].reshape(side, side, 3, width)
        state["embedding.weight"] = kernel.transpose(3, 2, 0, 1)
        state["embedding.bias"] = projection["bias"]
        state["cls_token"] = tree["cls_token"]
    else:
        state["tokenizer.weight"] = tree["tokenizer"]["kernel"].transpose(3, 2, 0, 1)
        state |= _linear("score", tree["pooling"]["score"])
    state |= _norm("norm", tree["norm"]) | _linear("classifier", tree["classifier"])
    for layer in range(sum(name.startswith("block_") for name in tree)):
        state |= _block(f"blocks.{layer}", tree[f"block_{layer}"])
    return {name: np.ascontiguousarray(value) for name, value in state.items()}


def load_flax(module: TorchTransformer, params: Any) -> None:
    """Copies a Flax parameter tree into a torch module of the same model and topology.

    Raises:
      RuntimeError: names or shapes do not fit.
    """
    state = {name: torch.from_numpy(array.copy()) for name, array in from_flax(params).items()}
    module.load_state_dict(state)


def _numpy(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {name: _numpy(value) for name, value in tree.items()}
    return np.asarray(tree)


def _block(name: str, block: dict[str, Any]) -> dict[str, np.ndarray]:
    attention, mlp = block["attention"], block["mlp"]
    projections = [attention[which] for which in ("query", "key", "value")]
    width = projections[0]["kernel"].shape[0]
    state = {
        # Rows in the order query, key, value; within each by head, then by the head's width.
        f"{name}.attention.qkv.weight": np.concatenate(
            [p["kernel"].reshape(width, -1).T for p in projections]
        ),
        f"{name}.attention.out.weight": attention["out"]["kernel"].reshape(-1, width).T,
        f"{name}.attention.out.bias": attention["out"]["bias"],
    }
    if "bias" in projections[0]:
        state[f"{name}.attention.qkv.bias"] = np.concatenate(
            [p["bias"].reshape(-1) for p in projections]
        )
    for which in ("norm1", "norm2"):
        state |= _norm(f"{name}.{which}", block[which])
    for which in ("fc1", "fc2"):
        state |= _linear(f"{name}.{which}", mlp[which])
    return state


def _linear(name: str, layer: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {f"{name}.weight": layer["kernel"].T, f"{name}.bias": layer["bias"]}


def _norm(name: str, layer: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {f"{name}.weight": layer["scale"], f"{name}.bias": layer["bias"]}
