"""Gradients of a batch in parts, and the running average of parameters."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from barter_jax import blueprint as blueprint_lib
from barter_jax.core.topology import Topology
from barter_jax.errors import UserError
from barter_jax.training import loop, optimizer, step
from barter_jax.training import state as state_lib
from barter_jax.training.checkpoint import named_leaves
from tests.training import tiny

PLAIN = {"model__attention_dropout": 0.0, "model__drop_path": 0.0}


@functools.cache
def stepped(micro_batches: int = 1, ema_decay: float = 0.0, steps: int = 1, dropout: bool = False):
    """The states before and after some steps on one batch of noise, and the last metrics."""
    overrides = {"train__batch_size": 12, **({} if dropout else PLAIN)}
    config = tiny.config(
        train__micro_batches=micro_batches, train__ema_decay=ema_decay, **overrides
    )
    plan = tiny.blueprint(config)
    barter = blueprint_lib.make_barter(config, plan)
    # Adam would blow up the rounding of gradients that are zero but for it.
    tx = optax.sgd(0.1)
    state, progress = state_lib.initial(plan, barter, tx, config.seed)
    module = plan.model.module(progress.physical, plan.num_classes)
    train = jax.jit(
        step.make_train_step(
            module, tx, barter, micro_batches=micro_batches, ema_decay=plan.ema_decay
        )
    )
    rng = np.random.default_rng(0)
    images = jnp.asarray(rng.normal(size=(12, 8, 8, 3)), jnp.float32)
    targets = jax.nn.one_hot(rng.integers(0, 10, 12), 10)
    states, metrics = [state], {}
    for _ in range(steps):
        state, metrics = train(state, images, targets, jax.random.key(1))
        states.append(state)
    return states, jax.device_get(metrics)


@pytest.mark.parametrize("parts", [2, 3, 12])
def test_parts_of_a_batch_add_up_to_the_batch(parts):
    (_, whole), metrics = stepped()
    (_, in_parts), of_parts = stepped(micro_batches=parts)
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6),
        (whole.params, whole.units, metrics),
        (in_parts.params, in_parts.units, of_parts),
    )


def test_each_part_draws_its_own_dropout():
    """Twelve parts that drew the same would not differ from each other in this way."""
    (_, whole), _ = stepped(dropout=True)
    (_, in_parts), _ = stepped(micro_batches=2, dropout=True)
    assert not np.allclose(
        whole.params["classifier"]["kernel"], in_parts.params["classifier"]["kernel"], atol=1e-6
    )


def test_the_average_is_the_sum_of_its_definition():
    states, _ = stepped(ema_decay=0.15, steps=4)
    ema = {k: np.asarray(v) for k, v in named_leaves(states[0].params).items()}
    for done, state in enumerate(states[1:]):
        decay = min(0.15, (1 + done) / (10 + done))
        for name, value in named_leaves(state.params).items():
            ema[name] = decay * ema[name] + (1 - decay) * np.asarray(value)
        for name, value in named_leaves(state.ema).items():
            np.testing.assert_allclose(value, ema[name], rtol=1e-5, atol=1e-6, err_msg=name)
    # Both branches of the minimum were there.
    assert 1 / 10 < 0.15 < 3 / 12


def test_without_a_decay_there_is_no_average():
    (_, after), _ = stepped()
    assert after.ema is None and after.averaged is after.params


def test_a_run_with_an_average_keeps_it_and_its_clones_preserve_it(tmp_path):
    """The model kept is the average; it is resized by every update and by every resume."""
    config = tiny.config(train__ema_decay=0.9)
    summary = tiny.train(config, tmp_path / "whole")
    state, books = tiny.saved(config, tmp_path / "whole")
    shapes = jax.tree.map(np.shape, state.params)
    assert jax.tree.map(np.shape, state.ema) == shapes
    assert summary["moved"] == {"heads": 2, "channels": 5}
    assert not np.allclose(state.ema["classifier"]["kernel"], state.params["classifier"]["kernel"])
    tiny.train(tiny.config(), tmp_path / "plain")
    # The average changes nothing that the training does.
    plain, _ = tiny.saved(tiny.config(), tmp_path / "plain")
    jax.tree.map(np.testing.assert_array_equal, plain.params, state.params)


def test_an_interrupted_run_with_an_average_comes_to_the_same_bits(tmp_path, monkeypatch):
    config = tiny.config(train__ema_decay=0.9, bucket__channels=4)
    tiny.train(config, tmp_path / "whole")
    with monkeypatch.context() as patch:
        tiny.crash_on_call(patch, loop.Run, "update_topology", 2)
        with pytest.raises(tiny.Crash):
            tiny.train(config, tmp_path / "broken")
    tiny.train(config, tmp_path / "broken")
    tiny.assert_same(
        tiny.outcome(config, tmp_path / "broken"), tiny.outcome(config, tmp_path / "whole")
    )


def test_a_clone_leaves_the_function_of_the_average_as_it_was():
    """Without noise, and with donors that are no more: the logits of the clones' layer stand."""
    config = tiny.config(topology__noise=0.0, train__ema_decay=0.9)
    plan = tiny.blueprint(config)
    barter = blueprint_lib.make_barter(config, plan)
    tx = optimizer.make(config.optimizer, plan.total_steps)
    state, progress = state_lib.initial(plan, barter, tx, 0)
    decision = barter.decide(state.units, progress, tiny.UPDATES_AT[0])
    assert decision.plans
    params = barter.apply(decision, state.params, state.opt_state, state.units, tx)[0]
    ema = barter.apply_to_parameters(decision, state.ema)
    # At the start both are the same, so both must come to the same.
    jax.tree.map(np.testing.assert_array_equal, params, ema)
    assert barter.units.measure(ema) == decision.after.physical != Topology((2, 2), (6, 6))


def test_parts_must_divide_the_batch(tmp_path):
    with pytest.raises(UserError, match="train.batch_size=16 .*train.micro_batches=3"):
        tiny.train(tiny.config(train__micro_batches=3), tmp_path)
