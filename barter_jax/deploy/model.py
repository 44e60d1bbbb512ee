"""The compact model on disk: one self-describing file, loadable by its path alone.

`model.safetensors` holds the parameters, and in its metadata a JSON document with everything else:
architecture, topology, labels, image size, normalisation and where the model comes from.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import safetensors
import safetensors.numpy

from barter_jax import models
from barter_jax.core.topology import Topology
from barter_jax.core.units import path_names
from barter_jax.data import augment
from barter_jax.errors import RunError, UserError

PyTree = Any
FORMAT = 1
FILE = "model.safetensors"
# Larger requests run in pieces, so that memory stays bounded and few shapes are compiled.
CHUNK = 256


@dataclasses.dataclass(frozen=True)
class Card:
    """What a compact model knows of itself.

    Attributes:
      model: name of the architecture, a key of `models.MODELS`.
      model_config: its fields.
      topology: heads and channels of each layer.
      labels: class names, in the order of the outputs.
      image_size: side of the square input in pixels.
      mean: normalisation of images scaled to [0, 1], per channel.
      std: likewise.
      step: optimizer steps that trained it.
      metrics: validation metrics at that step.
      load_size: side of the square that an image file is scaled to before its centre is cut out;
        None for `image_size`.
      parameters: without those that a mask has set to zero; None for all.
      dataset: `ImageDataset.identity` of what it was trained on; older models have none.
    """

    model: str
    model_config: dict[str, Any]
    topology: Topology
    labels: tuple[str, ...]
    image_size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    step: int
    metrics: dict[str, float]
    load_size: int | None = None
    parameters: int | None = None
    dataset: dict[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "topology": self.topology.to_json(), "format": FORMAT}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Card:
        fields = {key: value for key, value in data.items() if key != "format"}
        return cls(
            **{
                **fields,
                "topology": Topology.from_json(data["topology"]),
                **{name: tuple(data[name]) for name in ("labels", "mean", "std")},
            }
        )


class CompactModel:
    """A trained compact model.

    Call it with uint8 images `[n, size, size, 3]` (or one, `[size, size, 3]`) to get float32
    probabilities `[n, classes]` (or `[classes]`).

    Attributes:
      card: what the model knows of itself.
      params: its parameters, a nested dict of arrays, unpadded.
    """

    def __init__(self, card: Card, params: PyTree):
        self.card = card
        self.params = params
        module = _model_config(card).module(card.topology, len(card.labels))

        def forward(params, images):
            x = augment.normalise(images, card.mean, card.std)
            return module.apply({"params": params}, x, train=False)

        self._forward = jax.jit(forward)

    @property
    def labels(self) -> tuple[str, ...]:
        return self.card.labels

    @property
    def topology(self) -> Topology:
        return self.card.topology

    @property
    def image_size(self) -> int:
        return self.card.image_size

    def __call__(self, images: Any) -> np.ndarray:
        """Probabilities; see the class.

        Raises:
          UserError: the images have another dtype or shape.
        """
        return np.asarray(jax.nn.softmax(self.logits(images), axis=-1))

    def logits(self, images: Any) -> np.ndarray:
        """Float32 logits of the same shape as the probabilities."""
        images = np.asarray(images)
        single = images.ndim == 3
        batch = images[None] if single else images
        size = self.image_size
        if batch.ndim != 4 or batch.shape[1:] != (size, size, 3):
            raise UserError(
                f"images have shape {list(images.shape)}: this model takes [n, {size}, {size}, 3] "
                f"or [{size}, {size}, 3]"
            )
        if batch.dtype != np.uint8:
            raise UserError(f"images have dtype {batch.dtype}: this model takes uint8 in 0..255")
        pieces = [self._piece(batch[i : i + CHUNK]) for i in range(0, len(batch), CHUNK)]
        empty = np.zeros((0, len(self.labels)), np.float32)
        logits = np.concatenate([empty, *pieces])
        return logits[0] if single else logits

    def _piece(self, batch: np.ndarray) -> np.ndarray:
        # Padded to a power of two: a handful of shapes serves every request.
        size = 1 << (len(batch) - 1).bit_length()
        padded = np.zeros((size, *batch.shape[1:]), np.uint8)
        padded[: len(batch)] = batch
        return np.asarray(self._forward(self.params, padded))[: len(batch)]

    def __repr__(self) -> str:
        n = sum(int(np.size(leaf)) for leaf in jax.tree.leaves(self.params))
        return (
            f"CompactModel({self.card.model}, {n:,} parameters, {len(self.labels)} classes, "
            f"{self.image_size}x{self.image_size}, heads {list(self.topology.heads)}, "
            f"channels {list(self.topology.channels)})"
        )


def save(directory: Path, card: Card, params: PyTree) -> None:
    """Writes a compact model in one piece: a reader sees the old one or the new one.

    Args:
      directory: created if absent.
      card: what the model knows of itself.
      params: unpadded parameters.
    """
    directory.mkdir(parents=True, exist_ok=True)
    flat = {
        ".".join(path_names(path)): np.ascontiguousarray(leaf)
        for path, leaf in jax.tree_util.tree_flatten_with_path(params)[0]
    }
    data = safetensors.numpy.save(flat, {"barter_jax": json.dumps(card.to_json())})
    temporary = directory / f".{FILE}.{os.getpid()}"
    temporary.write_bytes(data)
    os.replace(temporary, directory / FILE)


def load(path: str | os.PathLike[str]) -> CompactModel:
    """Loads a compact model.

    Args:
      path: a work directory, its `model` directory, or the file itself.

    Raises:
      UserError: there is no model, or it is not one of this project's.
      RunError: the file is damaged.
    """
    file = _find(Path(path))
    card = read_card(file)
    tensors = safetensors.numpy.load_file(file)
    config = _model_config(card)
    template = jax.eval_shape(
        lambda key: models.init_params(
            config, card.topology, card.image_size, len(card.labels), key
        ),
        jax.random.key(0),
    )
    flat, structure = jax.tree_util.tree_flatten_with_path(template)
    leaves = []
    for key_path, leaf in flat:
        name = ".".join(path_names(key_path))
        if name not in tensors or tensors[name].shape != leaf.shape:
            found = list(tensors[name].shape) if name in tensors else "missing"
            raise RunError(f"{file}: {name} is {found}, expected {list(leaf.shape)}")
        leaves.append(jnp.asarray(tensors[name]))
    return CompactModel(card, jax.tree.unflatten(structure, leaves))


def read_card(path: str | os.PathLike[str]) -> Card:
    """Reads what a model knows of itself, without its parameters."""
    file = _find(Path(path))
    try:
        with safetensors.safe_open(file, framework="numpy") as handle:
            metadata = handle.metadata() or {}
    except safetensors.SafetensorError as error:
        if file.suffix != Path(FILE).suffix:
            raise UserError(
                f"{file} is no model ({error}): give a work directory, a model directory or the "
                f"{FILE} in it"
            ) from error
        raise RunError(f"{file} is damaged: {error}") from error
    if "barter_jax" not in metadata:
        raise UserError(f"{file} is not a barter_jax model: it says nothing of its architecture")
    try:
        document = json.loads(metadata["barter_jax"])
        if document["format"] != FORMAT:
            raise UserError(f"{file} has format {document['format']}; this version reads {FORMAT}")
        card = Card.from_json(document)
        if card.model in models.MODELS:
            _model_config(card)
    except UserError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunError(
            f"{file} is damaged: its description cannot be read ({type(error).__name__}: {error})"
        ) from error
    return card


def _find(path: Path) -> Path:
    candidates: Sequence[Path] = (path, path / FILE, path / "model" / FILE)
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    if not path.exists():
        raise UserError(f"{path} does not exist: give a work directory, model directory or file")
    raise UserError(f"{path} holds no compact model ({FILE}): has its run evaluated once?")


def _model_config(card: Card) -> models.TransformerConfig:
    if card.model not in models.MODELS:
        raise UserError(
            f"the model is a {card.model}: this version knows {', '.join(models.MODELS)}"
        )
    return models.MODELS[card.model](**card.model_config)
