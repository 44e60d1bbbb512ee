"""What a run says and writes while it goes on: console, JSON lines and TensorBoard events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from barter_jax.training.console import Console
from barter_jax.training.job import Job
from barter_jax.training.writers import JsonLines, TensorBoard


class Journal:
    """The files and the console of a run; of several processes the first one's alone.

    Args:
      job: the run.
      step: where it goes on from: what was written of later steps is written again.
    """

    def __init__(self, job: Job, step: int):
        first = job.hosts.first
        self._metrics = JsonLines(
            job.directory / "metrics.jsonl",
            lambda row: row["step"] <= step and row["split"] != "test",
            enabled=first,
        )
        # The update of the step resumed at is made, and written, again.
        self._topology = JsonLines(
            job.directory / "topology.jsonl", lambda row: row["step"] < step, enabled=first
        )
        self._tensorboard = TensorBoard(
            job.directory / "tensorboard", job.config.log.tensorboard and first, step + 1
        )
        self.console = Console(job.plan.total_steps, step, silent=not first)

    def metrics(self, step: int, split: str, values: Mapping[str, float]) -> None:
        """A line of `metrics.jsonl`, and the same as events."""
        self._metrics.write({"step": step, "split": split, **values})
        self._tensorboard.write(step, split, values)

    def topology(self, row: Mapping[str, Any]) -> None:
        """A line of `topology.jsonl`."""
        self._topology.write(row)

    def say(self, text: str) -> None:
        """A line for the user."""
        self.console.say(text)

    def close(self) -> None:
        """Closes the files and ends the progress bar."""
        self.console.close()
        for writer in (self._metrics, self._topology, self._tensorboard):
            writer.close()
