import dataclasses
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from barter_jax.core import scores
from barter_jax.core.topology import Topology
from barter_jax.errors import UserError
from barter_jax.models import MODELS, CCTConfig, ViTConfig, init_params, layers
from tests.helpers import (
    CCT,
    CLASSES,
    UNEVEN,
    VIT,
    forward,
    loss_and_grads,
    random_images,
    random_params,
)
from tests.models import reference


def reference_logits(config, params, images, gates=None, xp=np):
    if isinstance(config, ViTConfig):
        return reference.vit(params, images, config.patch_size, gates, xp)
    return reference.cct(params, images, gates, xp)


@pytest.mark.parametrize(
    ("config", "size"),
    [
        (VIT, 8),
        (VIT, 12),
        (dataclasses.replace(VIT, qkv_bias=False, patch_size=2), 8),
        (CCT, 8),
        (CCT, 7),  # an odd side: the pooling rounds up
        (dataclasses.replace(CCT, qkv_bias=True), 8),
    ],
)
def test_forward_is_the_reference(config, size):
    params = random_params(config, UNEVEN, image_size=size)
    images = random_images(size=size)
    found = forward(config, UNEVEN)(params, images)
    exact = jax.tree.map(np.float64, params)
    want = reference_logits(config, exact, images.astype(np.float64))
    assert found.shape == want.shape == (3, CLASSES)
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("config", [VIT, CCT])
def test_gate_gradients(config):
    """dL/dg of a gate on each unit's output, from nothing but parameters and gradients."""
    params, images = random_params(config, UNEVEN), random_images()
    labels = np.array([0, 3, 1])

    def loss(params, gates):
        logits = reference_logits(config, params, images, gates, jnp)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    grads, want = jax.jit(jax.grad(loss, argnums=(0, 1)))(params, reference.open_gates(params))
    found = scores.sample("gate_squared", config.units(), params, grads)
    for unit in ("heads", "channels"):
        for sample, gate in zip(found[unit], want[unit], strict=True):
            np.testing.assert_allclose(sample, np.square(gate), rtol=1e-3, atol=1e-10)


@pytest.mark.parametrize("config", [VIT, CCT])
def test_bfloat16_compute(config):
    low = dataclasses.replace(config, dtype="bfloat16")
    params, images = random_params(config, UNEVEN), random_images()
    exact, found = (forward(c, UNEVEN)(params, images) for c in (config, low))
    assert found.dtype == jnp.float32
    error = np.abs(found - exact).max()
    assert 1e-5 < error < 0.05 * np.abs(exact).max() + 0.05
    shapes = jax.eval_shape(lambda: init_params(low, UNEVEN, 8, CLASSES, jax.random.key(0)))
    assert {leaf.dtype for leaf in jax.tree.leaves(shapes)} == {jnp.dtype("float32")}


@pytest.mark.parametrize("config", [VIT, CCT])
def test_evaluation_is_deterministic_and_training_is_not(config):
    params, images, labels = random_params(config, UNEVEN), random_images(4), np.array([0, 3, 1, 1])

    def train(seed):
        return loss_and_grads(config, UNEVEN)(params, images, labels, jax.random.key(seed))[0][1]

    outputs = [train(seed) for seed in (0, 0, 1)]
    np.testing.assert_array_equal(outputs[0], outputs[1])
    assert np.any(outputs[0] != outputs[2])
    assert np.any(outputs[0] != forward(config, UNEVEN)(params, images))


# --- dropout -------------------------------------------------------------------------------


def test_a_heads_dropout_does_not_depend_on_how_many_there_are():
    keys = jax.random.split(jax.random.key(3), 6)
    many = layers.keep_heads(keys, batch=2, tokens=5, rate=0.3).mask
    few = layers.keep_heads(keys[:4], batch=2, tokens=5, rate=0.3).mask
    np.testing.assert_array_equal(few, many[:4])
    # Heads and samples are dropped independently.
    assert len({tuple(mask) for mask in np.asarray(many).reshape(12, -1)}) == 12


@pytest.mark.parametrize("rate", [0.0, 0.2, 0.5])
def test_attention_dropout_keeps_its_share(rate):
    keep = layers.keep_heads(jax.random.split(jax.random.key(0), 4), 4, 51, rate)
    assert keep.mask.shape == (4, 4, 51, 51)
    assert keep.share == pytest.approx(1 - rate, abs=2**-32)
    assert np.mean(keep.mask) == pytest.approx(1 - rate, abs=0.01)


def test_layers_and_heads_drop_independently():
    """The keys of all layers come from one draw."""
    config = dataclasses.replace(VIT, attention_dropout=0.5, drop_path=0.0)
    module = config.module(UNEVEN, CLASSES)
    _, keys = nn.apply(lambda m: m._drawn(3), module)({}, rngs={"dropout": jax.random.key(0)})
    data = np.asarray(jax.random.key_data(keys)).reshape(2 * max(UNEVEN.heads), -1)
    assert len(np.unique(data, axis=0)) == len(data)


def test_stochastic_depth_drops_whole_samples_of_each_branch():
    rates = (0.0, 0.25, 0.5)
    factors = np.asarray(layers.drop_path_factors(jax.random.key(0), rates, 2000))
    assert factors.shape == (3, 2, 2000, 1, 1)
    assert np.all(factors[0] == 1)
    for rate, layer in zip(rates[1:], factors[1:], strict=True):
        np.testing.assert_allclose(np.unique(layer), [0, 1 / (1 - rate)])
        np.testing.assert_allclose(np.mean(layer == 0, axis=(1, 2, 3)), rate, atol=0.04)
        assert np.any(layer[0] != layer[1])


def test_stochastic_depth_rises_linearly():
    assert layers.drop_path_rates(5, 0.1) == pytest.approx((0, 0.025, 0.05, 0.075, 0.1))
    assert layers.drop_path_rates(1, 0.1) == (0,)


# --- initial values ------------------------------------------------------------------------


def linear_kernels(params, config):
    for name, block in params.items():
        if name.startswith("block_"):
            for leaf in ("query", "key", "value", "out"):
                yield block["attention"][leaf]["kernel"]
            yield block["mlp"]["fc1"]["kernel"]
            yield block["mlp"]["fc2"]["kernel"]
    yield params["classifier"]["kernel"]
    if "pooling" in params:
        yield params["pooling"]["score"]["kernel"]


@pytest.fixture(scope="module", params=["vit", "cct"])
def fresh(request):
    config = MODELS[request.param](layers=1)
    params = init_params(
        config, Topology((config.heads,), (config.channels,)), 32, 100, jax.random.key(0)
    )
    return config, params


def test_initial_linears(fresh):
    config, params = fresh
    for kernel in linear_kernels(params, config):
        # Four standard errors.
        tolerance = 4 / math.sqrt(2 * kernel.size)
        assert np.std(kernel) == pytest.approx(0.02, rel=tolerance)
        assert abs(np.mean(kernel)) < 4 * 0.02 / math.sqrt(kernel.size)
    # Plain normal: nothing is cut at two standard deviations.
    assert np.abs(params["block_0"]["mlp"]["fc1"]["kernel"]).max() > 0.07


def test_initial_biases_and_norms(fresh):
    _, params = fresh
    leaves = jax.tree_util.tree_flatten_with_path(params)[0]
    biases = [leaf for path, leaf in leaves if path[-1].key == "bias"]
    scales = [leaf for path, leaf in leaves if path[-1].key == "scale"]
    assert biases and all(np.all(np.asarray(leaf) == 0) for leaf in biases)
    assert scales and all(np.all(np.asarray(leaf) == 1) for leaf in scales)


def test_initial_positions_and_embeddings(fresh):
    config, params = fresh
    position = params["position"]
    if isinstance(config, CCTConfig):
        assert position.shape == (1, 256, 256)
        assert np.std(position) == pytest.approx(0.2, rel=0.02)
        # Kaiming: the variance is 2 / fan-in.
        kernel = params["tokenizer"]["kernel"]
        assert kernel.shape == (3, 3, 3, 256)
        assert np.std(kernel) == pytest.approx(math.sqrt(2 / 27), rel=0.05)
        assert set(params["tokenizer"]) == {"kernel"}
        assert "bias" not in params["block_0"]["attention"]["query"]
    else:
        assert position.shape == (1, 17, 192)
        assert np.std(position) == pytest.approx(0.02, rel=0.05)
        assert params["cls_token"].shape == (1, 1, 192)
        kernel = params["embedding"]["projection"]["kernel"]
        bound = 1 / math.sqrt(192)
        assert np.abs(kernel).max() <= bound
        assert np.std(kernel) == pytest.approx(bound / math.sqrt(3), rel=0.02)
        assert params["block_0"]["attention"]["query"]["bias"].shape == (12, 16)


def test_initial_values_depend_on_the_key(fresh):
    config, params = fresh
    again, other = (
        init_params(config, Topology((config.heads,), (config.channels,)), 32, 100, key)
        for key in (jax.random.key(0), jax.random.key(1))
    )
    jax.tree.map(np.testing.assert_array_equal, params, again)
    assert np.any(params["position"] != other["position"])


# --- configuration -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "field"),
    [
        (ViTConfig(patch_size=7), "model.patch_size=7"),
        (ViTConfig(patch_size=0), "model.patch_size"),
        (ViTConfig(dtype="float16"), "model.dtype"),
        (CCTConfig(dtype="bf16"), "model.dtype"),
        (ViTConfig(heads=0), "model.heads"),
        (CCTConfig(heads=0), "model.heads"),
        (CCTConfig(layers=0), "model.layers"),
        (CCTConfig(width=-1), "model.width"),
        (CCTConfig(head_width=0), "model.head_width"),
        (ViTConfig(channels=0), "model.channels"),
        (ViTConfig(drop_path=1.0), "model.drop_path"),
        (CCTConfig(attention_dropout=-0.1), "model.attention_dropout"),
    ],
)
def test_mistakes_are_named(config, field):
    with pytest.raises(UserError, match=field) as caught:
        config.check(64)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "config", [ViTConfig(), CCTConfig(), VIT, CCT, CCTConfig(dtype="bfloat16")]
)
def test_sound_configs_pass(config):
    config.check(64)
