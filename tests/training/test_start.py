"""Runs that start from a model that was trained before."""

import logging
import shutil

import jax
import numpy as np
import pytest

import barter_jax
from barter_jax import blueprint as blueprint_lib
from barter_jax.config import MASKED_METHODS
from barter_jax.errors import UserError
from barter_jax.training import loop, start
from barter_jax.training import state as state_lib
from barter_jax.training.checkpoint import named_leaves
from tests.training import commands, tiny


@pytest.fixture(scope="module")
def dense(tmp_path_factory):
    """The work directory of a dense run."""
    directory = tmp_path_factory.mktemp("dense")
    tiny.train(tiny.config(method="dense"), directory)
    return directory


def config(dense, **overrides):
    return tiny.config(**{"init__from": str(dense), "init__batches": 3, **overrides})


def first_state(own, tmp_path, monkeypatch):
    """The state with which a run begins."""
    found = {}

    class Enough(BaseException):
        pass

    def stop(self, stop):
        topology = self.progress.topology
        found["state"] = state_lib.repad(self.state, self.barter, self.tx, topology, topology)
        found["next"] = self.inputs.get_state()
        raise Enough

    with monkeypatch.context() as patch:
        patch.setattr(loop.Run, "run", stop)
        with pytest.raises(Enough):
            tiny.train(own, tmp_path)
    return found["state"], found["next"]


def test_at_full_size_a_compact_model_begins_as_the_dense_one(dense, tmp_path, monkeypatch):
    own = config(dense, density=1.0)
    state, position = first_state(own, tmp_path, monkeypatch)
    model = barter_jax.load(dense)
    jax.tree.map(np.testing.assert_array_equal, state.params, model.params)
    assert position == {"next_index": 0}


@pytest.mark.parametrize("selection", ["taylor", "magnitude", "random"])
def test_a_smaller_one_takes_over_units_as_they_are(selection, dense, tmp_path, monkeypatch):
    own = config(dense, init__selection=selection)
    state, position = first_state(own, tmp_path, monkeypatch)
    model = barter_jax.load(dense)
    assert position == {"next_index": 0}, "the batches looked at are trained on all the same"
    small, large = state.params["block_1"]["mlp"], model.params["block_1"]["mlp"]
    kernel = np.asarray(small["fc1"]["kernel"])
    where = [
        int(
            np.flatnonzero(np.all(np.asarray(large["fc1"]["kernel"]) == column[:, None], axis=0))[0]
        )
        for column in kernel.T
    ]
    assert where == sorted(set(where)) and len(where) == 7
    np.testing.assert_array_equal(small["fc2"]["kernel"], np.asarray(large["fc2"]["kernel"])[where])
    for name in ("position", "cls_token"):
        np.testing.assert_array_equal(state.params[name], model.params[name])


@pytest.mark.parametrize("method", MASKED_METHODS)
def test_masked_methods_keep_what_is_largest(method, dense, tmp_path, monkeypatch):
    state, _ = first_state(config(dense, method=method, masked__gamma=0.0), tmp_path, monkeypatch)
    large = {k.replace(".", "/"): v for k, v in named_leaves(barter_jax.load(dense).params).items()}
    for name, leaf in named_leaves(state.params).items():
        name = name.replace(".", "/")
        if name not in state.masks.masks:
            np.testing.assert_array_equal(leaf, large[name])
            continue
        mask, weights = np.asarray(state.masks.masks[name]), np.abs(np.asarray(large[name]))
        np.testing.assert_array_equal(leaf, np.where(mask, large[name], 0))
        if method in ("set", "snfs", "rigl") and "fc" in name:
            assert weights[mask].min() >= weights[~mask].max()


def test_a_run_that_started_so_resumes_to_the_same_bits(dense, tmp_path, monkeypatch):
    own = config(dense, **tiny.ONE_SHAPE)
    tiny.train(own, tmp_path / "whole")
    with monkeypatch.context() as patch:
        tiny.crash_on_call(patch, loop.Run, "update_topology", 2)
        with pytest.raises(tiny.Crash):
            tiny.train(own, tmp_path / "broken")
    tiny.train(own, tmp_path / "broken")
    tiny.assert_same(tiny.outcome(own, tmp_path / "broken"), tiny.outcome(own, tmp_path / "whole"))


def test_other_classes_get_a_new_classifier_and_are_told(dense, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(logging.getLogger("barter_jax"), "propagate", True)
    own = config(dense, density=1.0)
    dataset = blueprint_lib.load_data(own)
    other = type(dataset)(dataset.train, dataset.validation, dataset.test, tuple("abcdefghij"))
    monkeypatch.setattr(blueprint_lib, "load_data", lambda config: other)
    with caplog.at_level(logging.INFO, "barter_jax"):
        state, _ = first_state(own, tmp_path, monkeypatch)
    assert "classifier" in caplog.text
    assert not np.array_equal(
        state.params["classifier"]["kernel"], barter_jax.load(dense).params["classifier"]["kernel"]
    )


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        ({}, False),
        ({"seed": 1}, True),
        ({"data__validation_fraction": 0.1}, True),
    ],
)
def test_that_images_held_out_now_were_trained_on_is_told(overrides, told, dense):
    own = config(dense, density=1.0, **overrides)
    dataset = blueprint_lib.load_data(own)
    plan = blueprint_lib.make(own, len(dataset.class_names), len(dataset.train))
    fitted = start.read(own, plan, dataset.class_names, dataset.identity())
    assert any("were trained on there" in note for note in fitted.notes) == told


def test_other_data_is_no_other_division_of_the_same():
    identity = {"classes": 3, "train": 8, "validation": 2, "test": 5, "hash": "a"}
    assert not start.divided_otherwise(None, identity)
    assert not start.divided_otherwise(identity, dict(identity))
    assert start.divided_otherwise({**identity, "train": 7, "validation": 3, "hash": "b"}, identity)
    assert start.divided_otherwise({**identity, "train": 7, "test": 6, "hash": "b"}, identity)
    for other in ({"classes": 4}, {"train": 9}, {"test": 6}):
        assert not start.divided_otherwise({**identity, **other, "hash": "b"}, identity)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"init__from": "nowhere"}, "nowhere"),
        ({"model__width": 32}, "config.model.width"),
        ({"model__channels": 24, "density": 1.0}, "channels"),
    ],
)
def test_what_cannot_be_started_from_is_told(overrides, message, dense, tmp_path):
    with pytest.raises(UserError, match=message):
        tiny.train(config(dense, **overrides), tmp_path / "run")


def test_a_compact_model_is_no_start_for_a_larger_one(dense, tmp_path):
    tiny.train(tiny.config(method="static", density=0.3, **tiny.ONE_SHAPE), tmp_path / "small")
    with pytest.raises(UserError, match="init.from=.*layer 0 has .* and this run begins with"):
        tiny.train(config(tmp_path / "small", density=0.9), tmp_path / "run")


def test_the_flag_has_a_word_of_pythons_for_its_name(dense, tmp_path):
    flags = [f"--config={tiny.CONFIG_FILE}", f"--workdir={tmp_path / 'run'}"]
    flags += ["--config.train.steps=2", "--config.topology.updates=0"]
    wrong = commands.run("barter_jax.main", *flags, "--config.init.from=nowhere")
    commands.assert_refused(wrong, "nowhere does not exist")
    # Nothing counts as a run that the corrected command would have to make way for.
    right = commands.run("barter_jax.main", *flags, f"--config.init.from={dense}")
    assert right.code == 0, right.stderr
    assert f"starting from {dense}: 4 of 8 heads, 14 of 24 channels by taylor" in right.stderr
    nearest = commands.run("barter_jax.main", *flags, "--config.init.frm=x")
    commands.assert_refused(nearest, "did you mean config.init.from?")


def test_a_run_that_goes_on_needs_its_origin_no_more(dense, tmp_path, monkeypatch):
    shutil.copytree(dense, tmp_path / "dense")
    own = config(tmp_path / "dense", **tiny.ONE_SHAPE)
    with monkeypatch.context() as patch:
        tiny.crash_on_call(patch, loop.Run, "update_topology", 2)
        with pytest.raises(tiny.Crash):
            tiny.train(own, tmp_path / "run")
    shutil.rmtree(tmp_path / "dense")
    assert tiny.train(own, tmp_path / "run")["steps"] == tiny.STEPS
