"""Compact models as files for others: other projects' weights, one file of ours, or StableHLO."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import safetensors.numpy

from barter_jax import models, pretrained
from barter_jax.data import augment
from barter_jax.deploy import model as compact
from barter_jax.deploy.model import CompactModel
from barter_jax.errors import UserError

FORMATS = (*pretrained.FORMATS, "safetensors", "stablehlo")
PLATFORMS = ("cpu", "cuda", "tpu")


def export(model: CompactModel, name: str, output: Path, overwrite: bool = False) -> list[Path]:
    """Writes a model to a file, and what its reader needs besides in a file beside it.

    | format | file | beside it |
    | --- | --- | --- |
    | `timm`, `cct` | weights under that project's names | |
    | `huggingface` | likewise | `config.json` |
    | `safetensors` | this project's own self-describing file | |
    | `stablehlo` | a program with its weights, see `stablehlo` | its name with `.json` added |

    Args:
      model: a loaded model.
      name: one of `FORMATS`.
      output: the file.
      overwrite: replace files that are there.

    Returns:
      The files that were written.

    Raises:
      UserError: an unknown format, the format cannot hold the model, a file is there already, or
        cannot be written.
    """
    if name not in FORMATS:
        raise UserError(f"{name} is no format: it is one of {', '.join(FORMATS)}")
    files = [output]
    if name == "huggingface":
        files.append(output.parent / "config.json")
        _check_not_a_runs(files[-1])
    if name == "stablehlo":
        files.append(output.with_name(output.name + ".json"))
    _check_writable(files, overwrite)
    contents = _contents(model, name)
    for file, content in zip(files, contents, strict=True):
        _write(file, content)
    return files


def _contents(model: CompactModel, name: str) -> list[bytes]:
    """What to write, in the order of the files."""
    if name == "safetensors":
        with tempfile.TemporaryDirectory() as folder:
            compact.save(Path(folder), model.card, model.params)
            return [(Path(folder) / compact.FILE).read_bytes()]
    if name == "stablehlo":
        return [stablehlo(model), _json(description(model))]
    tensors, metadata = pretrained.export(model.card, model.params, name)
    weights = safetensors.numpy.save(tensors, metadata)
    if name == "huggingface":
        return [weights, _json(pretrained.hugging_face_config(model.card))]
    return [weights]


def stablehlo(model: CompactModel) -> bytes:
    """The model as one program for CPUs, NVIDIA GPUs and TPUs, with its weights in it.

    `jax.export.deserialize(data).call(images)` runs it, with JAX and nothing of this project:
    uint8 images `[n, size, size, 3]`, any n, to float32 probabilities `[n, classes]`.

    Raises:
      UserError: flatbuffers, which JAX writes the file with, is not installed.
    """
    if importlib.util.find_spec("flatbuffers") is None:
        raise UserError("the format stablehlo needs flatbuffers: pip install 'barter_jax[export]'")
    from jax import export as jax_export

    card = model.card
    config = models.MODELS[card.model](**card.model_config)
    # The formulations for one backend are of no use to the others.
    config = dataclasses.replace(config, kernels="plain", remat=False)
    module = config.module(card.topology, len(card.labels))
    params = jax.tree.map(np.asarray, model.params)

    def probabilities(image):
        x = augment.normalise(image[None], card.mean, card.std)
        return jax.nn.softmax(module.apply({"params": params}, x, train=False)[0])

    # The model asks for its batch size as a number, so each image is a batch of its own to it.
    program = jax.jit(jax.vmap(probabilities))
    size = card.image_size
    (batch,) = jax_export.symbolic_shape("batch")
    images = jax.ShapeDtypeStruct((batch, size, size, 3), jnp.uint8)
    return bytes(jax_export.export(program, platforms=PLATFORMS)(images).serialize())


def description(model: CompactModel) -> dict[str, Any]:
    """What stands beside a program: its input, its output and where it comes from."""
    card = model.card
    return {
        "input": {"dtype": "uint8", "shape": ["batch", card.image_size, card.image_size, 3]},
        "output": {"dtype": "float32", "shape": ["batch", len(card.labels)]},
        "labels": list(card.labels),
        "load_size": card.load_size or card.image_size,
        "platforms": list(PLATFORMS),
        "model": card.model,
        "topology": card.topology.to_json(),
        "step": card.step,
        "metrics": card.metrics,
        "jax": jax.__version__,
    }


def _json(document: Mapping[str, Any]) -> bytes:
    return (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode()


def _check_not_a_runs(config: Path) -> None:
    """A work directory has a `config.json` too, without which its run cannot go on."""
    if config.is_file() and b'"model_type"' not in config.read_bytes():
        raise UserError(
            f"{config} is not Hugging Face's, which this format would write there: choose an "
            "--output in another folder"
        )


def _check_writable(files: list[Path], overwrite: bool) -> None:
    """Finds out before the work what would stop it after."""
    folder = files[0].parent
    if not folder.is_dir():
        raise UserError(f"--output={files[0]}: there is no folder {folder}: create it first")
    for file in files:
        if file.is_dir():
            raise UserError(f"--output={files[0]}: {file} is a directory: name a file in it")
        if file.exists() and not overwrite:
            raise UserError(f"{file} exists: choose another --output, or say --overwrite")
    if not os.access(folder, os.W_OK):
        raise UserError(f"--output={files[0]}: nothing can be written to {folder}")


def _write(file: Path, content: bytes) -> None:
    """Writes in one piece: a reader sees the old file or the new one."""
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        temporary.write_bytes(content)
        os.replace(temporary, file)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise UserError(f"{file} cannot be written: {error.strerror or error}") from error
