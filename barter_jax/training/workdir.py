"""A work directory belongs to one config, and to one process at a time."""

from __future__ import annotations

import contextlib
import fcntl
import importlib.metadata
import json
import platform
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ml_collections import config_dict

from barter_jax import config as config_lib
from barter_jax.errors import UserError
from barter_jax.training.writers import write_json

VERSIONED = ("barter_jax", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "numpy")
OWNED = ("config.json", "metrics.jsonl", "topology.jsonl", "summary.json", "checkpoints", "model",
         "tensorboard")  # fmt: skip


def check(directory: Path, config: config_dict.ConfigDict, overwrite: bool) -> None:
    """Raises what `claimed` would of the directory's content; changes nothing.

    Lets a mistake be told before data is loaded.
    """
    if directory.exists() and not directory.is_dir():
        raise UserError(f"--workdir={directory} is a file: give a directory")
    if overwrite:
        return
    file = directory / "config.json"
    if not file.exists():
        left = [name for name in OWNED if (directory / name).exists()]
        if left:
            raise UserError(
                f"{directory} holds {left[0]} but no config.json: give another --workdir, or "
                "--overwrite to start afresh there"
            )
        return
    try:
        theirs = dict(json.loads(file.read_text())["config"])
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise UserError(
            f"{file} cannot be read: give another --workdir, or --overwrite to start afresh"
        ) from error
    differing = differences(theirs, as_json(config))
    if differing:
        raise UserError(
            f"{directory} holds a run of another config: {'; '.join(differing)}. Give another "
            "--workdir, or --overwrite to start afresh there"
        )


@contextlib.contextmanager
def claimed(
    directory: Path,
    config: config_dict.ConfigDict,
    overwrite: bool,
    about: Mapping[str, Any] | None = None,
) -> Iterator[None]:
    """Claims a work directory for a config while the context lasts.

    Writes `config.json` into a new one. One that holds a run of the same config is taken as it
    is, to be resumed.

    Args:
      directory: created if absent.
      config: the validated config.
      overwrite: removes another run's files first.
      about: what else `config.json` is to say.

    Raises:
      UserError: another process is using it, it holds another config, or it holds files that
        are not a run's; nothing has been changed then.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock = (directory / ".lock").open("w")
    except OSError as error:
        raise UserError(f"--workdir={directory} cannot be written: {error.strerror}") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise UserError(
                f"another process is training in {directory}: wait for it or give another --workdir"
            ) from error
        check(directory, config, overwrite)
        if overwrite:
            for name in OWNED:
                path = directory / name
                shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        document = {"config": as_json(config), "versions": versions(), **(about or {})}
        write_json(directory / "config.json", document)
        yield


def differences(theirs: dict[str, Any], mine: dict[str, Any]) -> list[str]:
    """The fields in which two configs differ, those aside that a resumed run may change."""
    flat_theirs, flat_mine = _flat(theirs), _flat(mine)
    keys = list(flat_mine) + [key for key in flat_theirs if key not in flat_mine]
    return [
        f"{key} is {flat_theirs.get(key)!r} there and {flat_mine.get(key)!r} here"
        for key in keys
        if flat_theirs.get(key) != flat_mine.get(key)
        and not any(key == r or key.startswith(r + ".") for r in config_lib.RESUMABLE)
    ]


def _flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat = {}
    for key, value in tree.items():
        flat |= (
            _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
        )
    return flat


def as_json(config: config_dict.ConfigDict) -> dict[str, Any]:
    """The config as it reads back from JSON."""
    return json.loads(json.dumps(config.to_dict()))


def versions() -> dict[str, str]:
    """Versions of Python and of the libraries that results depend on."""
    found = {"python": platform.python_version()}
    for name in VERSIONED:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found
