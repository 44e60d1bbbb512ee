"""Writes a model under another project's names, where its architecture is one of theirs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from barter_jax import models
from barter_jax.core.topology import Topology
from barter_jax.deploy.model import Card
from barter_jax.errors import UserError
from barter_jax.pretrained import formats
from barter_jax.pretrained.formats import EPSILON, EXPORTED, FORMATS, HEADS


def export(card: Card, params: Any, name: str) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """A model's tensors under another project's names, and a safetensors file's metadata for them.

    Args:
      card: what the model knows of itself.
      params: its parameters, unpadded.
      name: a key of `FORMATS`.

    Returns:
      float32 tensors by their name, the same bits; and metadata with which
      `pretrained.read` knows the heads and the labels again.

    Raises:
      UserError: the format has no such model, a layer is not as theirs are (the first such layer
        is named), or there is no such format.
    """
    if name not in FORMATS:
        raise UserError(f"{name} is no format of weights: it is one of {', '.join(FORMATS)}")
    known, config = FORMATS[name], models.MODELS[card.model](**card.model_config)
    if known.model != card.model:
        raise UserError(
            f"the model is a {card.model}, and the format {name} is for a {known.model}"
        )
    if config.qkv_bias and not known.qkv_bias:
        raise UserError(
            f"the model has biases of query, key and value, and the format {name} has none"
        )
    _check_uniform(name, config, card.topology)
    leaves = {path: np.asarray(leaf) for path, leaf in formats.flatten(params).items()}
    entries = known.entries(known.prefixes[0], len(card.topology.heads), config.qkv_bias)
    tensors = {
        e.theirs: np.ascontiguousarray(e.layout.write([leaves[path] for path in e.ours]))
        for e in entries
    }
    described = {
        HEADS: card.topology.heads[0],
        EPSILON: formats.epsilon(config),
        "id2label": _id2label(card),
        "image_size": card.image_size,
        "image_mean": list(card.mean),
        "image_std": list(card.std),
    }
    # Hugging Face's loader wants to be told of the framework.
    return tensors, {"format": "pt", EXPORTED: json.dumps(described)}


def _check_uniform(name: str, config: models.TransformerConfig, topology: Topology) -> None:
    """Their attention is as wide as the model, and their layers have equally many channels."""
    dense = Topology((config.heads,) * config.layers, (config.channels,) * config.layers)
    what = "" if topology == dense else "the model is not dense: "
    instead = "the formats safetensors and stablehlo take it as it is"
    for layer, (heads, channels) in enumerate(zip(topology.heads, topology.channels, strict=True)):
        if heads * config.head_width != config.width:
            raise UserError(
                f"{what}layer {layer} has {heads} heads of {config.head_width}, "
                f"together {heads * config.head_width} wide, and in the format {name} they are as "
                f"wide as the model, {config.width}: {instead}"
            )
        if channels != topology.channels[0]:
            raise UserError(
                f"{what}layer {layer} has {channels} channels and layer 0 has "
                f"{topology.channels[0]}, and in the format {name} all layers have equally many: "
                f"{instead}"
            )


def hugging_face_config(card: Card) -> Mapping[str, Any]:
    """The `config.json` with which Hugging Face loads what was exported in its format."""
    config = models.MODELS[card.model](**card.model_config)
    labels = _id2label(card)
    return {
        "architectures": ["ViTForImageClassification"],
        "model_type": "vit",
        "hidden_size": config.width,
        "num_hidden_layers": len(card.topology.heads),
        HEADS: card.topology.heads[0],
        "intermediate_size": card.topology.channels[0],
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        EPSILON: formats.epsilon(config),
        "image_size": card.image_size,
        "patch_size": config.patch_size,
        "num_channels": 3,
        "qkv_bias": config.qkv_bias,
        "id2label": labels,
        "label2id": {label: int(i) for i, label in labels.items()},
    }


def _id2label(card: Card) -> dict[str, str]:
    return {str(i): label for i, label in enumerate(card.labels)}
