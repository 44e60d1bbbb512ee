"""Training metrics between two log lines, fetched late so that no step waits for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from barter_jax.errors import RunError


class Window:
    """The metrics of the steps since the last log line.

    Args:
      columns: what an earlier process had gathered: `{name: [value of each step]}`.
    """

    def __init__(self, columns: Mapping[str, list[float]]):
        self._rows: list[dict[str, Any]] = [
            dict(zip(columns, values, strict=True))
            for values in zip(*columns.values(), strict=True)
        ]

    def append(self, values: Mapping[str, jax.Array]) -> None:
        """Adds one step's metrics, which may still be being computed."""
        self._rows.append(dict(values))

    def fetch(self, step: int) -> dict[str, list[float]]:
        """The metrics on the host: `{name: [value of each step]}`. Waits for the device.

        Args:
          step: the step of the last row.

        Raises:
          RunError: a value is not finite: training has diverged.
        """
        self._rows = [
            {name: float(value) for name, value in row.items()}
            for row in jax.device_get(self._rows)
        ]
        for i, row in enumerate(self._rows):
            for name, value in row.items():
                if not np.isfinite(value):
                    at = step - len(self._rows) + i + 1
                    raise diverged(at, f"the {name.replace('_', ' ')} is {value}")
        names = self._rows[0] if self._rows else ()
        return {name: [row[name] for row in self._rows] for name in names}

    def close(self, step: int) -> dict[str, float]:
        """The mean of each metric; the window is empty afterwards. Raises as `fetch` does."""
        means = {name: float(np.mean(values)) for name, values in self.fetch(step).items()}
        self._rows = []
        return means


def diverged(step: int, why: str) -> RunError:
    """The error of a run that has diverged."""
    return RunError(
        f"training diverged at step {step}: {why}. "
        "Lower config.optimizer.learning_rate or set config.optimizer.clip_norm"
    )
