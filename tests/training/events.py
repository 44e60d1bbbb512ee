"""Counts what JAX compiles."""

import contextlib

import jax

COMPILED = "/jax/core/compile/backend_compile_duration"
_listening: list[list[str]] = []


def _note(event: str, duration: float, **kwargs) -> None:
    if event == COMPILED:
        for events in _listening:
            events.append(event)


jax.monitoring.register_event_duration_secs_listener(_note)


@contextlib.contextmanager
def compilations():
    """A list that grows by one with each compilation (from the disk cache or not)."""
    events: list[str] = []
    _listening.append(events)
    try:
        yield events
    finally:
        _listening.remove(events)
