"""The tensors of a safetensors file, and what is said where a file is another kind of file."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import safetensors

from barter_jax.deploy.model import FILE
from barter_jax.errors import UserError

# How PyTorch's files begin: a zip since version 1.6, a pickle before it.
PICKLES = (b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
FLOATS = ("F64", "F32", "F16", "BF16")


def locate(path: str | os.PathLike[str]) -> Path:
    """The file that a path means: itself, or that of a directory of models.

    Raises:
      UserError: there is none.
    """
    path = Path(path)
    for candidate in (path, path / FILE, path / "model" / FILE):
        if candidate.is_file():
            return candidate
    if not path.exists():
        raise UserError(f"{path} does not exist: give a safetensors file or a directory with one")
    if (path / f"{FILE}.index.json").is_file():
        raise UserError(
            f"{path} holds a model in several files: save it as one {FILE} with "
            "safetensors.torch.save_file"
        )
    pickles = sorted(p for p in path.iterdir() if p.suffix in (".bin", ".pth", ".pt"))
    if pickles:
        raise UserError(_pickle_message(pickles[0]))
    if (path / "checkpoints").is_dir():
        raise UserError(
            f"{path} holds a run that has no model yet: let it train to its first evaluation"
        )
    raise UserError(f"{path} holds no {FILE}: name the weights' own file")


def load(file: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Reads all tensors as float32, and the file's metadata.

    Raises:
      UserError: it cannot be read, is no safetensors file or damaged, or a tensor holds no floats.
    """
    tensors = {}
    try:
        with safetensors.safe_open(file, framework="numpy") as handle:
            metadata = handle.metadata() or {}
            for name in handle.keys():
                kind = handle.get_slice(name).get_dtype()
                if kind not in FLOATS:
                    raise UserError(f"{file}: {name} holds {kind}, not floating-point numbers")
                tensors[name] = np.asarray(handle.get_tensor(name), np.float32)
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror or error}") from error
    except safetensors.SafetensorError as error:
        # Only now: the length that a good file begins with can look like a pickle's first bytes.
        with file.open("rb") as handle:
            if handle.read(8).startswith(PICKLES) and file.suffix != ".npz":
                raise UserError(_pickle_message(file)) from error
        raise UserError(
            f"{file} is not a safetensors file, or damaged ({error}); a PyTorch file is converted "
            "with safetensors.torch.save_file"
        ) from error
    return tensors, metadata


def parse(text: str, name: str) -> dict[str, Any]:
    """A JSON object.

    Raises:
      UserError: the text is none; `name` says whose text it is.
    """
    try:
        found = json.loads(text)
    except ValueError as error:
        raise UserError(f"{name} is not JSON ({error}): mend it, or move it away") from error
    if not isinstance(found, dict):
        raise UserError(f"{name} is not a JSON object: mend it, or move it away")
    return found


def _pickle_message(file: Path) -> str:
    # Loading a pickle runs whatever code is in it.
    return (
        f"{file} is a PyTorch pickle, which is not read here: convert it where PyTorch is "
        f"installed, by safetensors.torch.save_file(torch.load({file.name!r}, weights_only=True), "
        f"{FILE!r}), or of what it holds under 'model' or 'state_dict'"
    )
