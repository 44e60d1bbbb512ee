"""Cold and warm compile times, and JAX's settings left as they were."""

import jax
import jax.numpy as jnp
import pytest

from barter_jax.benchmarking import compiling
from barter_jax.training.executables import Entry, compile_ahead


def build() -> Entry:
    shape = jax.ShapeDtypeStruct((8, 8), jnp.float32)
    return Entry(
        train=compile_ahead(lambda x: jnp.sin(x @ x), (shape,), name="train_step"),
        evaluate=compile_ahead(lambda x: x + 1, (shape,), name="eval_step"),
    )


def cache_settings():
    names = ("jax_compilation_cache_dir", *compiling.CACHE_SETTINGS)
    return {name: getattr(jax.config, name) for name in names}


def test_cold_then_warm():
    before = cache_settings()
    hits = []
    for _ in range(2):  # the second one's cache is empty again
        with compiling.listening() as events:
            entry, times = compiling.timed(build)
        hits.append([[hit for _, hit in events.of(n)] for n in ("train_step", "eval_step")])
        for one in (times.train, times.evaluate):
            assert one.trace_and_lower > 0 and one.cold > 0
            assert one.warm is not None and one.warm > 0
        assert entry.train(jnp.eye(8)).shape == (8, 8), "the executable that is kept can be run"
    assert hits == [[[False, True], [False, True]]] * 2
    assert cache_settings() == before


def test_a_failure_leaves_the_settings_too():
    before = cache_settings()

    def fail():
        raise RuntimeError("no memory")

    with pytest.raises(RuntimeError, match="no memory"):
        compiling.timed(fail)
    assert cache_settings() == before


def test_without_a_hit_there_is_no_warm_time(monkeypatch):
    """As on a backend whose executables cannot be kept on disk."""
    monkeypatch.setitem(compiling.CACHE_SETTINGS, "jax_enable_compilation_cache", False)
    _, times = compiling.timed(build)
    assert times.train.warm is None and times.train.cold > 0
