"""The PyTorch rival computes what the Flax model computes, and trains as it trains."""

import math

import jax
import numpy as np
import pytest

torch = pytest.importorskip("torch")

from barter_jax import blueprint as blueprint_lib  # noqa: E402
from barter_jax.benchmarking import plans, torch_rival, torch_runner  # noqa: E402
from barter_jax.benchmarking.cases import Case  # noqa: E402
from barter_jax.benchmarking.runner import Batch  # noqa: E402
from barter_jax.benchmarking.torch_runner import (  # noqa: E402
    TorchRunner,
    learning_rate,
    make_optimizer,
)
from barter_jax.core.topology import Topology  # noqa: E402
from barter_jax.models import CCTConfig, ViTConfig  # noqa: E402
from barter_jax.training import optimizer, step  # noqa: E402
from barter_jax.training import state as state_lib  # noqa: E402
from tests import helpers  # noqa: E402
from tests.training import tiny  # noqa: E402

QUIET = {**helpers.TINY, "attention_dropout": 0.0, "drop_path": 0.0}
MODELS = {
    "vit": ViTConfig(**QUIET, patch_size=4),
    "vit without qkv biases": ViTConfig(**QUIET, patch_size=2, qkv_bias=False),
    "cct": CCTConfig(**QUIET),
}
TOPOLOGIES = {"dense": Topology((6, 6), (12, 12)), "compact": helpers.UNEVEN}


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    """On a busy machine PyTorch's threads wait for each other far longer than they work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    monkeypatch.setattr(torch_runner, "THREADS", 1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("fused", [True, False], ids=["fused", "explicit"])
@pytest.mark.parametrize("topology", TOPOLOGIES.values(), ids=TOPOLOGIES)
@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_logits_and_gradients_agree(model, topology, fused):
    params = helpers.random_params(model, topology)
    images, labels = helpers.random_images(), np.array([0, 3, 4], np.int32)
    (loss, logits), grads = helpers.loss_and_grads(model, topology)(
        params, images, labels, jax.random.key(0)
    )
    module = torch_rival.TorchTransformer(model, topology, helpers.IMAGE_SIZE, helpers.CLASSES)
    torch_rival.load_flax(module, params)
    module.use_fused_attention(fused)
    theirs = module.train()(torch.from_numpy(images.transpose(0, 3, 1, 2).copy()))
    targets = torch.from_numpy(np.eye(helpers.CLASSES, dtype=np.float32)[labels])
    torch_loss = torch.nn.functional.cross_entropy(theirs, targets)
    torch_loss.backward()
    np.testing.assert_allclose(theirs.detach(), logits, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(torch_loss.detach(), loss, rtol=1e-4)
    # Gradients are linear in the parameters' layout, so the same conversion serves.
    expected = torch_rival.from_flax(jax.device_get(grads))
    found = {name: p.grad.numpy() for name, p in module.named_parameters()}
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        scale = max(float(np.abs(gradient).max()), 1e-2)
        np.testing.assert_allclose(found[name], gradient, rtol=0, atol=1e-4 * scale, err_msg=name)


@pytest.mark.parametrize("epochs_warm", [0.0, 0.25])
def test_the_learning_rates_are_those_of_the_jax_schedule(epochs_warm):
    section = tiny.config(
        optimizer__warmup_fraction=epochs_warm, optimizer__end_learning_rate=1e-4
    ).optimizer
    schedule = optimizer.learning_rate(section, 12)
    for at in (0, 1, 2, 3, 4, 8, 12, 15):
        assert learning_rate(section, 12, at) == pytest.approx(float(schedule(at)), rel=1e-3)


@pytest.mark.parametrize("mask", ["all", "kernels"])
def test_several_steps_of_sgd_agree(mask):
    """Schedule, momentum, weight decay and clipping; without dropout, nothing is random."""
    config = tiny.config(
        method="static",
        optimizer__name="sgd",
        optimizer__learning_rate=0.1,
        optimizer__weight_decay=0.1,
        optimizer__decay_mask=mask,
        optimizer__clip_norm=0.5,
        model__attention_dropout=0.0,
        model__drop_path=0.0,
        train__batch_size=4,
    )
    case = Case("torch_static", 0.5, 4)
    (plan,) = plans.make_all(config, [case], tiny.NUM_CLASSES, tiny.NUM_TRAIN)
    barter = blueprint_lib.make_barter(config, plan.blueprint)
    state, _ = state_lib.initial(plan.blueprint, barter, plan.tx, config.seed)
    rng = np.random.default_rng(0)
    labels = rng.integers(10, size=4).astype(np.int32)
    batch = Batch(
        images=rng.standard_normal((4, 8, 8, 3)).astype(np.float32),
        targets=np.eye(10, dtype=np.float32)[labels],
        labels=labels,
        mask=np.ones(4, np.float32),
    )
    runner = TorchRunner(plan)
    runner.place(batch)
    start = {name: value.clone() for name, value in runner.module.state_dict().items()}
    module = plan.blueprint.model.module(plan.physical, 10)
    train_step = jax.jit(step.make_train_step(module, plan.tx, barter))
    for _ in range(4):
        state, metrics = train_step(state, batch.images, batch.targets, jax.random.key(0))
        runner.train(1)
        assert runner.loss == pytest.approx(float(metrics["loss"]), rel=1e-3)
    for name, expected in torch_rival.from_flax(state.params).items():
        found = runner.module.state_dict()[name]
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4, err_msg=name)
        assert not torch.equal(found, start[name]), name


def test_adamw_has_the_configs_settings():
    section = tiny.config(optimizer__decay_mask="kernels").optimizer
    module = torch_rival.TorchTransformer(MODELS["cct"], TOPOLOGIES["dense"], 8, 5)
    made, _ = make_optimizer(module, section, 12)
    assert isinstance(made, torch.optim.AdamW)
    decayed, spared = made.param_groups
    assert decayed["weight_decay"] == section.weight_decay and spared["weight_decay"] == 0
    assert decayed["betas"] == (section.beta1, section.beta2)
    assert decayed["eps"] == section.epsilon
    names = {id(p): name for name, p in module.named_parameters()}
    assert {names[id(p)] for p in spared["params"]} == {
        name for name in names.values() if name.endswith("bias") or "norm" in name
    }
    assert len(decayed["params"]) + len(spared["params"]) == len(names)


def test_dropout_and_stochastic_depth_are_for_training_only():
    model = CCTConfig(**helpers.TINY, attention_dropout=0.5, drop_path=0.9)
    module = torch_rival.TorchTransformer(model, TOPOLOGIES["dense"], 8, 5)
    torch_rival.load_flax(module, helpers.random_params(model, TOPOLOGIES["dense"]))
    images = torch.from_numpy(helpers.random_images(size=8).transpose(0, 3, 1, 2).copy())
    module.eval()
    assert torch.equal(module(images), module(images))
    for fused in (True, False):
        module.use_fused_attention(fused)
        module.train()
        assert not torch.equal(module(images), module(images))


def test_dropped_branches_are_scaled_by_those_that_stay():
    block = torch_rival.Block(MODELS["vit"], 2, 3, 0.25, 1e-6, False).train()
    torch.manual_seed(0)
    dropped = block._drop(torch.ones(4000, 2, 3))
    values = dropped.flatten(1)
    assert torch.equal(values, values[:, :1].expand_as(values)), "a whole sample or nothing"
    assert set(dropped.unique().tolist()) == {0.0, np.float32(1 / 0.75)}
    assert math.isclose(float(dropped.mean()), 1, abs_tol=0.05)


def test_the_runner_chooses_what_is_faster(monkeypatch):
    """By a clock of the test's own, for one runner after another."""
    seconds = {("fused", 4): 3.0, ("explicit", 4): 2.0, ("explicit", 1): 1.0}
    monkeypatch.setattr(torch_runner, "THREADS", 4)

    def timed(self, steps):
        fused = self.module.blocks[0].attention.fused
        return seconds["fused" if fused else "explicit", self._threads]

    monkeypatch.setattr(TorchRunner, "_step_seconds", timed)
    runners = [tiny_runner() for _ in range(2)]
    for runner in runners:
        runner.choose(1)
        assert (runner.details["attention"], runner.details["threads"]) == ("explicit", 1)
        assert not runner.module.blocks[1].attention.fused
    seconds["explicit", 1] = 2.5
    runners[1].choose(1)
    runners[1].choose(1)
    assert runners[1].details["tried_step_ms"] == {
        "fused": 3000,
        "explicit": 2000,
        "one thread": 2500,
    }
    assert runners[1].details["threads"] == 4


def test_the_runner_in_bfloat16():
    runner = tiny_runner(model__dtype="bfloat16")
    runner.choose(1)
    assert {"fused", "explicit"} <= runner.details["tried_step_ms"].keys()
    runner.evaluate(2)
    assert math.isfinite(runner.loss)
    assert all(p.dtype == torch.float32 for p in runner.module.parameters())


def tiny_runner(**overrides) -> TorchRunner:
    config = tiny.config(train__batch_size=4, **overrides)
    case = Case("torch_dense", None, 4)
    (plan,) = plans.make_all(config, [case], tiny.NUM_CLASSES, tiny.NUM_TRAIN)
    runner = TorchRunner(plan)
    images = np.random.default_rng(0).standard_normal((4, 8, 8, 3)).astype(np.float32)
    targets = np.eye(10, dtype=np.float32)[:4]
    runner.place(Batch(images, targets, np.arange(4, dtype=np.int32), np.ones(4, np.float32)))
    return runner
