"""What a run leaves behind, and that padding, devices and mishaps do not spoil it."""

import dataclasses
import json
import math
import os
import shutil
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from barter_jax.core import accounting
from barter_jax.core.topology import UNITS
from barter_jax.deploy import model as compact
from barter_jax.errors import RunError, UserError
from barter_jax.training import clock, console, loop
from tests.training import commands, tiny
from tests.training.tiny import ONE_SHAPE


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    directory = tmp_path_factory.mktemp("run")
    summary = tiny.train(tiny.config(log__tensorboard=True), directory)
    return directory, summary


def test_the_summary_says_what_came_of_it(run):
    directory, summary = run
    assert json.loads((directory / "summary.json").read_text()) == summary
    plan = tiny.blueprint(tiny.config())
    assert summary["steps"] == 12
    assert summary["planned"] == summary["moved"] == {"heads": 2, "channels": 5}
    assert summary["updates"] == 2
    assert summary["compiled"]["shapes"] >= 3
    assert summary["parameters"] == accounting.parameters(plan.dims, plan.initial)
    flops = accounting.training_flops(plan.dims, plan.initial)
    assert summary["training_gflops_per_image"] == pytest.approx(flops / 1e9)
    assert summary["test"].keys() == {"loss", "accuracy", "macro_f1", "images"}
    assert summary["test"]["images"] == 359
    seconds = summary["seconds"]
    kinds = {"start", "compile", "update", "evaluation", "checkpoint", "data", "step"}
    assert seconds.keys() == kinds | {"total"}
    assert seconds["total"] == pytest.approx(sum(seconds[kind] for kind in kinds), abs=0.01)
    assert all(value >= 0 for value in seconds.values()) and seconds["step"] > 0


def test_the_best_evaluation_is_the_model_and_the_checkpoint(run):
    directory, summary = run
    validation = [
        row for row in tiny.rows(directory, "metrics.jsonl") if row["split"] == "validation"
    ]
    best = max(validation, key=lambda row: (row["accuracy"], -row["step"]))
    assert summary["best"]["step"] == best["step"]
    assert summary["best"]["validation"] == tiny.without(best, "step", "split")
    assert summary["final"]["step"] == validation[-1]["step"] == 12
    assert summary["final"]["validation"] == tiny.without(validation[-1], "step", "split")
    _, books = tiny.saved(tiny.config(), directory)
    stored = json.loads((directory / "config.json").read_text())["config"]
    assert books.config == stored and stored["log"]["tensorboard"] is True
    model = compact.load(directory)
    assert model.card.step == best["step"]
    assert summary["model_topology"] == model.topology.to_json()
    state, books = tiny.saved(tiny.config(), directory, best["step"])
    assert books.progress.topology == model.topology
    jax.tree.map(np.testing.assert_array_equal, state.params, jax.device_get(model.params))
    _, last = tiny.saved(tiny.config(), directory)
    assert last.step == 12
    assert (last.best.step, last.best.accuracy) == (best["step"], best["accuracy"])
    assert summary["topology"] == last.progress.topology.to_json()


def test_the_metrics_are_finite_and_complete(run):
    rows = tiny.rows(run[0], "metrics.jsonl")
    names = {
        "train": {"loss", "accuracy", "gradient_norm", "learning_rate", "images_per_second"},
        "validation": {"loss", "accuracy", "macro_f1", "images"},
        "test": {"loss", "accuracy", "macro_f1", "images"},
    }
    for row in rows:
        assert row.keys() == names[row["split"]] | {"step", "split"}
        assert all(math.isfinite(v) for k, v in row.items() if k != "split")
    assert [row["step"] for row in rows] == sorted(row["step"] for row in rows)
    # Every step of the log's window counts once: the means of 12 steps are those of 5, 5 and 2.
    assert [row["step"] for row in rows if row["split"] == "train"] == [5, 10, 12]


def test_each_row_of_the_topology_log_keeps_the_budget(run):
    rows = tiny.rows(run[0], "topology.jsonl")
    plan = tiny.blueprint(tiny.config())
    before = plan.initial
    for step in tiny.UPDATES_AT:
        here = [row for row in rows if row["step"] == step]
        assert [row["unit"] for row in here] == list(UNITS)
        for row in here:
            unit, counts = row["unit"], row["counts"]
            assert row["planned"] == row["moved"] == len(row["donors"]) == len(row["parents"])
            assert row["carried"] == 0
            wanted = list(before.of(unit))
            wanted[row["receiver"]] += row["moved"]
            for layer, index in row["donors"]:
                assert layer != row["receiver"] and 0 <= index < before.of(unit)[layer]
                wanted[layer] -= 1
            assert all(0 <= i < before.of(unit)[row["receiver"]] for i in row["parents"])
            assert counts[unit] == wanted
            assert sum(counts[unit]) == plan.initial.budget.of(unit)
            assert row["padded"] == counts
            assert 0 <= row["compile_seconds"] <= row["stall_seconds"]
            assert row["compiled_ahead"] in (True, False)
        before = type(before).from_json(here[-1]["counts"])
    assert len(rows) == 4


def test_other_files_are_there(run):
    directory, _ = run
    (events,) = (directory / "tensorboard").iterdir()
    assert b"validation/macro_f1" in events.read_bytes()
    config = json.loads((directory / "config.json").read_text())
    assert config["config"]["topology"]["total_heads"] == 2
    assert not [p for p in directory.rglob(".*") if p.name != ".lock"]


def test_what_cannot_move_is_carried_and_reported(tmp_path):
    """Ten channels a layer at most: three have room, whatever is planned."""
    config = tiny.config(topology__total_channels=28, topology__max_channels=10, **ONE_SHAPE)
    summary = tiny.train(config, tmp_path)
    rows = [r for r in tiny.rows(tmp_path, "topology.jsonl") if r["unit"] == "channels"]
    carried = 0
    for row, planned in zip(rows, (19, 9), strict=True):
        assert row["planned"] == planned + carried
        carried = row["planned"] - row["moved"]
        assert row["carried"] == carried > 0
        assert max(row["counts"]["channels"]) <= 10
        assert sum(row["counts"]["channels"]) == 14
    assert summary["planned"]["channels"] == 28
    assert summary["moved"]["channels"] == sum(row["moved"] for row in rows) == 28 - carried


def test_padding_changes_no_decision(run, tmp_path):
    """The whole loop in tensors that hold every layer at its largest, and in exact ones."""
    config = tiny.config(log__tensorboard=True, **ONE_SHAPE)
    tiny.train(config, tmp_path)
    padded, exact = tiny.outcome(config, tmp_path), tiny.outcome(tiny.config(), run[0])
    tiny.assert_close(padded, exact)
    for row in padded["topology"]:
        assert row["padded"] == {"heads": [4, 4], "channels": [12, 12]}
    # What is left of the padding in model and checkpoint: nothing.
    model = compact.load(tmp_path)
    for i, (heads, channels) in enumerate(
        zip(model.topology.heads, model.topology.channels, strict=True)
    ):
        block = model.params[f"block_{i}"]
        assert block["attention"]["out"]["kernel"].shape[0] == heads
        assert block["mlp"]["fc2"]["kernel"].shape[0] == channels
    assert json.loads((tmp_path / "summary.json").read_text())["compiled"]["shapes"] == 1


def test_only_what_every_step_takes_is_charged_to_the_steps(tmp_path, monkeypatch):
    """Not what comes before the first one, nor the compiling that its first call does."""
    now = [0.0]
    monkeypatch.setattr(clock, "time", types.SimpleNamespace(perf_counter=lambda: now[0]))

    def takes(owner, name, *seconds):
        original, left = getattr(owner, name), list(seconds)

        def slow(*args, **kwargs):
            now[0] += left.pop(0)
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, name, slow)

    takes(loop.state_lib, "initial", 20_000)
    takes(loop.Journal, "__init__", 100)
    takes(loop.Run, "_greet", 1000)
    takes(loop.Inputs, "prepare", 10, *[1] * (tiny.STEPS - 1))
    takes(compact, "load", 5000)
    seconds = tiny.train(tiny.config(), tmp_path)["seconds"]
    assert {kind: value for kind, value in seconds.items() if value} == {
        "start": 21_100,
        "compile": 10,
        "step": tiny.STEPS - 1,
        "evaluation": 5000,
        "total": 21_110 + tiny.STEPS - 1 + 5000,
    }


def test_static_moves_nothing(tmp_path):
    config = tiny.config(method="static", **ONE_SHAPE)
    summary = tiny.train(config, tmp_path)
    assert (tmp_path / "topology.jsonl").read_text() == ""
    assert summary["topology"] == tiny.blueprint(config).initial.to_json()
    assert (summary["updates"], summary["moved"]) == (0, {"heads": 0, "channels": 0})


# --- devices -----------------------------------------------------------------------------------

TWO_DEVICES = {"XLA_FLAGS": f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=2"}


def command(directory, **overrides):
    fields = [f"--config.{k.replace('__', '.')}={v}" for k, v in overrides.items()]
    return "barter_jax.main", f"--config={tiny.CONFIG_FILE}", f"--workdir={directory}", *fields


def test_two_devices_come_to_the_same_as_one(tmp_path):
    config = tiny.config(**ONE_SHAPE)
    tiny.train(config, tmp_path / "one")
    result = commands.run(*command(tmp_path / "two", **ONE_SHAPE), **TWO_DEVICES)
    assert result.code == 0, result.stderr
    assert "cpu x2" in result.stderr
    one, two = tiny.outcome(config, tmp_path / "one"), tiny.outcome(config, tmp_path / "two")
    tiny.assert_close(two, one)
    assert two["model"] != b"" and two["books"]["data"] == one["books"]["data"]


@pytest.mark.parametrize("field", ["batch_size", "eval_batch_size"])
def test_batches_must_split_over_the_devices(field, tmp_path):
    result = commands.run(*command(tmp_path / "run", **{f"train__{field}": 15}), **TWO_DEVICES)
    commands.assert_refused(result, f"config.train.{field}=15", "2 devices")
    assert not (tmp_path / "run").exists()


# --- mishaps -----------------------------------------------------------------------------------


def everything_is_finite(config, directory):
    """No trace of a number that is none, neither in the log nor in what can be loaded."""
    text = (directory / "metrics.jsonl").read_text()
    assert "NaN" not in text and "Infinity" not in text
    if (directory / "model").exists():
        model = compact.load(directory)
        assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(model.params))
    if any((directory / "checkpoints").iterdir()):
        state, _ = tiny.saved(config, directory)
        for leaf in jax.tree.leaves((state.params, state.opt_state)):
            assert np.all(np.isfinite(leaf))


EXPLODING = {
    "optimizer__learning_rate": 1e30,
    "optimizer__warmup_fraction": 0.0,
    "topology__updates": 0,
    **ONE_SHAPE,
}


@pytest.mark.parametrize("log_every", [1, 100])
def test_divergence_ends_the_run_and_spoils_nothing(log_every, tmp_path):
    """The loss is no number from the second step on; the first evaluation comes at the fourth."""
    config = tiny.config(log__every_steps=log_every, checkpoint__every_steps=100, **EXPLODING)
    with pytest.raises(RunError, match=r"diverged at step 2.*config.optimizer.learning_rate"):
        tiny.train(config, tmp_path)
    everything_is_finite(config, tmp_path)
    assert not (tmp_path / "summary.json").exists()


def test_divergence_is_one_line_of_the_command(tmp_path):
    fields = {**EXPLODING, "log__every_steps": 1, "checkpoint__every_steps": 1}
    result = commands.run(*command(tmp_path, **fields))
    assert result.code == 1
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    last = result.stderr.splitlines()[-1]
    assert last.startswith("error: training diverged at step 2")
    assert "config.optimizer.clip_norm" in last


@pytest.mark.parametrize("due", ["checkpoint", "evaluation"])
def test_a_spoilt_state_does_not_replace_the_last_good_one(due, tmp_path, monkeypatch):
    """Step 6 overflows in its backward pass: its loss is finite, its parameters are not."""
    every = {"checkpoint": {"checkpoint__every_steps": 3}, "evaluation": {}}[due]
    every |= {"train__eval_every_steps": 100 if due == "checkpoint" else 2}
    config = tiny.config(log__every_steps=4, **every, **ONE_SHAPE)
    original = tiny.remembered

    def spoiling(physical, **arguments):
        entry = original(physical, **arguments)

        def train(state, *batch):
            state, values = entry.train(state, *batch)
            if int(state.step) == 6:
                params = jax.tree.map(lambda leaf: leaf * jnp.nan, state.params)
                state = state._replace(params=params)
                values = {**values, "gradient_norm": jnp.float32(jnp.inf)}
            return state, values

        return dataclasses.replace(entry, train=_Callable(train, entry.train.seconds))

    monkeypatch.setattr(tiny, "remembered", spoiling)
    with pytest.raises(RunError, match="diverged"):
        tiny.train(config, tmp_path)
    everything_is_finite(config, tmp_path)
    assert tiny.saved(config, tmp_path)[1].step in (3, 4)


@dataclasses.dataclass
class _Callable:
    call: object
    seconds: float

    def __call__(self, *args):
        return self.call(*args)


def test_scores_that_are_no_numbers_are_divergence(tmp_path, monkeypatch):
    def decide(self, *_):
        raise FloatingPointError("pruning scores of the heads of layer 1")

    monkeypatch.setattr("barter_jax.core.barter.Barter.decide", decide)
    with pytest.raises(RunError, match="diverged at step 3: pruning scores of the heads"):
        tiny.train(tiny.config(**ONE_SHAPE), tmp_path)


def test_a_model_lost_before_the_end_is_made_again(tmp_path, monkeypatch):
    """From the best checkpoint, to the same bytes; the step of another evaluation will not do."""
    config = tiny.config(**ONE_SHAPE)
    summary = tiny.train(config, tmp_path / "kept")
    wanted = (tmp_path / "kept" / "model" / compact.FILE).read_bytes()
    original = loop.Run.finish

    def lose(self):
        (self.directory / "model" / compact.FILE).unlink()
        return original(self)

    def misdate(self):
        model = compact.load(self.directory)
        card = dataclasses.replace(model.card, step=model.card.step + 1)
        compact.save(self.directory / "model", card, model.params)
        return original(self)

    for name, harm in {"lost": lose, "misdated": misdate}.items():
        monkeypatch.setattr(loop.Run, "finish", harm)
        assert tiny.train(config, tmp_path / name)["test"] == summary["test"]
        assert (tmp_path / name / "model" / compact.FILE).read_bytes() == wanted


def test_a_best_checkpoint_that_is_missing_is_named(tmp_path, monkeypatch):
    original = loop.Run.finish

    def finish(self):
        self.best = dataclasses.replace(self.best, step=self.best.step + 1)
        return original(self)

    monkeypatch.setattr(loop.Run, "finish", finish)
    with pytest.raises(RunError, match=r"checkpoints/\d+ is missing"):
        tiny.train(tiny.config(**ONE_SHAPE), tmp_path)
    assert not (tmp_path / "summary.json").exists()


def test_a_model_removed_from_a_finished_run_is_made_again(tmp_path):
    config = tiny.config(**ONE_SHAPE)
    summary = tiny.train(config, tmp_path)
    wanted = (tmp_path / "model" / compact.FILE).read_bytes()
    metrics = (tmp_path / "metrics.jsonl").read_text()
    shutil.rmtree(tmp_path / "model")
    again = tiny.train(config, tmp_path)
    assert (tmp_path / "model" / compact.FILE).read_bytes() == wanted
    assert again["test"] == summary["test"]
    assert (tmp_path / "metrics.jsonl").read_text() == metrics


def test_units_that_can_never_move_are_told(tmp_path, caplog, monkeypatch):
    said = []
    monkeypatch.setattr(console.Console, "say", lambda self, text: said.append(text))
    summary = tiny.train(tiny.config(density=1.0, **ONE_SHAPE), tmp_path)
    assert summary["moved"] == {"heads": 0, "channels": 0}
    for unit, planned in summary["planned"].items():
        assert any(line.startswith(f"no {unit} can move") for line in said)
        assert f"moved 0 of the {planned} planned {unit}" in said


def test_the_summary_is_the_one_document_on_stdout(tmp_path):
    args = [f"--config={tiny.CONFIG_FILE}", f"--workdir={tmp_path}", "--json"]
    args += ["--config.topology.updates=0", "--config.train.steps=2"]
    for _ in range(2):  # a finished run prints it too
        result = commands.run("barter_jax.main", *args)
        assert result.code == 0
        assert json.loads(result.stdout) == json.loads((tmp_path / "summary.json").read_text())


def test_a_damaged_summary_is_told_and_can_be_written_again(tmp_path):
    config = tiny.config(**ONE_SHAPE)
    summary = tiny.train(config, tmp_path)
    (tmp_path / "summary.json").write_text('{"steps": 1')
    with pytest.raises(UserError, match="summary.json cannot be read: remove it"):
        tiny.train(config, tmp_path)
    (tmp_path / "summary.json").unlink()
    assert tiny.train(config, tmp_path)["test"] == summary["test"]
