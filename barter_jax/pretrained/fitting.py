"""Makes of pretrained weights the parameters that a config asks for."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from barter_jax import models
from barter_jax.core.topology import UNITS, Topology
from barter_jax.errors import UserError
from barter_jax.models import layers
from barter_jax.pretrained import formats, positions
from barter_jax.pretrained.checks import check_names, check_shapes
from barter_jax.pretrained.formats import Entry
from barter_jax.pretrained.importer import Dense

# The fields that the shape of a parameter depends on.
SIZES = ("layers", "width", "heads", "head_width", "channels", "patch_size", "qkv_bias")


@dataclasses.dataclass(frozen=True)
class Fitted:
    """Parameters to start from.

    Attributes:
      params: nested dict of float32 numpy arrays.
      topology: their heads and channels.
      notes: what is worth telling the user, a sentence each.
    """

    params: dict[str, Any]
    topology: Topology
    notes: tuple[str, ...]


def fit(
    dense: Dense,
    model: models.TransformerConfig,
    image_size: int,
    num_classes: int,
    key: jax.Array,
    labels: Sequence[str] = (),
) -> Fitted:
    """Fits pretrained weights to a model, its images and its classes.

    The classifier is replaced by a fresh one where the classes are others, and position
    embeddings are interpolated where the grid of patches is another. All else must have the
    model's sizes. Weights of other projects are dense; those of this one may be compact, and keep
    their counts.

    Args:
      dense: from `read`.
      model: the dense model's sizes, as in the config.
      image_size: side of the square images in pixels.
      num_classes: classes.
      key: PRNG key of a fresh classifier.
      labels: class names; where both sides know them, they decide whether classes are the same.

    Raises:
      UserError: the architecture is another, or a tensor does not have the size that the model
        asks for: the first one is named as its file names it, with the field that asks.
    """
    _check_architecture(dense, model)
    topology = _topology(dense, model)
    found = formats.flatten(dense.params)
    wanted = formats.parameter_shapes(model, topology, image_size, num_classes)
    _check_sizes(dense, model, found, wanted)

    notes = list(dense.notes)
    if not dense.heads_known:
        notes.append(
            f"the file does not say how many heads it has: taken for {model.heads} of "
            f"{model.head_width}, as config.model.heads and config.model.head_width say"
        )
    # The heads of other formats may have been cut otherwise while nobody knew.
    leaves = {
        path: leaf.reshape(wanted[path]) if _attention(path) else leaf
        for path, leaf in found.items()
    }
    assert leaves.keys() | {"classifier/kernel", "classifier/bias"} == wanted.keys()
    leaves["position"] = _position(dense, leaves["position"], wanted["position"], notes)
    if _other_classes(dense, num_classes, tuple(labels), notes):
        kernel = layers.linear_init(key, wanted["classifier/kernel"])
        leaves["classifier/kernel"] = np.asarray(kernel, np.float32)
        leaves["classifier/bias"] = np.zeros(wanted["classifier/bias"], np.float32)
    return Fitted(formats.unflatten(leaves), topology, tuple(notes))


def _check_architecture(dense: Dense, model: models.TransformerConfig) -> None:
    name = next(name for name, kind in models.MODELS.items() if kind is type(model))
    if dense.model != name:
        raise UserError(
            f"{dense.file} is a {dense.model} in {dense.format}'s format, config.model.name is "
            f"{name}: start from weights of a {name}"
        )
    if dense.naming is not None and model.qkv_bias and not dense.naming[0].qkv_bias:
        raise UserError(
            f"{dense.file}: a model in {dense.format}'s format has no biases of query, key and "
            "value: set config.model.qkv_bias=False"
        )
    have = dense.model_config
    if (
        dense.naming is not None
        and dense.heads_known
        and (have.heads, have.head_width) != (model.heads, model.head_width)
        and have.heads * have.head_width == model.heads * model.head_width
    ):
        raise UserError(
            f"{dense.file} has {have.heads} heads of {have.head_width}, not {model.heads} of "
            f"{model.head_width}: set config.model.heads={have.heads} and "
            f"config.model.head_width={have.head_width}"
        )


def _topology(dense: Dense, model: models.TransformerConfig) -> Topology:
    """The counts that the weights should have: the model's, but a compact file keeps its own."""
    most = {unit: getattr(model, unit) for unit in UNITS}
    if dense.naming is not None:
        return Topology(**{unit: (most[unit],) * model.layers for unit in UNITS})
    for unit in UNITS:
        for layer, n in enumerate(dense.topology.of(unit)):
            if n > most[unit]:
                raise UserError(
                    f"{dense.file}: layer {layer} has {n} {unit}, more than config.model.{unit}="
                    f"{most[unit]}: raise it"
                )
    # A layer too few is told later; its counts do not matter.
    counts = {unit: dense.topology.of(unit) + (1,) * model.layers for unit in UNITS}
    return Topology(**{unit: counts[unit][: model.layers] for unit in UNITS})


def _check_sizes(dense: Dense, model, found, wanted) -> None:
    """All but what is adapted: the number of positions and of classes."""
    kept = {"position": (1, found["position"].shape[1], model.width)}
    if dense.num_classes:
        kept |= {
            "classifier/kernel": (model.width, dense.num_classes),
            "classifier/bias": (dense.num_classes,),
        }
    have = {
        entry.theirs: entry.layout.shape([found[path].shape for path in entry.ours])
        for entry in dense.entries
    }
    entries = _entries(dense, model, wanted)
    check_shapes(dense.file, entries, have, wanted | kept, lambda path: _by(dense, model, path))
    # Sizes agree by now: what is left over is a layer, or a bias.
    more = _by(dense, model, "block_{layer}/attention/")
    check_names(dense.file, entries, have, (), f"not asked for{more}")


def _entries(dense: Dense, model, wanted) -> list[Entry]:
    """The names that a file of its format would have for the model."""
    if dense.naming is None:
        return formats.own_entries(wanted)
    known, prefix = dense.naming
    return known.entries(prefix, model.layers, model.qkv_bias, dense.num_classes > 0)


def _by(dense: Dense, model: models.TransformerConfig, path: str) -> str:
    """The config fields that ask for the shape of a parameter, and what they would have to be."""
    have = dense.model_config
    differing = [f for f in SIZES if getattr(have, f, None) != getattr(model, f, None)]
    if dense.naming is None:
        differing = [f for f in differing if f not in UNITS]  # A layer has what it has.
    # A number of heads that nobody knows can be whatever the config likes.
    if not dense.heads_known and have.heads * have.head_width == model.heads * model.head_width:
        differing = [f for f in differing if f not in ("heads", "head_width")]
    asking = [f for f in differing if f in _fields(path)]
    if not asking:
        return ""
    by, have_been = (
        ", ".join(f"config.model.{f}={getattr(sizes, f)}" for f in fields)
        for sizes, fields in ((model, asking), (have, differing))
    )
    return f" by {by}; the file is for {have_been}"


def _fields(path: str) -> tuple[str, ...]:
    """The fields that a parameter's shape, or its being there at all, depends on."""
    if path.startswith("embedding/"):
        return ("width", "patch_size")
    if "/attention/" in path:
        return ("layers", "width", "heads", "head_width", "qkv_bias")
    if "/mlp/" in path:
        return ("layers", "width", "channels")
    return ("layers", "width") if path.startswith("block_") else ("width",)


def _attention(path: str) -> bool:
    return "/attention/" in path and not path.endswith("/out/bias")


def _position(dense: Dense, position: np.ndarray, wanted: tuple[int, ...], notes: list[str]):
    """The position embeddings, interpolated where the grid is another."""
    class_token = dense.model == "vit"
    old, new = (math.isqrt(n - class_token) for n in (position.shape[1], wanted[1]))
    if old == new:
        return position
    notes.append(f"position embeddings interpolated from a grid of {old}x{old} to {new}x{new}")
    return positions.resize(position, new, class_token)


def _other_classes(
    dense: Dense, num_classes: int, labels: tuple[str, ...], notes: list[str]
) -> bool:
    """Whether the classifier is of no use, which is noted."""
    if not dense.num_classes:
        notes.append(f"the file has no classifier: a fresh one for {num_classes} classes")
    elif dense.num_classes != num_classes:
        notes.append(
            f"the file's classifier is for {dense.num_classes} classes: a fresh one for "
            f"{num_classes}"
        )
    elif dense.labels and labels and dense.labels != labels:
        notes.append("the file's classifier is for other class names: a fresh one")
    else:
        return False
    return True
