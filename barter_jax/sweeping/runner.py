"""Runs the cells of a grid, each in a process of its own."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import IO

from ml_collections import config_dict

from barter_jax.sweeping import status
from barter_jax.sweeping.grid import configured
from barter_jax.sweeping.status import Paths
from barter_jax.training.console import duration
from barter_jax.training.signals import Stopped, stop_signals

log = logging.getLogger("barter_jax")

SECONDS_BETWEEN_LOOKS = 0.2
SECONDS_BETWEEN_LINES = 60.0


class _Running:
    """A run that is under way."""

    def __init__(self, paths: Paths, lock: IO, command: Sequence[str], device: str | None):
        self.paths, self.device, self.lock = paths, device, lock
        self.since = time.monotonic()
        self.told = False
        env = dict(os.environ)
        if device is not None:
            env["CUDA_VISIBLE_DEVICES"] = device
        with paths.log.open("a") as said:
            # A session of its own: Ctrl-C on the terminal reaches this process, which passes it on
            # once; a second one would keep the run from saving.
            self.process = subprocess.Popen(
                command, stdout=said, stderr=said, env=env, start_new_session=True
            )


def run(
    all_paths: Sequence[Paths],
    config: config_dict.ConfigDict,
    arguments: Sequence[str],
    devices: Sequence[str | None],
) -> None:
    """Runs what is not done yet; a run that fails is recorded, and the others go on.

    Args:
      all_paths: the runs and where they lie.
      config: what they have in common.
      arguments: the flags that give this config.
      devices: as many runs at a time; each sees its device alone, or all of them for None.

    Raises:
      Stopped: on SIGINT or SIGTERM, after the runs under way have saved.
    """
    waiting = list(all_paths)
    total, running, free = len(waiting), [], list(devices)
    spoke = time.monotonic()
    with stop_signals() as stop:
        while (waiting and not stop) or running:
            while waiting and free and not stop:
                begun = _begin(waiting.pop(0), config, arguments, free[0])
                if begun:
                    free.pop(0)
                    running.append(begun)
                    number = total - len(waiting)
                    log.info("[%d/%d] %s: started", number, total, begun.paths.cell.name)
            for one in list(running):
                if stop and one.process.poll() is None:
                    _pass_on(one, stop[0])
                if one.process.poll() is not None:
                    running.remove(one)
                    free.append(one.device)
                    _finish(one, config, stopped=bool(stop))
            if time.monotonic() - spoke > SECONDS_BETWEEN_LINES:
                spoke = time.monotonic()
                for one in running:
                    said = status.last_line(one.paths.log) or "nothing said yet"
                    log.info("%s: %s", one.paths.cell.name, said)
            if running:
                time.sleep(SECONDS_BETWEEN_LOOKS)
        if stop:
            raise Stopped(stop[0])


def _begin(
    paths: Paths, config: config_dict.ConfigDict, arguments: Sequence[str], device: str | None
) -> _Running | None:
    """Starts a run, unless it is done, or another sweep has it."""
    row = status.read(paths, configured(config, paths.cell))
    if row["state"] == "done":
        paths.failure.unlink(missing_ok=True)
        log.info("%s: done already, test accuracy %.4f", paths.cell.name, row["accuracy"])
        return None
    lock = paths.lock.open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        log.info("%s: another sweep is at it; left to that", paths.cell.name)
        return None
    if status.is_trained(paths.workdir):
        lock.close()
        log.info("%s: a process left by an earlier sweep is at it; left to that", paths.cell.name)
        return None
    paths.failure.unlink(missing_ok=True)
    return _Running(paths, lock, _command(paths, arguments), device)


def _command(paths: Paths, arguments: Sequence[str]) -> list[str]:
    own = [f"--config.{key}={value}" for key, value in paths.cell.overrides.items()]
    where = f"--workdir={paths.workdir}"
    return [sys.executable, "-m", "barter_jax.main", *arguments, *own, where]


def _pass_on(one: _Running, number: int) -> None:
    if one.told:
        return
    one.told = True
    with contextlib.suppress(ProcessLookupError):
        one.process.send_signal(number)


def _finish(one: _Running, config: config_dict.ConfigDict, stopped: bool) -> None:
    """Says and records how a run ended."""
    paths, code = one.paths, one.process.returncode
    took = duration(time.monotonic() - one.since)
    if code and not (stopped and code in (130, 143, -signal.SIGINT, -signal.SIGTERM)):
        error = status.last_line(paths.log)
        status.record_failure(paths, code, error)
        log.info("%s: failed with exit code %d: %s", paths.cell.name, code, error)
    elif code:
        log.info("%s: stopped after %s; the same command goes on", paths.cell.name, took)
    else:
        row = status.read(paths, configured(config, paths.cell))
        log.info("%s: test accuracy %.4f after %s", paths.cell.name, row["accuracy"], took)
    one.lock.close()
