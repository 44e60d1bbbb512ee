"""Training a small ViT with every method: one run of each, recorded, and looked at."""

import functools
import itertools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from barter_jax.core.barter import Barter
from barter_jax.core.topology import UNITS, Topology
from barter_jax.core.units import UnitTable
from barter_jax.masked import export, s2vite
from barter_jax.masked.layers import apply_masks, leaves_by_name
from barter_jax.masked.masked import Masked
from barter_jax.models import ViTConfig
from barter_jax.training import step as step_lib
from barter_jax.training.state import TrainState
from tests.helpers import CLASSES, IMAGE_SIZE, loss_and_grads, random_params
from tests.masked import quick

# All matrices but the fused one have one shape, which is quick to compile.
VIT = ViTConfig(layers=1, width=12, heads=6, head_width=2, channels=12, patch_size=4, drop_path=0.0)
DENSE, COUNTS = Topology((6,), (12,)), Topology((3,), (5,))
BARTER = Barter(units=VIT.units(), schedule=(), caps=DENSE, rule="static")
STEPS, EVERY, BATCH = 24, 4, 8
RUNS = {
    "set": {"density": 0.4},
    "snfs": {"density": 0.4},
    "rigl": {"density": 0.4},
    "srigl": {"density": 0.4},
    "as_released": {"variant": "as_released"},
    "repaired": {"variant": "repaired"},
}


def batch(size=BATCH):
    rng = np.random.default_rng(0)
    images = rng.standard_normal((size, IMAGE_SIZE, IMAGE_SIZE, 3)).astype(np.float32)
    return images, np.eye(CLASSES, dtype=np.float32)[rng.integers(CLASSES, size=size)]


def method(name):
    fields = RUNS[name]
    if "variant" in fields:
        fields = {"method": "s2vite", "counts": COUNTS, "density": 0.4, **fields}
    else:
        fields = {"method": name, **fields}
    return Masked.for_method(**fields, units=VIT.units(), total_steps=STEPS, every_steps=EVERY)


def start(name, tx):
    params = jax.tree.map(jnp.asarray, random_params(VIT, DENSE))
    return begun(method(name), tx, params, BARTER)


def begun(masked, tx, params, barter):
    """The state before the first step."""
    params, masks = masked.init(params, jax.random.key(1))
    units = barter.init(params)[1]
    return TrainState(jnp.int32(0), params, jax.jit(tx.init)(params), units, None, masks)


@functools.cache
def recorded(name):
    """All states of a run, its losses, and how often its step was traced."""
    tx = optax.adamw(optax.cosine_decay_schedule(3e-2, STEPS), weight_decay=0.01)
    module = VIT.module(DENSE, CLASSES)
    train = step_lib.make_train_step(module, tx, BARTER, masked=method(name))
    traces = []

    @quick.jit
    def step(*arguments):
        traces.append(1)
        return train(*arguments)

    states, losses = [start(name, tx)], []
    for _ in range(STEPS):
        state, metrics = step(states[-1], *batch(), jax.random.key(0))
        states.append(state)
        losses.append(float(metrics["loss"]))
    assert np.isfinite(metrics["gradient_norm"]) and 0 <= metrics["accuracy"] <= 1
    return jax.tree.map(np.asarray, states), losses, len(traces)


def changes(states):
    """The numbers of the steps, from 1, in which a mask changed."""
    return [
        done
        for done, (before, after) in enumerate(itertools.pairwise(states), start=1)
        if any(np.any(before.masks.masks[n] != m) for n, m in after.masks.masks.items())
    ]


@pytest.mark.parametrize("name", RUNS)
def test_the_loss_falls(name):
    _, losses, _ = recorded(name)
    assert np.all(np.isfinite(losses))
    assert np.mean(losses[-4:]) < 0.7 * np.mean(losses[:2]), losses


@pytest.mark.parametrize("name", RUNS)
def test_the_step_is_traced_once(name):
    assert recorded(name)[2] == 1


@pytest.mark.parametrize("name", RUNS)
def test_masks_change_when_due_and_counts_stay(name):
    states, _, _ = recorded(name)
    found = changes(states)
    assert set(found) <= set(method(name).schedule.updates)
    # Heads that were just dropped are often the ones with the largest gradients, and come back.
    assert found or name == "as_released"
    counts = {export.nonzero(state.params, state.masks.masks) for state in states}
    if name != "srigl":
        assert len(counts) == 1
    for state in states:
        for path, leaf in leaves_by_name(state.params).items():
            assert np.all(leaf[~state.masks.masks.get(path, np.ones(leaf.shape, bool))] == 0), path


@pytest.mark.parametrize("name", RUNS)
def test_every_weight_that_is_left_alone_moves_on(name):
    """Of the weights active all the time nearly all have changed: gradients do reach them."""
    states, _, _ = recorded(name)
    for path in states[0].masks.masks:
        always = np.all([state.masks.masks[path] for state in states], axis=0)
        if always.any():
            first, last = (leaves_by_name(states[i].params)[path] for i in (0, -1))
            assert np.mean(first[always] != last[always]) > 0.9, path


def test_srigl_keeps_one_fan_in():
    states, _, _ = recorded("srigl")
    masked = method("srigl")
    layers = masked.layers(states[0].params)
    for layer, weights in zip(layers, masked.planned(states[0].params), strict=True):
        for state in states:
            fans = np.asarray(layer.matrix(state.masks.masks)).sum(0)
            alive = np.sum(fans > 0)
            assert set(fans[fans > 0]) == {weights // alive}


def test_snfs_moves_weights_between_layers():
    states, _, _ = recorded("snfs")
    per_layer = [
        tuple(int(np.sum(layer.matrix(s.masks.masks))) for layer in method("snfs").layers(s.params))
        for s in (states[0], states[-1])
    ]
    assert sum(per_layer[0]) == sum(per_layer[1]) and per_layer[0] != per_layer[1]


# --- S2ViTE --------------------------------------------------------------------------------


def units_of(state):
    return s2vite.active_units(state.masks.masks, VIT.units())


def test_channels_of_s2vite_as_released_never_change_and_repaired_ones_do():
    topologies = {
        name: {
            unit: {tuple(np.flatnonzero(units_of(state)[unit][0])) for state in recorded(name)[0]}
            for unit in UNITS
        }
        for name in s2vite.VARIANTS
    }
    assert len(topologies["as_released"]["channels"]) == 1
    assert len(topologies["repaired"]["channels"]) > 1
    for name in s2vite.VARIANTS:
        for unit in UNITS:
            assert {len(t) for t in topologies[name][unit]} == {COUNTS.of(unit)[0]}


@pytest.mark.parametrize("name", s2vite.VARIANTS)
def test_the_gradient_of_a_dead_channel(name):
    """Exactly zero as released: row, bias and column. Repaired, its column gives the row one."""
    state = recorded(name)[0][-1]
    images, _ = batch()
    labels = np.zeros(len(images), np.int32)
    _, grads = loss_and_grads(VIT, DENSE)(state.params, images, labels, jax.random.key(0))
    dead = ~np.asarray(units_of(state)["channels"][0])
    mlp = jax.tree.map(np.asarray, grads["block_0"]["mlp"])
    assert np.all(mlp["fc2"]["kernel"][dead] == 0)
    assert np.all(mlp["fc2"]["kernel"][~dead] != 0)
    for leaf in (mlp["fc1"]["kernel"].T, mlp["fc1"]["bias"]):
        assert np.all(leaf[~dead] != 0)
        assert np.all(leaf[dead] == 0) if name == "as_released" else np.all(leaf[dead] != 0)


# --- what it shares with the compact models' step ------------------------------------------

# Adam would blow up the rounding of gradients that are zero but for it.
SGD = optax.sgd(0.1)


class Small(nn.Module):
    """One hidden layer with dropout; quick to compile."""

    @nn.compact
    def __call__(self, images, train: bool = False):
        hidden = nn.gelu(nn.Dense(6, name="fc1")(images.reshape(len(images), -1)))
        hidden = nn.Dropout(0.3, deterministic=not train)(hidden)
        return nn.Dense(CLASSES, name="fc2")(hidden)


SMALL_UNITS = UnitTable.from_patterns(
    1,
    {
        "channels": {
            "input": {"fc1/kernel": 1, "fc1/bias": 0},
            "output": {"fc2/kernel": 0},
        }
    },
)


def test_without_masks_it_is_the_training_step():
    """With a batch in parts, an average and dropout."""
    images, targets = batch()
    params = jax.tree.map(np.asarray, Small().init(jax.random.key(0), images)["params"])
    masked = Masked.for_method("rigl", units=SMALL_UNITS, density=1.0, total_steps=10)
    fields = {"micro_batches": 2, "ema_decay": 0.05}
    barter = Barter(units=SMALL_UNITS, schedule=(), caps=Topology((), (6,)))
    ema = jax.tree.map(np.array, params)
    ours = begun(masked, SGD, params, barter)._replace(ema=ema)
    of_masked = step_lib.make_train_step(Small(), SGD, barter, masked=masked, **fields)
    ours, metrics = quick.jit(of_masked)(ours, images, targets, jax.random.key(5))
    theirs = TrainState(np.int32(0), params, SGD.init(params), barter.init(params)[1], ema)
    theirs, expected = quick.jit(step_lib.make_train_step(Small(), SGD, barter, **fields))(
        theirs, images, targets, jax.random.key(5)
    )
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6),
        (ours.step, ours.params, ours.opt_state, ours.averaged, metrics),
        (theirs.step, theirs.params, theirs.opt_state, theirs.averaged, expected),
    )
    assert np.any(ours.params["fc1"]["kernel"] != params["fc1"]["kernel"])


def test_the_average_is_seen_under_the_masks():
    state = start("set", SGD)
    state = state._replace(ema=jax.tree.map(jnp.ones_like, state.params))
    expected = apply_masks(state.ema, state.masks.masks)
    jax.tree.map(np.testing.assert_array_equal, state.averaged, expected)
    assert not np.all(state.averaged["block_0"]["mlp"]["fc1"]["kernel"] == 1)
    assert state._replace(ema=None).averaged is state.params


def test_scores_of_a_batch_in_parts_are_averaged(monkeypatch):
    calls = []

    def scores(params, images, targets, key):
        calls.append(len(images))
        return (jnp.mean(images) * jnp.ones(6),)

    monkeypatch.setattr(step_lib, "make_scores", lambda module: scores)
    module = VIT.module(DENSE, CLASSES)
    train = step_lib.make_train_step(
        module, SGD, BARTER, masked=method("repaired"), micro_batches=4
    )
    jax.eval_shape(train, start("repaired", SGD), *batch(), jax.random.key(0))
    assert calls and set(calls) == {BATCH // 4}
    images, targets = batch()
    found = step_lib._mean_over_parts(scores, 4, {}, images, targets, jax.random.key(0))
    np.testing.assert_allclose(found[0], np.mean(images), rtol=1e-4, atol=1e-7)
