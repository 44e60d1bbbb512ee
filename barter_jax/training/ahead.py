"""Compiling ahead: the shapes that the next update will probably need, on a background thread.

Predicting applies nothing: the real decision is taken at the update, on the real scores. A wrong
prediction costs the time to compile then, and never a different result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from barter_jax.core.schedule import PlannedUpdate
from barter_jax.core.topology import Topology
from barter_jax.training.executables import Entry, ExecutableTable

# Where between two updates to look ahead. Halfway leaves the compiler the other half of the gap;
# the second look corrects the first with scores that are nearer to the real ones.
LOOKS = (0.5, 0.8)


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


class CompileAhead:
    """One background thread that compiles entries for a table.

    The table itself is touched by the calling thread alone.

    Args:
      table: where finished entries go.
      compile_entry: builds the entry of a padded topology, on any thread.
      enabled: off compiles everything when it is needed.
    """

    def __init__(
        self,
        table: ExecutableTable,
        compile_entry: Callable[[Topology], Entry],
        enabled: bool = True,
    ):
        self._table = table
        self._compile_entry = compile_entry
        self._pool = ThreadPoolExecutor(1, "compile-ahead") if enabled else None
        self._pending: dict[Topology, Future[Entry]] = {}
        self.background_seconds = 0.0

    @property
    def enabled(self) -> bool:
        return self._pool is not None

    def request(self, physical: Topology) -> None:
        """Starts to compile a shape unless it is known or under way."""
        if self._pool and physical not in self._table and physical not in self._pending:
            # An earlier prediction that has not started yet is out of date.
            for topology, future in list(self._pending.items()):
                if future.cancel():
                    del self._pending[topology]
            self._pending[physical] = self._pool.submit(self._compile_entry, physical)

    def collect(self, current: Topology) -> None:
        """Moves what is finished into the table.

        Args:
          current: the shape in use, which must not be dropped to make room.

        Raises:
          Exception: whatever a background compile failed with.
        """
        for physical in [p for p, future in self._pending.items() if future.done()]:
            self._table.get(current)
            self._put(physical)

    def take(self, physical: Topology) -> tuple[Entry, bool]:
        """The entry of a shape, and whether it was ready.

        Waits where it is being compiled, and compiles it here where nobody has begun.
        """
        ready = physical in self._table
        future = self._pending.get(physical)
        if not ready and future is not None:
            if future.cancel():
                del self._pending[physical]
            else:
                ready = future.done()
                self._put(physical)
        return self._table.get(physical), ready

    def close(self) -> None:
        """Drops what has not begun and waits for what has: a compile cannot be interrupted."""
        if self._pool:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def _put(self, physical: Topology) -> None:
        entry = self._pending.pop(physical).result()
        self.background_seconds += entry.seconds
        self._table.put(physical, entry)
