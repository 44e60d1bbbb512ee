"""Compile times, cold and warm, in a persistent cache of the benchmark's own."""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
from jax.experimental.compilation_cache import compilation_cache

from barter_jax.training.executables import Entry

BACKEND_COMPILE = "/jax/core/compile/backend_compile_duration"
CACHE_HIT = "/jax/compilation_cache/cache_hits"

# Everything is to be cached, however small and however quickly compiled, and nothing dropped.
CACHE_SETTINGS = {
    "jax_enable_compilation_cache": True,
    "jax_persistent_cache_min_compile_time_secs": 0,
    "jax_persistent_cache_min_entry_size_bytes": -1,
    "jax_compilation_cache_max_size": -1,
}


@dataclasses.dataclass(frozen=True)
class CompileTime:
    """Seconds for one function.

    Attributes:
      trace_and_lower: Python to the compiler's input, all of JAX's caches empty.
      cold: the compiler, nothing cached on disk.
      warm: loading the executable from the cache on disk; None if the backend did not.
    """

    trace_and_lower: float
    cold: float
    warm: float | None


@dataclasses.dataclass(frozen=True)
class CompileTimes:
    """Of one padded topology's two steps."""

    train: CompileTime
    evaluate: CompileTime


@contextlib.contextmanager
def cache_in(directory: Path) -> Iterator[None]:
    """Points JAX's persistent compilation cache at a directory, and back afterwards."""
    settings = {"jax_compilation_cache_dir": str(directory), **CACHE_SETTINGS}
    before = {name: getattr(jax.config, name) for name in settings}
    try:
        # JAX opens its cache once: without a reset it would go on with the one it has.
        compilation_cache.reset_cache()
        for name, value in settings.items():
            jax.config.update(name, value)
        yield
    finally:
        for name, value in before.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()


class Events:
    """What the compiler was asked for: seconds, and whether the cache on disk had it, by name."""

    def __init__(self) -> None:
        self._found: list[tuple[str, float, bool]] = []
        self._hit = False

    def on_event(self, event: str, **_) -> None:
        self._hit |= event == CACHE_HIT

    def on_duration(self, event: str, seconds: float, fun_name: str = "", **_) -> None:
        if event == BACKEND_COMPILE:
            self._found.append((fun_name, seconds, self._hit))
            self._hit = False

    def of(self, name: str) -> list[tuple[float, bool]]:
        """Seconds of each function whose name contains `name`, and whether it was cached."""
        return [(seconds, hit) for fun, seconds, hit in self._found if name in fun]


@contextlib.contextmanager
def listening() -> Iterator[Events]:
    """Notes what is compiled while the context lasts."""
    events = Events()
    jax.monitoring.register_event_listener(events.on_event)
    jax.monitoring.register_event_duration_secs_listener(events.on_duration)
    try:
        yield events
    finally:
        jax.monitoring.unregister_event_listener(events.on_event)
        jax.monitoring.unregister_event_duration_listener(events.on_duration)


def timed(build: Callable[[], Entry]) -> tuple[Entry, CompileTimes]:
    """Builds an entry twice in an empty cache of its own: cold, then warm.

    Empties JAX's caches in memory too, so that each is traced as in a fresh process.

    Args:
      build: compiles an entry whose steps are named `train_step` and `eval_step`.

    Returns:
      The entry of the cold build, and the times.
    """
    with tempfile.TemporaryDirectory(prefix="barter_jax_cache_") as directory:
        with cache_in(Path(directory)):
            entry, cold = _build(build)
            again, warm = _build(build)
    again.train.free()
    again.evaluate.free()

    def times(name: str, seconds: float) -> CompileTime:
        ((cold_seconds, _),), ((warm_seconds, hit),) = cold.of(name), warm.of(name)
        return CompileTime(seconds - cold_seconds, cold_seconds, warm_seconds if hit else None)

    return entry, CompileTimes(
        times("train_step", entry.train.seconds), times("eval_step", entry.evaluate.seconds)
    )


def _build(build: Callable[[], Entry]) -> tuple[Entry, Events]:
    jax.clear_caches()
    with listening() as events:
        return build(), events
