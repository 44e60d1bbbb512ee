"""Tiny runs in this process, and all that a run leaves behind, for comparison."""

from __future__ import annotations

import functools
import json
import pathlib
from typing import Any
from unittest import mock

import numpy as np

from barter_jax import blueprint as blueprint_lib
from barter_jax import config as config_lib
from barter_jax.training import loop, optimizer
from barter_jax.training import state as state_lib
from barter_jax.training.checkpoint import Bookkeeping, Checkpoints, named_leaves
from barter_jax.training.compiled import compile_entry
from tests.training import tiny_config

CONFIG_FILE = pathlib.Path(tiny_config.__file__)
STEPS = 12
UPDATES_AT = (3, 8)
NUM_CLASSES, NUM_TRAIN = 10, 1366
# One padded shape, of the whole model, serves every topology that the run can come to.
ONE_SHAPE = {"bucket__heads": 4, "bucket__channels": 12}


def config(**overrides):
    """The tiny config; `train__steps=3` sets `train.steps`."""
    c = tiny_config.get_config()
    c.update_from_flattened_dict({k.replace("__", "."): v for k, v in overrides.items()})
    config_lib.validate(c)
    return c


def blueprint(c):
    return blueprint_lib.make(c, NUM_CLASSES, NUM_TRAIN)


def train(c, directory, overwrite: bool = False) -> dict[str, Any]:
    """`loop.train`, with what a config alone decides made once for all the tests of a process.

    These are the compiled steps and the optimizer: JAX knows what it has compiled by the function,
    and a new optimizer has new ones.
    """
    with (
        mock.patch.object(loop, "compile_entry", remembered),
        mock.patch.object(optimizer, "make", optimized),
    ):
        return loop.train(c, pathlib.Path(directory), overwrite)


_make_optimizer = optimizer.make
_entries: dict[str, Any] = {}
_optimizers: dict[str, Any] = {}


def optimized(section, total_steps):
    key = json.dumps([config_lib.flatten(section), total_steps])
    if key not in _optimizers:
        _optimizers[key] = _make_optimizer(section, total_steps)
    return _optimizers[key]


# What the compiled steps depend on, besides the padded counts.
COMPILED_IN = (
    "data.image_size",
    "model.",
    "train.steps",
    "train.batch_size",
    "train.eval_batch_size",
    "train.micro_batches",
    "train.ema_decay",
    "optimizer.",
    "topology.moments",
    "topology.warmup_steps",
    "scores.",
    "masked.",
)


def remembered(physical, *, config, **rest):
    fixed = {k: v for k, v in config_lib.flatten(config).items() if k.startswith(COMPILED_IN)}
    # Without a planned update the step keeps no statistics.
    observed = bool(rest["barter"].schedule)
    masked = [config.method, config.density] if rest["blueprint"].masked else None
    key = json.dumps([fixed, observed, masked, physical.to_json()])
    if key not in _entries:
        _entries[key] = compile_entry(physical, config=config, **rest)
    return _entries[key]


def rows(directory, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / name).read_text().splitlines()]


def saved(c, directory, step: int | None = None) -> tuple[state_lib.TrainState, Bookkeeping]:
    """What a checkpoint, the latest by default, holds."""
    checkpoints = Checkpoints(directory / "checkpoints", 1)
    try:
        step = checkpoints.latest_step() if step is None else step
        books = checkpoints.read_bookkeeping(step)
        plan = blueprint(c)
        tx = optimizer.make(c.optimizer, plan.total_steps)
        template = state_lib.abstract(plan, tx, books.progress.topology)
        return checkpoints.restore(step, template), books
    finally:
        checkpoints.close()


def outcome(c, directory) -> dict[str, Any]:
    """All that a run computed, without what the clock says: equal for equal runs, bit by bit."""
    state, books = saved(c, directory)
    summary = json.loads((directory / "summary.json").read_text())
    arrays = {
        name: (array.dtype.str, array.shape, array.tobytes())
        for name, array in named_leaves(state).items()
    }
    return {
        "arrays": arrays,
        # Configs of equal runs may differ in how they are run.
        "books": without(books.to_json(), "seconds", "config"),
        "metrics": [without(row, "images_per_second") for row in rows(directory, "metrics.jsonl")],
        "topology": [
            without(row, "compile_seconds", "stall_seconds", "compiled_ahead")
            for row in rows(directory, "topology.jsonl")
        ],
        "model": (directory / "model" / "model.safetensors").read_bytes(),
        "summary": without(summary, "seconds", "compiled", "data_wait"),
    }


def assert_same(got: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Names the part in which two outcomes differ."""
    for part, value in wanted.items():
        if part in ("arrays", "books", "summary"):
            differing = [k for k in value if got[part].get(k) != value[k]]
            assert not differing, (part, differing)
        assert got[part] == value, part


def assert_close(got: dict[str, Any], wanted: dict[str, Any], rtol: float = 2e-3) -> None:
    """Equal decisions and counts, and equal floats but for rounding."""
    assert got["topology"] == wanted["topology"] or strip_padded(got) == strip_padded(wanted)
    assert len(got["metrics"]) == len(wanted["metrics"])
    for a, b in zip(got["metrics"], wanted["metrics"], strict=True):
        assert a.keys() == b.keys()
        for key, value in b.items():
            if isinstance(value, str):
                assert a[key] == value
            else:
                # One image may fall to the other side.
                slack = 0.02 if key in ("accuracy", "macro_f1") else 1e-4
                np.testing.assert_allclose(a[key], value, rtol=rtol, atol=slack, err_msg=key)
    assert got["arrays"].keys() == wanted["arrays"].keys()
    for name, (dtype, shape, _) in wanted["arrays"].items():
        assert got["arrays"][name][:2] == (dtype, shape), name


def strip_padded(result: dict[str, Any]) -> list[dict[str, Any]]:
    # Other padding may round the last digit of a score.
    return [without(row, "padded", "scores") for row in result["topology"]]


def without(row: dict[str, Any], *names: str) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key not in names}


class Crash(BaseException):
    """Stands for a killed process."""


def crash_on_call(monkeypatch, owner, name: str, call: int, when=lambda *args: True) -> None:
    """The `call`-th call of a function or method (for which `when`) raises `Crash`, once."""
    original = getattr(owner, name)
    count = 0

    @functools.wraps(original)
    def wrapped(*args, **kwargs):
        nonlocal count
        if when(*args):
            count += 1
            if count == call:
                raise Crash
        return original(*args, **kwargs)

    monkeypatch.setattr(owner, name, wrapped)


def snapshot(directory) -> dict[str, bytes]:
    """The files of a directory and their bytes."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }
