"""What a person sees of a run: a progress bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping

from tqdm import tqdm

from barter_jax.core.topology import UNITS, Topology

log = logging.getLogger("barter_jax")


class Console:
    """Reports progress on stderr.

    Args:
      total: steps of the whole run.
      done: steps done before this process.
      terminal: whether to draw a bar; by default, whether stderr is a terminal.
      silent: says nothing at all.
    """

    def __init__(self, total: int, done: int, terminal: bool | None = None, silent: bool = False):
        self._total = total
        self._silent = silent
        terminal = sys.stderr.isatty() if terminal is None else terminal
        self._bar = (
            tqdm(total=total, initial=done, unit="step", dynamic_ncols=True)
            if terminal and not silent
            else None
        )

    def advance(self) -> None:
        """One step is done."""
        if self._bar is not None:
            self._bar.update()

    def train(
        self, step: int, values: Mapping[str, float], topology: Topology, seconds_left: float
    ) -> None:
        """A line of training metrics."""
        if self._bar is not None:
            self._bar.set_postfix_str(
                f"loss {values['loss']:.4f} acc {values['accuracy']:.3f} "
                f"{values['images_per_second']:.0f} img/s {counts(topology)}"
            )
        else:
            self.say(
                f"step {step}/{self._total}  loss {values['loss']:.4f}  "
                f"acc {values['accuracy']:.4f}  {values['images_per_second']:.0f} img/s  "
                f"{counts(topology)}  {duration(seconds_left)} left"
            )

    def say(self, text: str) -> None:
        """A line of its own, above the bar where there is one."""
        if self._bar is not None:
            self._bar.write(text, file=sys.stderr)
        elif not self._silent:
            log.info("%s", text)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


def counts(topology: Topology) -> str:
    """Units per layer, as in `heads 1 2 2  channels 58 58 59`."""
    return "  ".join(f"{unit} {' '.join(map(str, topology.of(unit)))}" for unit in UNITS)


def duration(seconds: float) -> str:
    """`1h02m`, `3m05s` or `12s`."""
    seconds = round(seconds)
    if seconds >= 3600:
        return f"{seconds // 3600}h{seconds % 3600 // 60:02d}m"
    return f"{seconds // 60}m{seconds % 60:02d}s" if seconds >= 60 else f"{seconds}s"
