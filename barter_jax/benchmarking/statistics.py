"""The arithmetic of a benchmark. Pure; numbers in, numbers out."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np


@dataclasses.dataclass(frozen=True)
class Blocks:
    """Timed blocks of steps, one a round.

    Attributes:
      steps: steps in a block.
      seconds: of each block, in the order of the rounds.
    """

    steps: int
    seconds: tuple[float, ...]

    @property
    def step_ms(self) -> np.ndarray:
        """Milliseconds of a step in each round, float64 `[rounds]`."""
        return 1e3 * np.asarray(self.seconds) / self.steps


def spread(values: Sequence[float] | np.ndarray) -> dict[str, float]:
    """Median, 10th and 90th percentile, interpolated linearly between values."""
    p10, median, p90 = (float(x) for x in np.percentile(values, (10, 50, 90)))
    return {"median": median, "p10": p10, "p90": p90}


def images_per_second(batch_size: int, step_ms: float) -> float:
    return 1e3 * batch_size / step_ms


def reduction_percent(bytes_: float, dense_bytes: float) -> float:
    """How much less a case takes than the dense one; negative where it takes more."""
    return 100 * (1 - bytes_ / dense_bytes)


def schedule_share(schedule_ms: float, total_steps: int, step_ms: float) -> float:
    """The updates' share of the time that a run's steps and updates take together."""
    return schedule_ms / (schedule_ms + total_steps * step_ms)


def schedule_weighted_ms(schedule_ms: float, total_steps: int, step_ms: float) -> float:
    """Milliseconds of a step with its part of all the run's updates."""
    return step_ms + schedule_ms / total_steps


def block_steps(step_seconds: float, least_seconds: float = 0.05, most: int = 1000) -> int:
    """Steps in a block: the fewest that last `least_seconds`, so that the clock's own error and
    the wait at the end of a block do not count."""
    if step_seconds <= 0:
        return most
    return int(min(max(np.ceil(least_seconds / step_seconds), 1), most))
