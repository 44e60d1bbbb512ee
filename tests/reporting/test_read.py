"""Work directories in every state."""

import fcntl
import math

import numpy as np
import pytest

from barter_jax.core.topology import Topology
from barter_jax.deploy import model as compact
from barter_jax.reporting.read import BROKEN, FINISHED, RUNNING, STOPPED, read
from tests.reporting import made


def test_a_finished_run(tmp_path):
    config = made.small(method="static", density=0.5, seed=3)
    run = read(made.write(tmp_path / "run", config, 0.6, updates=made.topology()))
    assert (run.status, run.problems) == (FINISHED, ())
    assert (run.method, run.density, run.seed) == ("static", 0.5, 3)
    assert run.config["train.batch_size"] == 8 and run.nested == config
    assert run.versions == made.VERSIONS
    assert (run.step, run.total_steps, run.progress) == (10, 10, "10 steps")
    assert run.test["accuracy"] == 0.6
    assert [len(run.rows[split]) for split in ("train", "validation", "test")] == [10, 2, 1]
    assert run.best_validation["step"] == 5
    assert len(run.updates) == 3
    assert run.seconds == made.SECONDS
    assert run.host is None and run.command is None


def test_a_stopped_run(tmp_path):
    directory = made.write(tmp_path / "run", made.small(train__steps=40))
    # What a killed process leaves of its last line.
    with (directory / "metrics.jsonl").open("a") as file:
        file.write('{"step": 11, "split": "tra')
    run = read(directory)
    assert (run.status, run.problems) == (STOPPED, ())
    assert (run.step, run.progress) == (10, "step 10 of 40")
    assert run.test == {} and run.seconds == {}


def test_a_running_run(tmp_path):
    directory = made.write(tmp_path / "run", made.small(), metrics=[])
    with (directory / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        run = read(directory)
        # Nothing is logged yet: no sign of damage while it runs.
        assert (run.status, run.problems, run.progress) == (RUNNING, (), "step 0 of 10")
    assert read(directory).status == BROKEN


@pytest.mark.parametrize(
    ("overrides", "document", "total"),
    [
        ({"train__steps": None, "train__epochs": 3, "data__num_train": 100}, {}, 3 * 12),
        (
            {
                "train__steps": None,
                "train__epochs": 3,
                "data__num_train": 100,
                "train__passes_per_epoch": 0.5,
            },
            {},
            3 * 6,
        ),
        # Evaluated once an epoch, first at step 5.
        ({"train__steps": None, "train__epochs": 3}, {}, 3 * 5),
        ({"train__steps": None, "train__epochs": 3, "train__eval_every_steps": 5}, {}, None),
        ({"train__steps": None, "train__eval_every_steps": 5}, {"total_steps": 77}, 77),
        ({"train__match_flops_of": "dense"}, {}, None),
    ],
)
def test_steps_to_come(tmp_path, overrides, document, total):
    config = made.small()
    for name, value in overrides.items():
        section, _, field = name.partition("__")
        config[section][field] = value
    run = read(made.write(tmp_path / "run", config, **document))
    assert run.total_steps == total
    assert run.progress == ("step 10" if total is None else f"step 10 of {total}")


NO_METRICS = "metrics.jsonl is missing, or has no line that can be read"


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("config.json", None, "config.json is missing"),
        ("config.json", '{"config": ', "config.json cannot be read"),
        ("config.json", "[]", "config.json holds no JSON object"),
        ("config.json", '{"config": 3, "versions": {}}', "config.json holds no config"),
        ("config.json", b"\xff\xfe", "config.json cannot be read"),
        ("metrics.jsonl", None, NO_METRICS),
        ("metrics.jsonl", "", NO_METRICS),
        ("metrics.jsonl", 'no\n{"step": 1, "split": "train"}\n', "metrics.jsonl, line 1: unread"),
        (
            "metrics.jsonl",
            '{"step": 3, "split": "train", "loss": NaN}\n',
            "not finite, first at step 3",
        ),
        ("metrics.jsonl", '{"step": 3, "split": ["x"]}\n3\n', NO_METRICS),
        ("topology.jsonl", '{"step": 3}\n', "topology.jsonl has 1 lines without an update"),
        ("topology.jsonl", 'x\n{"step"\n', "topology.jsonl, line 1: unreadable"),
        ("summary.json", '{"steps": 1', "summary.json cannot be read"),
    ],
)
def test_damage(tmp_path, name, text, problem):
    directory = made.write(tmp_path / "run", made.small(train__steps=40))
    (directory / name).unlink(missing_ok=True)
    if text is not None:
        (directory / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    run = read(directory)
    assert run.status == BROKEN
    assert any(problem in found for found in run.problems), run.problems


def test_a_run_that_failed_in_a_sweep(tmp_path):
    directory = made.write(tmp_path / "run", made.small(train__steps=40))
    failure = tmp_path / "run.failed.json"
    failure.write_text('{"exit_code": 1, "error": "error: the loss is nan"}')
    run = read(directory)
    assert run.status == BROKEN
    assert run.problems == ("the last start failed: error: the loss is nan",)
    failure.write_text('{"exit_code": 1')
    assert read(directory).status == STOPPED


def test_a_test_value_that_is_not_finite(tmp_path):
    found = made.summary(0.5, 0.5, test={"accuracy": math.nan, "macro_f1": 0.5})
    run = read(made.write(tmp_path / "run", made.small(), summary_=found))
    assert run.status == FINISHED
    assert run.problems == ("summary.json: test accuracy is not finite",)


def test_another_version(tmp_path):
    """Keys that are missing, and keys that this version does not know."""
    config = {"method": "sculpt", "model": {"name": "vit"}, "new": {"deep": {"er": [1, 2]}}}
    run = read(made.write(tmp_path / "run", config, summary_={"test": {}, "seconds": "soon"}))
    assert (run.status, run.method) == (FINISHED, "sculpt")
    assert (run.seed, run.density, run.total_steps) == (None, None, 10)  # all is done
    assert run.config["new.deep.er"] == [1, 2]
    assert run.test == {} and run.seconds == {}


def test_wrong_types_are_as_good_as_missing(tmp_path):
    config = {"method": 3, "density": "low", "seed": "x", "train": {"steps": "many"}}
    summary = {"steps": "many", "test": [1], "seconds": {"step": "x", "data": 1.0}}
    run = read(made.write(tmp_path / "run", config, summary_=summary))
    assert (run.method, run.density, run.seed, run.total_steps) == (None, None, None, 10)
    assert run.test == {} and run.seconds == {"data": 1.0}


def test_the_model_card(tmp_path):
    directory = made.write(tmp_path / "run", made.small(), 0.5)
    card = compact.Card(
        model="vit",
        model_config={**{k: v for k, v in made.small()["model"].items() if k != "name"}},
        topology=Topology((1, 2), (3, 4)),
        labels=("a", "b"),
        image_size=8,
        mean=(0.0,) * 3,
        std=(1.0,) * 3,
        step=5,
        metrics={},
    )
    compact.save(directory / "model", card, {"x": np.zeros(1, np.float32)})
    assert read(directory).card == card
    (directory / "model" / compact.FILE).write_bytes(b"damaged")
    run = read(directory)
    assert run.card is None and "model.safetensors" in run.problems[0]
    assert run.status == FINISHED


def test_nothing_is_written(tmp_path):
    directory = made.write(tmp_path / "run", made.small(), 0.5)
    before = {path.name: path.read_bytes() for path in directory.iterdir()}
    read(directory)
    assert {path.name: path.read_bytes() for path in directory.iterdir()} == before
