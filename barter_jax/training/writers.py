"""What a run writes besides checkpoints: JSON lines, TensorBoard events, JSON documents."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


class JsonLines:
    """A file of one JSON object a line, each written whole at once.

    Args:
      path: appended to if it exists.
      keep: which rows of an existing file stay. The others are dropped first (a resumed run
        writes them again), and so is a last line that was cut off.
      enabled: off neither reads nor writes.
    """

    def __init__(self, path: Path, keep: Callable[[dict[str, Any]], bool], enabled: bool = True):
        self.path = path
        self._file = None
        if not enabled:
            return
        if path.exists():
            kept = [line for line in path.read_text().splitlines() if _stays(line, keep)]
            write_atomically(path, "".join(line + "\n" for line in kept))
        self._file = path.open("a", buffering=1)

    def write(self, row: Mapping[str, Any]) -> None:
        if self._file:
            self._file.write(json.dumps(row) + "\n")

    def close(self) -> None:
        if self._file:
            self._file.close()


def _stays(line: str, keep: Callable[[dict[str, Any]], bool]) -> bool:
    try:
        return keep(json.loads(line))
    except (json.JSONDecodeError, KeyError, TypeError):
        return False


class TensorBoard:
    """TensorBoard events, or nothing where they are switched off.

    Args:
      directory: where the event files go.
      enabled: off writes nothing.
      from_step: events at this step and beyond, left by a killed run, are discarded.
    """

    def __init__(self, directory: Path, enabled: bool, from_step: int):
        self._writer = None
        if enabled:
            from tensorboardX import SummaryWriter

            self._writer = SummaryWriter(str(directory), purge_step=from_step)

    def write(self, step: int, prefix: str, values: Mapping[str, float]) -> None:
        if self._writer:
            for name, value in values.items():
                self._writer.add_scalar(f"{prefix}/{name}", value, step)

    def close(self) -> None:
        if self._writer:
            self._writer.close()


def write_json(path: Path, document: Any) -> None:
    """Writes a JSON document in one piece: a reader sees the old one or the new one."""
    write_atomically(path, json.dumps(document, indent=2) + "\n")


def write_atomically(path: Path, text: str) -> None:
    """Replaces a file's content in one piece."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text)
    os.replace(temporary, path)
