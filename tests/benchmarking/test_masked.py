"""The masked rival: exact masks, weights that stay zero, and otherwise the same training step."""

import jax
import numpy as np
import pytest

from barter_jax import blueprint as blueprint_lib
from barter_jax.benchmarking import masked
from barter_jax.training import optimizer, step
from barter_jax.training import state as state_lib
from tests.training import tiny

KERNELS = {"query": 256, "key": 256, "value": 256, "out": 256, "fc1": 192, "fc2": 192}


@pytest.fixture(scope="module")
def run():
    """Dense state, module, optimizer and batch of the tiny config."""
    config = tiny.config(method="dense")
    plan = tiny.blueprint(config)
    barter = blueprint_lib.make_barter(config, plan)
    tx = optimizer.make(config.optimizer, plan.total_steps)
    state, progress = state_lib.initial(plan, barter, tx, 0)
    module = plan.model.module(progress.topology, plan.num_classes)
    rng = np.random.default_rng(0)
    images = rng.standard_normal((4, 8, 8, 3)).astype(np.float32)
    targets = np.eye(10, dtype=np.float32)[rng.integers(10, size=4)]
    return barter, tx, state, module, (images, targets, jax.random.key(1))


@pytest.fixture(scope="module")
def masked_step(run):
    barter, tx, _, module, _ = run
    return jax.jit(masked.make_masked_step(module, tx, barter))


def kernels(params):
    """`{"block_0/attention/query/kernel": array, ...}`"""
    named = jax.tree_util.tree_flatten_with_path(params)[0]
    flat = {"/".join(key.key for key in path): np.asarray(leaf) for path, leaf in named}
    return {n: a for n, a in flat.items() if n.startswith("block_") and n.endswith("kernel")}


@pytest.mark.parametrize("density", [0.1, 0.5, 1.0])
def test_masks_keep_the_density_of_each_transformer_weight(run, density):
    barter, _, state, _, _ = run
    masks = masked.random_masks(state.params, barter.units, density, seed=3)
    assert masks.keys() == kernels(state.params).keys()
    assert len(masks) == 2 * len(KERNELS)
    for name, mask in masks.items():
        assert mask.dtype == bool and mask.size == KERNELS[name.split("/")[2]]
        assert mask.sum() == round(density * mask.size)


def test_masks_follow_the_seed(run):
    barter, _, state, _, _ = run
    first, same, other = (
        masked.random_masks(state.params, barter.units, 0.5, seed) for seed in (1, 1, 2)
    )
    assert all(np.array_equal(first[name], same[name]) for name in first)
    assert not any(np.array_equal(first[name], other[name]) for name in first)


def test_padding_is_masked(run):
    barter, _, state, _, _ = run
    masks = {name: np.ones((2, 3), bool) for name in ("block_0/mlp/fc1/kernel",)}
    (name,) = masks
    params = {"block_0": {"mlp": {"fc1": {"kernel": np.zeros((2, 5))}}}}
    (padded,) = masked.pad_masks(masks, params, barter.units).values()
    assert padded.shape == (2, 5)
    assert np.array_equal(padded[:, :3], masks[name]) and not padded[:, 3:].any()


def test_masked_weights_are_exactly_zero_after_steps_and_the_others_move(run, masked_step):
    barter, _, state, _, batch = run
    masks = masked.random_masks(state.params, barter.units, 0.3, seed=0)
    now = state
    for _ in range(3):
        now, metrics = masked_step(now, *batch, masks)
    assert np.isfinite(metrics["loss"])
    before = kernels(state.params)
    for name, array in kernels(now.params).items():
        assert np.all(array[~masks[name]] == 0), name
        assert np.any(before[name][~masks[name]] != 0), name
        assert np.mean(array[masks[name]] != before[name][masks[name]]) > 0.9, name


def test_the_forward_pass_sees_masked_parameters(run, masked_step):
    """Also of a state that is not masked yet."""
    barter, _, state, _, batch = run
    masks = masked.random_masks(state.params, barter.units, 0.3, seed=0)
    already = state._replace(params=masked.apply_masks(state.params, masks))
    (_, of_dense), (_, of_masked) = (
        masked_step(state, *batch, masks),
        masked_step(already, *batch, masks),
    )
    assert of_dense["loss"] == of_masked["loss"]
    full = masked.random_masks(state.params, barter.units, 1.0, seed=0)
    assert masked_step(state, *batch, full)[1]["loss"] != of_masked["loss"]


def test_full_masks_give_the_dense_training_step(run, masked_step):
    barter, tx, state, module, batch = run
    full = masked.random_masks(state.params, barter.units, 1.0, seed=0)
    ours, metrics = masked_step(state, *batch, full)
    theirs, expected = jax.jit(step.make_train_step(module, tx, barter))(state, *batch)
    for a, b in zip(jax.tree.leaves((ours, metrics)), jax.tree.leaves((theirs, expected)),
                    strict=True):  # fmt: skip
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
