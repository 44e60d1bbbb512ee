"""When to look ahead to the next topology update, and the thread that then compiles for it.

Predicting applies nothing: the real decision is taken at the update, on the real scores. A wrong
prediction costs the time to compile then, and never a different result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from barter_jax.core.schedule import PlannedUpdate
from barter_jax.core.topology import Topology
from barter_jax.training.executables import Entry

# Where between two updates to look ahead. The first look leaves the compiler most of the gap; later
# ones correct it with scores that are nearer to the real ones, where there is still time.
LOOKS = (0.25, 0.5, 0.8, 0.95)


def prediction_steps(schedule: Sequence[PlannedUpdate]) -> dict[int, int]:
    """When to predict: `{step: step of the update to predict}`, strictly between updates."""
    points, before = {}, 0
    for update in schedule:
        gap = update.step - before
        for fraction in LOOKS:
            step = before + math.ceil(fraction * gap)
            if before < step < update.step:
                points[step] = update.step
        before = update.step
    return points


class Background:
    """Compiles one shape at a time on a thread of its own.

    Args:
      compile_entry: builds the entry of a padded topology, on any thread.
    """

    def __init__(self, compile_entry: Callable[[Topology], Entry]):
        self._compile_entry = compile_entry
        self._pool = ThreadPoolExecutor(1, "compile-ahead")
        self._future: Future[Entry] | None = None
        self.shape: Topology | None = None  # what is being compiled, or waits to be fetched
        self.seconds = 0.0  # of all that was fetched

    @property
    def done(self) -> bool:
        """Whether there is something to fetch."""
        return self._future is not None and self._future.done()

    def begin(self, physical: Topology) -> None:
        """Starts to compile; what was begun before must have been fetched."""
        assert self._future is None, "one shape at a time"
        self.shape, self._future = physical, self._pool.submit(self._compile_entry, physical)

    def fetch(self) -> Entry:
        """What was compiled; waits for it.

        Raises:
          Exception: whatever the compile failed with.
        """
        future, self.shape, self._future = self._future, None, None
        entry = future.result()
        self.seconds += entry.seconds
        return entry

    def close(self) -> None:
        """Drops what has not begun and waits for what has: a compile cannot be interrupted."""
        self._pool.shutdown(wait=True, cancel_futures=True)
