"""Compiled code on disk: what one run has compiled, the next one loads.

JAX keeps the entries, bounds their size and shares them between processes; a key covers program,
compiler, flags and device (with a CPU's instruction set), so an entry is never taken for another.
Here it is told where, and what goes wrong with the directory is found before the first compile:
a run goes on without a cache rather than fail for it. Whoever has set up JAX's cache already, by
`JAX_COMPILATION_CACHE_DIR` or `jax.config`, keeps what they have.
"""

from __future__ import annotations

import functools
import logging
import os
import re
import tempfile
import threading
from pathlib import Path

import filelock
import jax
from jax.experimental.compilation_cache import compilation_cache

log = logging.getLogger("barter_jax")

# What is compiled faster is not worth an entry.
MIN_COMPILE_SECONDS = 0.1
LOCK_SECONDS = 10  # as long as JAX waits

_HIT = "/jax/compilation_cache/cache_hits"
_MISS = "/jax/compilation_cache/cache_misses"
_SAVED = "/jax/compilation_cache/compile_time_saved_sec"
_ENTRY = re.compile(r"(?P<key>.+-[0-9a-f]{64})-cache")

# The directory that this module gave to JAX.
_given: Path | None = None


def set_up(enabled: bool = True, directory: str = "", max_mb: float = 2048) -> None:
    """Has JAX keep what it compiles from now on, unless it has been told where already.

    Where the directory cannot be used, that is told in one line, and nothing is kept.

    Args:
      enabled: off keeps nothing.
      directory: created if absent; by default `barter_jax/xla` in the user's cache directory.
      max_mb: MiB to keep at most; the least recently used entries go first.
    """
    global _given
    _listen()
    chosen = jax.config.jax_compilation_cache_dir
    if chosen and chosen != str(_given):
        return
    path = None
    if enabled and jax.config.jax_enable_compilation_cache:
        try:
            path = Path(directory).expanduser().absolute() if directory else default_directory()
            _prepare(path)
        # RuntimeError: nobody knows a home; NotImplementedError: files there cannot be locked.
        except (OSError, RuntimeError) as error:
            log.warning(
                "compiled code is not kept: %s. Name a directory that can be written by "
                "config.compile_cache.dir, or set config.compile_cache.enabled=False",
                error,
            )
            path = None
    if path is None and _given is None:
        return
    _given = path
    jax.config.update("jax_compilation_cache_dir", None if path is None else str(path))
    jax.config.update("jax_compilation_cache_max_size", int(max_mb * 2**20))
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", MIN_COMPILE_SECONDS)
    # JAX opens its cache once: if it has, it would go on with the old one.
    compilation_cache.reset_cache()


def default_directory() -> Path:
    """`barter_jax/xla` in `XDG_CACHE_HOME`, or else in `~/.cache`.

    Raises:
      RuntimeError: the user has no home directory.
    """
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".cache") / "barter_jax" / "xla"


class Counter:
    """What the cache has done for this process since the counter was made."""

    def __init__(self):
        self._start = _totals()

    def totals(self) -> dict[str, float]:
        """Executables loaded, executables added, and seconds of compiling that loading saved."""
        hits, misses, saved = (
            now - before for now, before in zip(_totals(), self._start, strict=True)
        )
        return {
            "cache_hits": hits,
            "cache_misses": misses,
            "cache_seconds_saved": round(saved, 3),
        }


def _prepare(path: Path) -> None:
    """Makes sure that JAX can use the directory.

    Raises:
      OSError: it cannot.
      NotImplementedError: the file system has no locks.
    """
    # For the user alone: who can write there can have any code run.
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=path):
        pass
    try:
        with filelock.FileLock(path / ".lockfile", timeout=LOCK_SECONDS):
            _remove_torn(path)
    except filelock.Timeout:
        pass  # another process is at it; JAX waits for it too


def _remove_torn(path: Path) -> None:
    """Removes entries whose writer was killed before it had written the time beside them.

    JAX would stumble over such an entry whenever it makes room for another, and keep none.
    """
    for file in path.iterdir():
        entry = _ENTRY.fullmatch(file.name)
        if entry and not (path / f"{entry['key']}-atime").exists():
            file.unlink(missing_ok=True)


_lock = threading.Lock()
_hits, _misses, _saved = 0, 0, 0.0


def _totals() -> tuple[int, int, float]:
    with _lock:
        return _hits, _misses, _saved


@functools.cache  # once a process: JAX's listeners are for good
def _listen() -> None:
    def note(event: str, **_) -> None:
        global _hits, _misses
        with _lock:
            _hits += event == _HIT
            _misses += event == _MISS

    def note_seconds(event: str, seconds: float, **_) -> None:
        global _saved
        if event == _SAVED:
            with _lock:
                _saved += seconds

    jax.monitoring.register_event_listener(note)
    jax.monitoring.register_event_duration_secs_listener(note_seconds)
