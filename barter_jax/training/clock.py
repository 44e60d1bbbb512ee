"""Where a run's wall-clock goes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping

# `start`: what comes before a process's first step. `compile` has its compiling.
KINDS = ("start", "compile", "update", "evaluation", "checkpoint", "data", "step")


class Clock:
    """Adds up seconds by kind; whatever is not named otherwise is `step`.

    Args:
      before: seconds of the processes that ran the earlier part of a resumed run.
    """

    def __init__(self, before: Mapping[str, float]):
        self._seconds = {kind: float(before.get(kind, 0.0)) for kind in KINDS}
        self._since = time.perf_counter()

    @contextlib.contextmanager
    def charge(self, kind: str) -> Iterator[None]:
        """Charges the time inside to `kind`, and the time up to here to `step`. Does not nest."""
        self.book("step")
        try:
            yield
        finally:
            self.book(kind)

    def seconds(self) -> dict[str, float]:
        """Seconds so far by kind."""
        self.book("step")
        return dict(self._seconds)

    def book(self, kind: str) -> None:
        """Charges the time since anything was last charged to `kind`."""
        now = time.perf_counter()
        self._seconds[kind] += now - self._since
        self._since = now
