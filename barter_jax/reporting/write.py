"""The files of a report, and where they may go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from barter_jax.errors import UserError
from barter_jax.reporting import markdown, page, spreadsheet
from barter_jax.reporting.find import is_run
from barter_jax.training.writers import write_atomically

# File names, and by what a file of that name is known as a report's.
FILES = {
    "report.md": markdown.MARK,
    "report.csv": ",".join(spreadsheet.COLUMNS[:3]),
    "report.html": page.GENERATOR,
}
# How much of a file is looked at for it.
HEAD = 400


def check(directory: Path, runs: Sequence[Path]) -> None:
    """Refuses a place for the report before anything is read.

    Args:
      directory: where it is to go; need not exist.
      runs: the work directories that it is about.

    Raises:
      UserError: the place is a file, lies inside a run, or holds a file of a report's name that
        is none of a report's.
    """
    place = directory.resolve()
    if place.exists() and not place.is_dir():
        raise UserError(f"--output={directory} is a file: give a directory")
    known = {run.resolve() for run in runs}
    for above in (place, *place.parents):
        if above in known or (above.is_dir() and is_run(above)):
            raise UserError(
                f"--output={directory} lies inside the run {above}: give a directory outside it"
            )
    for name, mark in FILES.items():
        file = directory / name
        if file.exists() and not _is_ours(file, mark):
            raise UserError(
                f"{file} is there and was not written by barter_jax.report: move it, or give "
                "another --output"
            )


def write(directory: Path, texts: Mapping[str, str]) -> None:
    """Writes the files, each in one piece; leaves everything else in the directory alone.

    Args:
      directory: created if absent.
      texts: by file name, one for each of `FILES`.

    Raises:
      UserError: the directory cannot be written.
    """
    if texts.keys() != FILES.keys():
        raise ValueError(f"a report has the files {', '.join(FILES)}, got {', '.join(texts)}")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            write_atomically(directory / name, text)
    except OSError as error:
        raise UserError(f"--output={directory} cannot be written: {error.strerror}") from error


def _is_ours(file: Path, mark: str) -> bool:
    try:
        with file.open(errors="replace") as handle:
            return mark in handle.read(HEAD)
    except OSError:
        return False
