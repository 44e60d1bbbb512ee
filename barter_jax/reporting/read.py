"""A work directory as it stands, whatever state and version it is of.

Nothing here fails because a run is unfinished, damaged or written by another version: what cannot
be read is None or left out, and `problems` says so.
"""

from __future__ import annotations

import dataclasses
import fcntl
import json
import math
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

from barter_jax.deploy import model as compact
from barter_jax.errors import RunError, UserError

STATES = FINISHED, RUNNING, STOPPED, BROKEN = "finished", "running", "stopped", "broken"
Row = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Run:
    """What a work directory holds.

    Attributes:
      directory: where it lies, as it was given.
      nested: the config as it was written; None where it cannot be read.
      config: the same, flat: `{"train.batch_size": 64, ...}`; empty where it cannot be read.
      versions: of Python and libraries.
      host: where it ran, if its config.json says so.
      command: its command line, if its config.json says so.
      planned_steps: its optimizer steps, if its config.json says so.
      rows: of `metrics.jsonl` by split, in order of their steps.
      updates: rows of `topology.jsonl`.
      summary: of a finished run.
      card: what its compact model knows of itself.
      status: finished, running, stopped or broken.
      problems: what is wrong with it, a sentence each.
    """

    directory: Path
    nested: dict[str, Any] | None
    config: dict[str, Any]
    versions: dict[str, Any]
    host: Any
    command: Any
    planned_steps: int | None
    rows: dict[str, tuple[Row, ...]]
    updates: tuple[Row, ...]
    summary: dict[str, Any] | None
    card: compact.Card | None
    status: str
    problems: tuple[str, ...]

    @property
    def method(self) -> str | None:
        return text(self.config.get("method"))

    @property
    def density(self) -> float | None:
        """1 for the dense method, which does not read the field."""
        return 1.0 if self.method == "dense" else number(self.config.get("density"))

    @property
    def seed(self) -> int | None:
        seed = self.config.get("seed")
        return seed if isinstance(seed, int) else None

    @property
    def step(self) -> int:
        """The optimizer steps done, as far as something was written about them."""
        done = _count(self.summary.get("steps")) if self.summary else None
        if done:
            return done
        steps = [row["step"] for rows in self.rows.values() for row in rows]
        return max([*steps, *(row["step"] for row in self.updates)], default=0)

    @property
    def total_steps(self) -> int | None:
        """The steps that the run is to have; None where nothing tells."""
        if self.status == FINISHED:
            return self.step or None
        if self.planned_steps or self.config.get("train.match_flops_of"):
            return self.planned_steps  # the config alone does not tell them
        steps = number(self.config.get("train.steps"))
        epoch, epochs = self._steps_per_epoch(), number(self.config.get("train.epochs"))
        if steps:
            return int(steps)
        return int(epoch * epochs) if epoch and epochs else None

    def _steps_per_epoch(self) -> int | None:
        c = self.config
        images, batch = number(c.get("data.num_train")), number(c.get("train.batch_size"))
        if images and batch:
            # As the pipeline counts them, whose import would take longer than the whole report.
            passes = Fraction(str(float(number(c.get("train.passes_per_epoch")) or 1)))
            return math.floor(passes * int(images) / int(batch))
        if c.get("train.eval_every_steps") is None and self.rows["validation"]:
            return self.rows["validation"][0]["step"]  # it evaluates once an epoch
        return None

    @property
    def progress(self) -> str:
        """How far it is, for a reader."""
        if self.status == FINISHED:
            return f"{self.step:,} steps"
        total = self.total_steps
        return f"step {self.step:,} of {total:,}" if total else f"step {self.step:,}"

    @property
    def test(self) -> Row:
        """The best model's metrics on the test split; empty before the end."""
        if self.status != FINISHED:
            return {}
        found = self.summary.get("test")
        return found if isinstance(found, dict) else {}

    @property
    def best_validation(self) -> Row:
        """The validation row that chose the model: the first of the highest accuracy."""
        rows = [r for r in self.rows["validation"] if number(r.get("accuracy")) is not None]
        return max(rows, key=lambda row: row["accuracy"], default={})

    @property
    def seconds(self) -> dict[str, float]:
        """Wall-clock seconds by kind, of a finished run."""
        found = (self.summary or {}).get("seconds")
        found = found if isinstance(found, dict) else {}
        return {k: v for k, v in found.items() if number(v) is not None}


def read(directory: Path) -> Run:
    """Reads a work directory.

    The test for a running process takes the directory's lock, shared, for a moment.
    """
    problems: list[str] = []
    document = _config(directory / "config.json", problems)
    nested = document.get("config") if isinstance(document.get("config"), dict) else None
    rows = _metrics(directory / "metrics.jsonl", problems)
    updates = _topology(directory / "topology.jsonl", problems)
    running = _locked(directory / ".lock")
    if not any(rows.values()) and not running:
        problems.append("metrics.jsonl is missing, or has no line that can be read")
    summary = _summary(directory / "summary.json", problems)
    if summary is None and not running:
        problems += _failure(directory)
    broken = bool(problems)
    card = _card(directory, problems)
    if nested is None:
        status = BROKEN
    elif summary is not None:
        status = FINISHED
        broken_test = [k for k, v in summary.get("test", {}).items() if _not_finite(v)]
        if broken_test:
            problems.append(f"summary.json: test {', '.join(broken_test)} is not finite")
    elif (directory / "summary.json").exists():
        status = BROKEN
    elif running:
        status = RUNNING
    else:
        status = BROKEN if broken else STOPPED
    versions = document.get("versions")
    return Run(
        directory=directory,
        nested=nested,
        config=flat(nested or {}),
        versions=versions if isinstance(versions, dict) else {},
        host=document.get("host"),
        command=document.get("command"),
        planned_steps=_count(document.get("total_steps")),
        rows=rows,
        updates=updates,
        summary=summary,
        card=card,
        status=status,
        problems=tuple(problems),
    )


# --- one file each -----------------------------------------------------------------------------


def _config(file: Path, problems: list[str]) -> dict[str, Any]:
    document = _document(file, problems)
    if document is None:
        if not problems:
            problems.append("config.json is missing")
        return {}
    if not isinstance(document.get("config"), dict):
        problems.append("config.json holds no config")
    return document


def _summary(file: Path, problems: list[str]) -> dict[str, Any] | None:
    summary = _document(file, problems)
    if summary is not None and not isinstance(summary.get("test", {}), dict):
        problems.append("summary.json: test is no object")
        return {**summary, "test": {}}
    return summary


def _document(file: Path, problems: list[str]) -> dict[str, Any] | None:
    """A JSON object, or None where there is none."""
    try:
        document = json.loads(file.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        problems.append(f"{file.name} cannot be read ({type(error).__name__})")
        return None
    if not isinstance(document, dict):
        problems.append(f"{file.name} holds no JSON object")
        return None
    return document


def _metrics(file: Path, problems: list[str]) -> dict[str, tuple[Row, ...]]:
    found: dict[str, list[Row]] = {"train": [], "validation": [], "test": []}
    lines = _lines(file, problems)
    for row in lines:
        if text(row.get("split")) in found:
            found[row["split"]].append(row)
    bad = [row["step"] for row in lines if any(_not_finite(v) for v in row.values())]
    if bad:
        problems.append(f"metrics.jsonl has values that are not finite, first at step {min(bad)}")
    return {k: tuple(sorted(rows, key=lambda row: row["step"])) for k, rows in found.items()}


def _topology(file: Path, problems: list[str]) -> tuple[Row, ...]:
    rows = _lines(file, problems)
    good = [row for row in rows if _is_update(row)]
    if len(good) < len(rows):
        problems.append(f"topology.jsonl has {len(rows) - len(good)} lines without an update")
    return tuple(sorted(good, key=lambda row: row["step"]))


def _is_update(row: Row) -> bool:
    """Whether all is there that the figures of a run's trades are made of."""
    counts = row.get("counts")
    return (
        isinstance(row.get("unit"), str)
        and isinstance(counts, dict)
        and isinstance(counts.get(row["unit"]), list)
        and isinstance(row.get("receiver"), int | None)
        and isinstance(row.get("donors"), list)
        and all(isinstance(d, list) and d and isinstance(d[0], int) for d in row["donors"])
    )


def _failure(directory: Path) -> list[str]:
    """How the last start of a sweep's run ended, which stands beside its directory."""
    failure = _document(directory.with_name(f"{directory.name}.failed.json"), [])
    error = text((failure or {}).get("error"))
    return [f"the last start failed: {error}"] if error else []


def _lines(file: Path, problems: list[str]) -> list[Row]:
    """The objects of a file of one a line that have a step.

    A last line that was cut off is what a killed process leaves: it is no problem. Nor is a file
    that is not there: not every method writes every file.
    """
    try:
        lines = file.read_text().splitlines()
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        problems.append(f"{file.name} cannot be read ({type(error).__name__})")
        return []
    rows, bad = [], []
    for i, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if isinstance(row, dict) and isinstance(row.get("step"), int):
            rows.append(row)
        elif i < len(lines):
            bad.append(i)
    if bad:
        problems.append(f"{file.name}, line {bad[0]}{' and others' * (len(bad) > 1)}: unreadable")
    return rows


def _card(directory: Path, problems: list[str]) -> compact.Card | None:
    if not (directory / "model" / compact.FILE).is_file():
        return None
    try:
        return compact.read_card(directory)
    except (UserError, RunError) as error:
        problems.append(f"model: {error}")
        return None


def _locked(file: Path) -> bool:
    """Whether a process trains there: it holds the lock as long as it lives."""
    try:
        with file.open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


# --- values ------------------------------------------------------------------------------------


def flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """`{"train.batch_size": 64, ...}`, in the order of the document."""
    found: dict[str, Any] = {}
    for key, value in tree.items():
        found |= (
            flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
        )
    return found


def number(value: Any) -> float | None:
    """A finite number, or None for anything else."""
    fine = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return value if fine else None


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and value > 0 else None


def text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _not_finite(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)
