"""The first tensor that is not as it should be, by the name that its file has for it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from barter_jax.errors import UserError
from barter_jax.pretrained.formats import Entry
from barter_jax.pretrained.layouts import Shape

Because = Callable[[str], str]


def check_shapes(
    file: Path,
    entries: Sequence[Entry],
    found: Mapping[str, Shape],
    expected: Mapping[str, Shape],
    because: Because,
) -> None:
    """Compares the tensors of a file with the parameters of a model, in the order of the table.

    Args:
      file: to name.
      entries: the table.
      found: shapes of the file's tensors.
      expected: shapes of our parameters.
      because: why a parameter, by its path, has the shape that it has; it follows the shape.

    Raises:
      UserError: a tensor is missing or has another shape; the first one is named.
    """
    for entry in entries:
        want = list(entry.layout.shape([expected[path] for path in entry.ours]))
        if entry.theirs not in found:
            raise UserError(
                f"{file}: {entry.theirs} is missing, expected {want}{because(entry.ours[0])}"
            )
        have = list(found[entry.theirs])
        if have != want:
            raise UserError(
                f"{file}: {entry.theirs} has shape {have}, expected {want}{because(entry.ours[0])}"
            )


def check_present(file: Path, entries: Sequence[Entry], found: Collection[str], why: str) -> None:
    """Checks that a file has every tensor of the table.

    Raises:
      UserError: one is missing; the first one of the table is named, followed by `why`.
    """
    for entry in entries:
        if entry.theirs not in found:
            raise UserError(f"{file}: {entry.theirs} is missing, {why}")


def check_names(
    file: Path, entries: Sequence[Entry], found: Collection[str], ignored: Collection[str], why: str
) -> None:
    """Checks that a file has no tensor besides those of the table.

    Raises:
      UserError: it has one; the first by name is named, followed by `why`.
    """
    known = {entry.theirs for entry in entries} | set(ignored)
    for name in sorted(found):
        if name not in known:
            raise UserError(f"{file}: {name} is unexpected: {why}")
