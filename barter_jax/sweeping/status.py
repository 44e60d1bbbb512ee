"""What is known of the runs of a sweep, from what lies on disk."""

from __future__ import annotations

import dataclasses
import fcntl
import json
import re
from pathlib import Path
from typing import Any

from ml_collections import config_dict

from barter_jax.errors import UserError
from barter_jax.sweeping.grid import Cell
from barter_jax.training import workdir
from barter_jax.training.writers import write_json


@dataclasses.dataclass(frozen=True)
class Paths:
    """Where a run of a sweep lies, under the sweep's directory."""

    root: Path
    cell: Cell

    @property
    def workdir(self) -> Path:
        return self.root / self.cell.name

    @property
    def log(self) -> Path:
        """What the run printed, all its starts one after the other."""
        return self.root / f"{self.cell.name}.log"

    @property
    def lock(self) -> Path:
        return self.root / f".{self.cell.name}.lock"

    @property
    def failure(self) -> Path:
        """How the last start ended, where it failed."""
        return self.root / f"{self.cell.name}.failed.json"


def read(paths: Paths, config: config_dict.ConfigDict) -> dict[str, Any]:
    """The state of a run (done, running, failed, stopped or waiting), with what goes with it.

    Args:
      paths: where it lies.
      config: its config; a finished run of another one is not `done`.
    """
    row = {"name": paths.cell.name, **paths.cell.overrides, "workdir": str(paths.workdir)}
    summary = _json(paths.workdir / "summary.json")
    if summary and (paths.workdir / "model").exists() and _is_of(paths.workdir, config):
        test = summary["test"]
        return {
            **row,
            "state": "done",
            "accuracy": test["accuracy"],
            "macro_f1": test["macro_f1"],
            "seconds": summary["seconds"]["total"],
        }
    if is_trained(paths.workdir):
        return {**row, "state": "running"}
    failure = _json(paths.failure)
    if failure:
        return {**row, "state": "failed", **failure}
    started = (paths.workdir / "config.json").exists()
    return {**row, "state": "stopped" if started else "waiting"}


def is_trained(directory: Path) -> bool:
    """Whether a process is training in a work directory right now."""
    try:
        with (directory / ".lock").open("r") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # There is none, or it is no directory, which the run itself will tell.
        return False
    return False


def record_failure(paths: Paths, code: int, error: str) -> None:
    """Notes how a run failed, until it is started again."""
    write_json(paths.failure, {"exit_code": code, "error": error, "log": str(paths.log)})


def last_line(log: Path) -> str:
    """The last line that a run printed, without the time before it."""
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return re.sub(r"^\d\d:\d\d:\d\d ", "", last)


def _is_of(directory: Path, config: config_dict.ConfigDict) -> bool:
    try:
        workdir.check(directory, config, overwrite=False)
    except UserError:
        return False
    return True


def _json(path: Path) -> dict[str, Any] | None:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None
