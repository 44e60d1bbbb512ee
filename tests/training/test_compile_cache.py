"""Compiled code on disk: loaded by the next process, bounded, and never a reason to fail."""

import json
import os
from pathlib import Path

import filelock
import jax
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache

from barter_jax.training import compile_cache
from tests.training import commands, tiny

SETTINGS = (
    "jax_compilation_cache_dir",
    "jax_compilation_cache_max_size",
    "jax_enable_compilation_cache",
    "jax_persistent_cache_min_compile_time_secs",
)


@pytest.fixture
def unset():
    """A process in which nobody has chosen a cache yet; everything is put back afterwards."""
    before = {name: getattr(jax.config, name) for name in SETTINGS}
    try:
        jax.config.update("jax_compilation_cache_dir", None)
        compilation_cache.reset_cache()
        yield
    finally:
        compile_cache._given = None
        for name, value in before.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()


@pytest.fixture
def warnings(monkeypatch):
    said = []
    monkeypatch.setattr(compile_cache.log, "warning", lambda form, *args: said.append(form % args))
    return said


def compile_anew(n: int):
    """Compiles a function of its own for each n, however often it was compiled before."""
    jax.clear_caches()
    return jax.jit(lambda x: x * n + n)(np.ones(n, np.float32)).block_until_ready()


def entries(directory):
    return sorted(path.name for path in directory.iterdir() if path.name.endswith("-cache"))


# --- where ----------------------------------------------------------------------------------------


def test_the_directory_given_is_used(unset, tmp_path, warnings):
    compile_cache.set_up(True, str(tmp_path / "a" / "b"), max_mb=3)
    assert jax.config.jax_compilation_cache_dir == str(tmp_path / "a" / "b")
    assert jax.config.jax_compilation_cache_max_size == 3 * 2**20
    counter = compile_cache.Counter()
    compile_anew(3)
    compile_anew(3)
    assert entries(tmp_path / "a" / "b")
    totals = counter.totals()
    assert totals["cache_hits"] == totals["cache_misses"] > 0
    assert warnings == []
    assert (tmp_path / "a" / "b").stat().st_mode & 0o077 == 0, "others might put code there"
    # Another run of the same process, with other settings.
    compile_cache.set_up(True, str(tmp_path / "c"))
    compile_anew(4)
    assert entries(tmp_path / "c")
    compile_cache.set_up(False)
    assert jax.config.jax_compilation_cache_dir is None
    before = entries(tmp_path / "c")
    compile_anew(5)
    assert entries(tmp_path / "c") == before


def test_it_is_found_where_caches_are_kept(unset, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert compile_cache.default_directory() == tmp_path / "xdg" / "barter_jax" / "xla"
    compile_cache.set_up()
    assert jax.config.jax_compilation_cache_dir == str(compile_cache.default_directory())
    assert (tmp_path / "xdg" / "barter_jax" / "xla").is_dir()
    for ignored in ("", "relative/path"):
        monkeypatch.setenv("XDG_CACHE_HOME", ignored)
        expected = tmp_path / "home" / ".cache" / "barter_jax" / "xla"
        assert compile_cache.default_directory() == expected


def test_a_cache_that_the_caller_has_chosen_is_left_alone(unset, tmp_path):
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "theirs"))
    before = {name: getattr(jax.config, name) for name in SETTINGS}
    compile_cache.set_up(True, str(tmp_path / "ours"))
    compile_cache.set_up(False)
    assert {name: getattr(jax.config, name) for name in SETTINGS} == before
    assert not (tmp_path / "ours").exists()


@pytest.mark.parametrize("enabled", [True, False])
def test_off_is_off(enabled, unset, tmp_path):
    """By this project's field, or by JAX's own."""
    jax.config.update("jax_enable_compilation_cache", not enabled)
    compile_cache.set_up(enabled, str(tmp_path / "cache"))
    assert jax.config.jax_compilation_cache_dir is None
    assert not (tmp_path / "cache").exists()


# --- what can be wrong with it --------------------------------------------------------------------


def check_refused(directory, warnings, reason):
    compile_cache.set_up(True, str(directory))
    (said,) = warnings
    assert reason in said and str(directory) in said and "config.compile_cache.dir" in said
    assert jax.config.jax_compilation_cache_dir is None
    compile_anew(3)


@pytest.mark.parametrize("below", [".", "deeper"])
def test_a_file_in_its_place_is_told(below, unset, tmp_path, warnings):
    (tmp_path / "file").write_text("mine")
    check_refused(tmp_path / "file" / below, warnings, "")
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_directory_that_cannot_be_written_is_told(unset, tmp_path, warnings):
    (tmp_path / "closed").mkdir(mode=0o500)
    check_refused(tmp_path / "closed", warnings, "Permission denied")


def test_a_file_system_without_locks_is_told(unset, tmp_path, warnings, monkeypatch):
    def acquire(self, *_, **__):
        raise NotImplementedError(f"{tmp_path}: no flock here")

    monkeypatch.setattr(filelock.FileLock, "acquire", acquire)
    check_refused(tmp_path, warnings, "no flock here")


def test_nobody_at_home_is_told(unset, warnings, monkeypatch):
    def home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", home)
    compile_cache.set_up()
    assert "home directory" in warnings[0]


def test_a_directory_in_use_is_shared(unset, tmp_path, warnings, monkeypatch):
    monkeypatch.setattr(compile_cache, "LOCK_SECONDS", 0.05)
    with filelock.FileLock(tmp_path / ".lockfile"):
        compile_cache.set_up(True, str(tmp_path))
    assert jax.config.jax_compilation_cache_dir == str(tmp_path)
    assert warnings == []


def test_what_a_killed_process_left_is_removed(unset, tmp_path):
    """JAX writes the entry, then the time beside it, without which it cannot make room."""
    torn, whole = ("jit_f-" + digit * 64 for digit in "ab")
    other = "my-cache"
    for name in (f"{torn}-cache", f"{whole}-cache", f"{whole}-atime", other):
        (tmp_path / name).write_bytes(b"12345678")
    compile_cache.set_up(True, str(tmp_path))
    found = {path.name for path in tmp_path.iterdir()}
    assert found == {f"{whole}-cache", f"{whole}-atime", other, ".lockfile"}


@pytest.mark.filterwarnings("error")  # JAX's answer to a cache that does not work
def test_the_size_is_bounded(unset, tmp_path):
    compile_cache.set_up(True, str(tmp_path), max_mb=2048)
    compile_anew(3)
    (first,) = [name for name in entries(tmp_path) if "lambda" in name]
    size = sum((tmp_path / name).stat().st_size for name in entries(tmp_path))
    compile_cache.set_up(True, str(tmp_path), max_mb=2.5 * size / 2**20)
    for n in range(4, 9):
        compile_anew(n)
        total = sum((tmp_path / name).stat().st_size for name in entries(tmp_path))
        assert 0 < total <= 2.5 * size
    assert first not in entries(tmp_path)


# --- runs -----------------------------------------------------------------------------------------


# Five steps and one update: two shapes.
SHORT = ("train.steps=5", "topology.updates=1", "executables.ahead=False")


def run(directory, *fields):
    """A process of its own, which has been told nothing of a cache by its environment."""
    environment = {
        "JAX_COMPILATION_CACHE_DIR": None,
        # So small a model compiles too fast to be kept otherwise.
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    done = commands.run(
        "barter_jax.main",
        *(f"--config={tiny.CONFIG_FILE}", f"--workdir={directory}"),
        *(f"--config.{field}" for field in (*SHORT, *fields)),
        **environment,
    )
    assert done.code == 0, done.stderr
    return json.loads((directory / "summary.json").read_text())["compiled"], done.stderr


@pytest.mark.slow
def test_a_second_process_compiles_nothing_and_comes_to_the_same(tmp_path):
    cache = tmp_path / "cache"
    first, said = run(tmp_path / "first", f"compile_cache.dir={cache}")
    assert first["cache_hits"] == 0 and first["cache_misses"] > 6
    assert f"compiled code: {first['cache_misses']} compiled, 0 loaded from {cache}" in said
    steps = {"jit_train_step", "jit_eval_step"}
    assert steps <= {name.partition("-")[0] for name in entries(cache)}

    second, said = run(tmp_path / "second", f"compile_cache.dir={cache}")
    assert (second["cache_hits"], second["cache_misses"]) == (first["cache_misses"], 0)
    assert f"compiled code: 0 compiled, {second['cache_hits']} loaded from {cache}" in said
    # Nothing of the compiler's own about the machine that the code was compiled on.
    assert len(said.splitlines()) == len([x for x in said.splitlines() if x[2:3] == ":"])

    # A file is in the way: the run goes on without.
    (tmp_path / "file").write_text("")
    third, said = run(tmp_path / "third", f"compile_cache.dir={tmp_path / 'file'}")
    assert (third["cache_hits"], third["cache_misses"]) == (0, 0)
    assert said.count("compiled code") == 1
    assert "compiled code is not kept" in said

    config = tiny.config(train__steps=5, topology__updates=1)
    outcomes = [tiny.outcome(config, tmp_path / name) for name in ("first", "second", "third")]
    assert outcomes[0]["summary"]["updates"] == 1
    tiny.assert_same(outcomes[1], outcomes[0])
    tiny.assert_same(outcomes[2], outcomes[0])
