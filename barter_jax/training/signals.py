"""Stopping on SIGINT and SIGTERM: noted at once, honoured after the step that is under way."""

from __future__ import annotations

import contextlib
import logging
import signal
from collections.abc import Iterator

log = logging.getLogger("barter_jax")


class Stopped(Exception):
    """The run was asked to stop by a signal, and has saved.

    Attributes:
      exit_code: 130 after a SIGINT, 143 after a SIGTERM.
    """

    def __init__(self, number: int):
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.exit_code = 128 + number


@contextlib.contextmanager
def stop_signals() -> Iterator[list[int]]:
    """Collects the signals' numbers in a list instead of dying; a second one dies as usual."""
    received: list[int] = []
    before = {}

    def note(number, _):
        received.append(number)
        signal.signal(number, before[number])
        name = signal.Signals(number).name
        log.info("%s: stopping after the step under way; once more stops at once", name)

    for number in (signal.SIGINT, signal.SIGTERM):
        before[number] = signal.signal(number, note)
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
