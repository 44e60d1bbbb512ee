"""Reads a file of weights and tells from names and shapes what model it is."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from barter_jax import models
from barter_jax.core.topology import Topology
from barter_jax.deploy import model as compact
from barter_jax.errors import UserError
from barter_jax.pretrained import formats, tensors
from barter_jax.pretrained.checks import check_names, check_present, check_shapes
from barter_jax.pretrained.formats import EPSILON, EXPORTED, HEADS, OWN, Entry, Format
from barter_jax.pretrained.layouts import Shape

# Of the public ViT, DeiT and CCT models, where nothing says otherwise.
USUAL_HEAD_WIDTH = 64


@dataclasses.dataclass(frozen=True)
class Dense:
    """Weights that were read, as parameters of one of this project's models.

    Attributes:
      file: where they come from.
      naming: the format of the file and its prefix; None for this project's own.
      model: the architecture, a key of `models.MODELS`.
      model_config: its sizes, read off the shapes; its other fields have their defaults.
      topology: heads and channels of each layer: all alike, but in a model of this project's.
      image_size: side in pixels of the square images that its positions are for.
      num_classes: classes; 0 where the file has no classifier.
      labels: class names, where they are known.
      params: nested dict of float32 numpy arrays, without `classifier` where the file has none.
      heads_known: whether the file says how many heads there are. The shapes do not.
      notes: what is worth telling the user, a sentence each.
      dataset: `ImageDataset.identity` of what they were trained on, where it is known.
    """

    file: Path
    naming: tuple[Format, str] | None
    model: str
    model_config: models.TransformerConfig
    topology: Topology
    image_size: int
    num_classes: int
    labels: tuple[str, ...]
    params: dict[str, Any]
    heads_known: bool
    notes: tuple[str, ...]
    dataset: dict[str, Any] | None = None

    @property
    def format(self) -> str:
        """`timm`, `huggingface`, `cct` or `barter_jax`."""
        return OWN if self.naming is None else self.naming[0].name

    @property
    def entries(self) -> list[Entry]:
        """The file's names for the parameters."""
        if self.naming is None:
            return formats.own_entries(formats.flatten(self.params))
        known, prefix = self.naming
        config = self.model_config
        return known.entries(prefix, config.layers, config.qkv_bias, self.num_classes > 0)


def read(path: str | os.PathLike[str], head_width: int | None = None) -> Dense:
    """Reads pretrained weights.

    Shapes do not tell into how many heads the attention is cut. A Hugging Face `config.json`
    beside the file, this project's own files and files that it exported say it; for others it is
    `head_width`, by default 64.

    Args:
      path: a safetensors file in the names of timm (ViT, DeiT), Hugging Face (ViT, DeiT) or
        SHI-Labs (CCT), a directory with a `model.safetensors`, or a work directory or model of
        this project.
      head_width: width of a head where the file does not say it.

    Raises:
      UserError: the file is of another kind, or a tensor is missing, unexpected or of another
        shape than the rest of the file makes it; the first one is named.
      RunError: a model of this project that is damaged.
    """
    file = tensors.locate(path)
    found, metadata = tensors.load(file)
    if OWN in metadata:
        return _own(file)
    recognised = formats.recognise(found)
    if recognised is None:
        some = ", ".join(sorted(found)[:3]) or "none"
        known = ", ".join(f.name for f in formats.FORMATS.values())
        raise UserError(
            f"{file} holds no model in a known format ({known}, {OWN}): its tensors are called "
            f"{some} and so on"
        )
    return _foreign(file, found, metadata, *recognised, head_width)


def _own(file: Path) -> Dense:
    loaded = compact.load(file)
    card = loaded.card
    leaves = {k: np.asarray(v) for k, v in formats.flatten(loaded.params).items()}
    return Dense(
        file=file,
        naming=None,
        model=card.model,
        model_config=models.MODELS[card.model](**card.model_config),
        topology=card.topology,
        image_size=card.image_size,
        num_classes=len(card.labels),
        labels=card.labels,
        params=formats.unflatten(leaves),
        heads_known=True,
        notes=(),
        dataset=card.dataset,
    )


def _foreign(
    file: Path,
    found: Mapping[str, np.ndarray],
    metadata: Mapping[str, str],
    known: Format,
    prefix: str,
    head_width: int | None,
) -> Dense:
    shapes = {name: array.shape for name, array in found.items()}
    layers = max(known.layers(prefix, shapes), 1)
    everything = known.entries(prefix, layers)
    qkv_bias, classifier = (
        any(entry.theirs in shapes for entry in everything if where(entry.ours[0]))
        for where in (formats.is_qkv_bias, formats.is_classifier)
    )
    entries = known.entries(prefix, layers, qkv_bias, classifier)
    ignored = [name.format(prefix=prefix) for name in known.ignored]
    check_names(file, entries, shapes, ignored, f"a {known.model} of this project has no such part")
    check_present(file, entries, shapes, f"which a {known.model} in {known.name}'s format has")

    sizes = _Sizes(file, entries, shapes, known)
    said = _said(file, known, metadata)
    heads, head_width = _heads(file, sizes.attention_width, said, head_width)
    config = models.MODELS[known.model](
        layers=layers,
        heads=heads,
        head_width=head_width,
        qkv_bias=qkv_bias,
        **sizes.model_fields(),
    )
    topology = Topology((heads,) * layers, (config.channels,) * layers)
    num_classes = sizes.num_classes if classifier else 0
    # Any number will do for a classifier that no entry names.
    expected = formats.parameter_shapes(config, topology, sizes.image_size, num_classes or 1)
    check_shapes(file, entries, shapes, expected, lambda _: " as the rest of the file has it")

    leaves: dict[str, np.ndarray] = {}
    for entry in entries:
        ours = entry.layout.read(found[entry.theirs], [expected[path] for path in entry.ours])
        leaves |= zip(entry.ours, map(np.ascontiguousarray, ours), strict=True)
    return Dense(
        file=file,
        naming=(known, prefix),
        model=known.model,
        model_config=config,
        topology=topology,
        image_size=sizes.image_size,
        num_classes=num_classes,
        labels=_labels(said, num_classes),
        params=formats.unflatten(leaves),
        heads_known=HEADS in said,
        notes=_notes(known, config, said, set(shapes) & set(ignored)),
    )


class _Sizes:
    """The sizes that a few tensors tell; that the others agree is checked afterwards."""

    def __init__(
        self, file: Path, entries: list[Entry], shapes: Mapping[str, Shape], known: Format
    ):
        self._file, self._shapes, self._known = file, shapes, known
        self._by_path = {path: entry for entry in entries for path in entry.ours}

    def _shape(self, path: str, ndim: int) -> Shape:
        name = self._by_path[path].theirs
        shape = self._shapes[name]
        if len(shape) != ndim or 0 in shape:
            raise UserError(
                f"{self._file}: {name} has shape {list(shape)}, expected {ndim} axes, none empty"
            )
        return shape

    @property
    def attention_width(self) -> int:
        path = "block_0/attention/query/kernel"
        return self._shape(path, 2)[0] // len(self._by_path[path].ours)

    @property
    def num_classes(self) -> int:
        return self._shape("classifier/kernel", 2)[0]

    @property
    def patch_size(self) -> int:
        return self._shape("embedding/projection/kernel", 4)[-1]

    @property
    def image_size(self) -> int:
        tokens = self._shape("position", 3)[1]
        class_tokens = int("cls_token" in self._by_path)
        side = math.isqrt(tokens - class_tokens)
        if side < 1 or side**2 != tokens - class_tokens:
            name = self._by_path["position"].theirs
            kind = "a class token and a square grid" if class_tokens else "a square grid"
            raise UserError(
                f"{self._file}: {name} has {tokens} positions, which is not that of {kind}"
            )
        # CCT's tokenizer halves the side.
        return side * (self.patch_size if class_tokens else 2)

    def model_fields(self) -> dict[str, int]:
        fields = {
            "width": self._shape("position", 3)[-1],
            "channels": self._shape("block_0/mlp/fc1/kernel", 2)[0],
        }
        return fields | ({"patch_size": self.patch_size} if self._known.model == "vit" else {})


def _said(file: Path, known: Format, metadata: Mapping[str, str]) -> dict[str, Any]:
    """What stands beside the tensors, in the words of Hugging Face's `config.json`.

    It stands in that file, or in the metadata of what this project has exported.
    """
    if EXPORTED in metadata:
        said, where = tensors.parse(metadata[EXPORTED], f"{file}: its description"), file
    elif known.name == "huggingface" and (file.parent / "config.json").is_file():
        where = file.parent / "config.json"
        said = tensors.parse(where.read_text(), str(where))
    else:
        return {}
    if HEADS in said and not (type(said[HEADS]) is int and said[HEADS] > 0):
        raise UserError(f"{where}: {HEADS} must be a positive integer, got {said[HEADS]!r}")
    if not isinstance(said.get(EPSILON, 0.0), int | float):
        raise UserError(f"{where}: {EPSILON} must be a number, got {said[EPSILON]!r}")
    if said.get("hidden_act", "gelu") != "gelu":
        raise UserError(
            f"{where} has hidden_act={said['hidden_act']}: the models of this project have the "
            "exact gelu"
        )
    return said


def _heads(
    file: Path, width: int, said: Mapping[str, Any], head_width: int | None
) -> tuple[int, int]:
    """Heads and their width for an attention of so many columns."""
    if HEADS in said:
        if width % said[HEADS]:
            raise UserError(
                f"{file}: {said[HEADS]} heads, as it is described, do not divide an attention "
                f"{width} wide"
            )
        return said[HEADS], width // said[HEADS]
    chosen = USUAL_HEAD_WIDTH if head_width is None else head_width
    if chosen < 1 or width % chosen:
        raise UserError(
            f"{file}: its attention is {width} wide, which heads of {chosen} do not divide: "
            "set config.model.head_width to that of the pretrained model"
        )
    return width // chosen, chosen


def _labels(said: Mapping[str, Any], num_classes: int) -> tuple[str, ...]:
    """Class names, where they are told and are not mere numbers."""
    told = said.get("id2label")
    if not isinstance(told, dict) or set(told) != {str(i) for i in range(num_classes)}:
        return ()
    labels = tuple(str(told[str(i)]) for i in range(num_classes))
    return () if labels == tuple(f"LABEL_{i}" for i in range(num_classes)) else labels


def _notes(
    known: Format, config: models.TransformerConfig, said: Mapping[str, Any], ignored: set[str]
) -> tuple[str, ...]:
    notes = []
    theirs, ours = said.get(EPSILON, known.epsilon), formats.epsilon(config)
    if theirs != ours:
        notes.append(
            f"its LayerNorms add {theirs:g} to the variance, ours {ours:g}: logits differ a little "
            "from those of the original"
        )
    if ignored:
        notes.append(f"not used: {', '.join(sorted(ignored))}")
    return tuple(notes)
