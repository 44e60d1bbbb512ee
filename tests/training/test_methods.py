"""The masked methods train in the one loop: exact counts, what is kept, and resuming."""

import json
import logging

import jax
import numpy as np
import pytest

import barter_jax
from barter_jax import blueprint as blueprint_lib
from barter_jax.config import MASKED_METHODS
from barter_jax.core import accounting
from barter_jax.deploy import evaluate
from barter_jax.training import loop
from barter_jax.training.checkpoint import named_leaves
from barter_jax.training.state import abstract_params
from tests.training import tiny

# An update at steps 4 and 8 of the twelve.
FIELDS = {"masked__every_steps": 4, "masked__stop_fraction": 1.0, "bucket__channels": 8}


def config(method, **overrides):
    # SRigL's ablation would leave less than the plan.
    gamma = {"masked__gamma": 0.0} if method == "srigl" else {}
    return tiny.config(method=method, **{**FIELDS, **gamma, **overrides})


@pytest.fixture(scope="module", params=MASKED_METHODS)
def run(request, tmp_path_factory):
    directory = tmp_path_factory.mktemp(request.param)
    summary = tiny.train(config(request.param), directory)
    return request.param, directory, summary


def test_the_masks_hold_what_they_should(run):
    method, directory, _ = run
    own = config(method)
    plan = tiny.blueprint(own)
    state, books = tiny.saved(own, directory)
    assert books.progress.topology == plan.dims.dense
    named = {name.replace(".", "/"): leaf for name, leaf in named_leaves(state.params).items()}
    for name, mask in state.masks.masks.items():
        assert not np.any(named[name][~mask]), f"{name} has masked weights that are not zero"
        assert np.any(named[name][mask])
    if method == "s2vite":
        return
    layers = plan.masked.layers(abstract_params(plan, plan.initial))
    active = sum(int(layer.matrix(state.masks.masks).sum()) for layer in layers)
    whole = sum(layer.shape[0] * layer.shape[1] for layer in layers)
    # SRigL's fan-ins are whole numbers.
    slack = sum(layer.shape[1] for layer in layers) if method == "srigl" else 0
    assert round(0.5 * whole) - slack <= active <= round(0.5 * whole)


def test_what_is_kept_loads_and_has_the_size_of_the_budget(run):
    method, directory, summary = run
    plan = tiny.blueprint(config(method))
    model = barter_jax.load(directory)
    test = blueprint_lib.load_data(config(method)).test
    assert evaluate.evaluate(model, test) == {k: v for k, v in summary["test"].items()}
    compact = tiny.blueprint(tiny.config(method="static"))
    if method == "s2vite":
        # Physically small, as small as a compact model of the density.
        assert model.topology == compact.initial
        assert summary["exported_parameters"] == accounting.parameters(plan.dims, compact.initial)
    else:
        assert model.topology == plan.dims.dense
        weights = 2 * (4 * 16 * 16 + 2 * 16 * 12)
        dense = accounting.parameters(plan.dims, plan.dims.dense)
        wanted = dense - weights + round(0.5 * weights)
        slack = 0 if method != "srigl" else 2 * (4 * 16 + 12 + 16)
        assert wanted - slack <= summary["exported_parameters"] <= wanted
        nonzero = sum(int(np.count_nonzero(leaf)) for leaf in jax.tree.leaves(model.params))
        assert nonzero <= summary["exported_parameters"]
    assert summary["training_gflops_per_image"] * 1e9 == accounting.training_flops(
        plan.dims, plan.dims.dense
    )


def test_the_full_size_step_compiles_once(run):
    _, _, summary = run
    assert summary["compiled"]["shapes"] == 1 and summary["updates"] == 0


def test_an_interrupted_run_comes_to_the_same_bits(run, tmp_path, monkeypatch):
    method, directory, _ = run
    with monkeypatch.context() as patch:
        tiny.crash_on_call(patch, loop.Run, "checkpoint", 4)
        with pytest.raises(tiny.Crash):
            tiny.train(config(method), tmp_path)
    assert not (tmp_path / "summary.json").exists()
    tiny.train(config(method), tmp_path)
    tiny.assert_same(
        tiny.outcome(config(method), tmp_path), tiny.outcome(config(method), directory)
    )


def test_masks_change_at_an_update_and_at_no_other_step(tmp_path):
    """Each of twelve steps has a checkpoint."""
    own = config("set", checkpoint__every_steps=1, checkpoint__keep=20)
    tiny.train(own, tmp_path)
    masks = [tiny.saved(own, tmp_path, step)[0].masks.masks for step in range(1, 13)]
    differs = [
        step
        for step, (one, two) in enumerate(zip(masks, masks[1:], strict=False), 2)
        if any(np.any(one[name] != two[name]) for name in one)
    ]
    assert differs == [4, 8]


def test_an_average_of_parameters_is_kept_under_the_masks(tmp_path):
    own = config("rigl", train__ema_decay=0.9)
    tiny.train(own, tmp_path)
    model = barter_jax.load(tmp_path)
    kernel = model.params["block_0"]["mlp"]["fc1"]["kernel"]
    assert 0 < np.mean(np.asarray(kernel) == 0) < 1
    card = json.loads(json.dumps(model.card.to_json()))
    assert (
        card["parameters"]
        == json.loads((tmp_path / "summary.json").read_text())["exported_parameters"]
    )


def test_a_masked_run_can_be_divided_into_parts(tmp_path):
    """S2ViTE scores its heads part by part as well."""
    summary = tiny.train(config("s2vite", train__micro_batches=2), tmp_path)
    assert summary["steps"] == tiny.STEPS


def test_a_run_too_short_for_a_change_of_masks_says_so(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("barter_jax"), "propagate", True)
    # Before anything is compiled.
    tiny.crash_on_call(monkeypatch, loop.Run, "_compiled", 1)
    with caplog.at_level(logging.INFO, "barter_jax"), pytest.raises(tiny.Crash):
        tiny.train(config("set", masked__every_steps=50, train__steps=3), tmp_path)
    said = "no change of the masks falls within the 3 steps: lower config.masked.every_steps=50"
    assert said in caplog.text
