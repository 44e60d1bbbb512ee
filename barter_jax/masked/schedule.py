"""When masks change, and what fraction of the active weights then does."""

from __future__ import annotations

import dataclasses
import math

import jax
import jax.numpy as jnp

from barter_jax.errors import UserError


@dataclasses.dataclass(frozen=True)
class MaskSchedule:
    """Updates at a fixed interval until a part of the run, with a cosine from `start` to `end`.

    Attributes:
      total_steps: optimizer steps of the run.
      every: steps from one update to the next.
      stop_fraction: no update comes at or after this part of the run; with 1, none comes after
        the last step, whose result could not be trained any more.
      start: the fraction at the beginning.
      end: the fraction that the cosine ends with; equal to `start` for a constant one.
      horizon_fraction: the part of the run after which the cosine has reached `end`.

    Raises:
      UserError: a field is out of range.
    """

    total_steps: int
    every: int
    stop_fraction: float
    start: float
    end: float
    horizon_fraction: float

    def __post_init__(self):
        for field, fine, text in (
            ("total_steps", self.total_steps >= 1, "at least 1"),
            ("every", self.every >= 1, "at least 1"),
            ("stop_fraction", 0 <= self.stop_fraction <= 1, "in [0, 1]"),
            ("start", 0 <= self.start <= 1, "in [0, 1]"),
            ("end", 0 <= self.end <= 1, "in [0, 1]"),
            ("horizon_fraction", 0 < self.horizon_fraction <= 1, "above 0 and at most 1"),
        ):
            if not fine:
                raise UserError(f"{field} of a mask schedule must be {text}: {self}")

    @property
    def last(self) -> int:
        """No update comes after so many steps."""
        # Rounded first, so that 0.07 * 100 is 7.
        return math.ceil(round(self.stop_fraction * self.total_steps, 6)) - 1

    @property
    def updates(self) -> tuple[int, ...]:
        """The steps, counted from 1, that end with an update (or are replaced by one)."""
        return tuple(range(self.every, self.last + 1, self.every))

    def due(self, step: jax.Array) -> jax.Array:
        """Whether the step ends with an update; bool scalar.

        Args:
          step: int32 scalar, steps taken before this one.
        """
        done = step + 1
        return (done % self.every == 0) & (done <= self.last)

    def fraction(self, step: jax.Array) -> jax.Array:
        """The fraction of an update in this step; float32 scalar. `step` as for `due`."""
        passed = (step + 1) / (self.horizon_fraction * self.total_steps)
        cosine = 0.5 * (1 + jnp.cos(jnp.pi * jnp.minimum(passed, 1.0)))
        # So that a constant is one, to the last bit.
        return jnp.float32(self.end) + jnp.float32(self.start - self.end) * cosine
