"""Which directories below the given ones are work directories."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from barter_jax.errors import UserError
from barter_jax.training.workdir import OWNED

# Written by nothing but a run; a config.json, say, is in many a directory.
TELLING = ("metrics.jsonl", "topology.jsonl")


def is_run(directory: Path) -> bool:
    """Whether a directory is a work directory, a damaged one included."""
    if any((directory / name).is_file() for name in TELLING):
        return True
    file = directory / "config.json"
    if not file.is_file():
        return False
    try:
        document = json.loads(file.read_text())
        return isinstance(document, dict) and {"config", "versions"} <= document.keys()
    except (OSError, ValueError):
        # Cut off or unreadable: a run's if something else of a run lies beside it.
        return any((directory / name).exists() for name in OWNED if name != file.name)


def find(paths: Sequence[str]) -> tuple[list[Path], list[tuple[Path, Path]]]:
    """The work directories that are given, or lie below what is given.

    Args:
      paths: work directories, or directories to search. Hidden directories and what lies inside a
        work directory are not searched.

    Returns:
      The work directories, in the order given and by name below that, each once; and pairs
      `(again, first)` of names of one directory that was come to twice.

    Raises:
      UserError: a path does not exist, is a file, or holds no run.
    """
    found: dict[Path, Path] = {}
    again: list[tuple[Path, Path]] = []
    for path in map(Path, paths):
        if not path.exists():
            raise UserError(f"{path} does not exist: give a work directory, or one that holds some")
        if not path.is_dir():
            raise UserError(f"{path} is a file: give the work directory that it lies in")
        directories = list(_below(path))
        if not directories:
            raise UserError(
                f"{path} holds no run (no config.json, metrics.jsonl or topology.jsonl of one): "
                "give a work directory, or one that holds some"
            )
        for directory in directories:
            real = directory.resolve()
            if real in found:
                again.append((directory, found[real]))
            else:
                found[real] = directory
    return list(found.values()), again


def _below(directory: Path) -> Iterator[Path]:
    if is_run(directory):
        yield directory
        return
    try:
        children = sorted(child for child in directory.iterdir() if child.is_dir())
    except OSError:
        return  # what may not be read holds nothing that could be reported
    for child in children:
        # A link may lead to a run, but not back to where it came from.
        if not child.name.startswith(".") and (is_run(child) or not child.is_symlink()):
            yield from _below(child)
