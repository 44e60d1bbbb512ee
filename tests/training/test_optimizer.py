"""Schedule, decay mask and clipping at points worked out by hand."""

import math

import jax
import numpy as np
import optax
import pytest

from barter_jax.core.topology import Topology
from barter_jax.core.units import path_names
from barter_jax.errors import UserError
from barter_jax.models import CCTConfig, ViTConfig, init_params
from barter_jax.training import optimizer
from tests.training import tiny


def section(**fields):
    config = tiny.config().optimizer
    config.update({"learning_rate": 1e-2, "start_learning_rate": 1e-4, "end_learning_rate": 1e-3})
    config.update(fields)
    return config


def test_warm_up_is_linear_and_decay_is_a_cosine():
    rate = optimizer.learning_rate(section(warmup_fraction=0.2), 100)
    wanted = {
        0: 1e-4,
        5: 1e-4 + (1e-2 - 1e-4) / 4,
        10: (1e-2 + 1e-4) / 2,
        20: 1e-2,
        40: 1e-3 + (1e-2 - 1e-3) * 0.5 * (1 + math.cos(math.pi / 4)),
        60: (1e-2 + 1e-3) / 2,
        100: 1e-3,
        150: 1e-3,
    }
    for step, value in wanted.items():
        assert float(rate(step)) == pytest.approx(value, rel=1e-5), step


def test_without_warm_up_the_peak_comes_first():
    rate = optimizer.learning_rate(section(warmup_fraction=0.0, end_learning_rate=0.0), 10)
    assert float(rate(0)) == pytest.approx(1e-2)
    assert float(rate(5)) == pytest.approx(5e-3)
    assert float(rate(10)) == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("fraction", [0.0, 0.4, 0.99])
@pytest.mark.parametrize("steps", [1, 2, 3])
def test_short_runs_have_a_finite_rate(fraction, steps):
    rate = optimizer.learning_rate(section(warmup_fraction=fraction), steps)
    values = [float(rate(step)) for step in range(steps + 1)]
    assert all(0 < value <= 1e-2 + 1e-9 for value in values)


TINY = {"layers": 2, "width": 8, "heads": 2, "head_width": 4, "channels": 6}


@pytest.mark.parametrize("model", [ViTConfig(**TINY, patch_size=4), CCTConfig(**TINY)])
def test_the_mask_spares_biases_and_norms_alone(model):
    params = jax.eval_shape(
        lambda: init_params(model, Topology((2, 2), (6, 6)), 8, 3, jax.random.key(0))
    )
    mask = {
        jax.tree_util.keystr(path): decayed
        for path, decayed in jax.tree_util.tree_flatten_with_path(
            optimizer.decay_mask(params, "kernels")
        )[0]
    }
    spared = {path for path, decayed in mask.items() if not decayed}
    assert spared == {p for p in mask if p.endswith("['bias']") or p.endswith("['scale']")}
    assert "['block_0']['attention']['out']['kernel']" in mask.keys() - spared
    assert "['classifier']['kernel']" in mask.keys() - spared


def params_of(model):
    return jax.eval_shape(
        lambda: init_params(model, Topology((2, 2), (6, 6)), 8, 3, jax.random.key(0))
    )


# What the patterns leave without decay besides, of a two-layer ViT.
EXCLUDED = {
    "position": {"position"},
    "position, cls_token": {"position", "cls_token"},
    "block_1/mlp": {f"block_1/mlp/{fc}/{x}" for fc in ("fc1", "fc2") for x in ("kernel", "bias")},
    "block_?/attention/out/kernel": {f"block_{i}/attention/out/kernel" for i in (0, 1)},
    "*/scale": {"norm/scale"} | {f"block_{i}/norm{n}/scale" for i in (0, 1) for n in (1, 2)},
}


@pytest.mark.parametrize("patterns", EXCLUDED)
def test_named_parameters_are_left_out_of_the_decay(patterns):
    config = section(decay_exclude=patterns)
    params = params_of(ViTConfig(**TINY, patch_size=4))
    mask = optimizer.decay_mask(params, "all", optimizer.excluded(config))
    found = jax.tree_util.tree_flatten_with_path(mask)[0]
    spared = {"/".join(path_names(path)) for path, decays in found if not decays}
    assert spared == EXCLUDED[patterns]


def test_the_exclusion_reaches_the_optimizer():
    found = updates(0.0, name="adamw", weight_decay=0.5, decay_exclude="kernel")
    np.testing.assert_array_equal(found["kernel"], 0)
    np.testing.assert_allclose(found["bias"], -1e-2 * 0.5 * 4, rtol=1e-5)


def test_a_pattern_that_fits_nothing_is_told(tmp_path):
    config = tiny.config(optimizer__decay_exclude="position,blok_0")
    with pytest.raises(
        UserError, match="config.optimizer.decay_exclude: 'blok_0' fits no .*block_0"
    ):
        tiny.train(config, tmp_path)


@pytest.mark.parametrize("model", [ViTConfig(**TINY, patch_size=4), CCTConfig(**TINY)])
def test_the_rate_falls_from_layer_to_layer(model):
    scales = optimizer.layer_scales(params_of(model), 0.5)
    wanted = {"block_0": 0.25, "block_1": 0.5}
    wanted |= dict.fromkeys(("norm", "classifier", "pooling"), 1.0)
    wanted |= dict.fromkeys(("embedding", "tokenizer", "cls_token", "position"), 0.125)
    for path, scale in jax.tree_util.tree_flatten_with_path(scales)[0]:
        assert scale == wanted[path_names(path)[0]], path


@pytest.mark.parametrize("name", ["adamw", "sgd", "lion"])
def test_the_layers_rates_scale_the_updates(name):
    params = jax.tree.map(
        lambda x: np.full(x.shape, 0.5, np.float32), params_of(ViTConfig(**TINY, patch_size=4))
    )
    found = {}
    for decay in (1.0, 0.5):
        tx = optimizer.make(section(name=name, layer_decay=decay), 100)
        found[decay], _ = tx.update(params, tx.init(params), params)
    scales = optimizer.layer_scales(params, 0.5)
    jax.tree.map(
        lambda plain, scaled, scale: np.testing.assert_allclose(scaled, plain * scale, rtol=1e-6),
        found[1.0],
        found[0.5],
        scales,
    )


PARAMS = {"kernel": np.full((2, 3), 4, np.float32), "bias": np.full(3, 4, np.float32)}


def updates(gradient, steps=1, **fields):
    """What the optimizer adds to the parameters, at the peak of its rate."""
    config = section(warmup_fraction=0.0, **fields)
    tx = optimizer.make(config, 10**6)
    state = tx.init(PARAMS)
    for _ in range(steps):
        grads = jax.tree.map(lambda leaf: np.full_like(leaf, gradient), PARAMS)
        found, state = tx.update(grads, state, PARAMS)
    return {key: np.unique(np.asarray(value).round(9)) for key, value in found.items()}


@pytest.mark.parametrize("name", ["adamw", "sgd", "lion"])
@pytest.mark.parametrize("decay_mask", ["all", "kernels"])
def test_weight_decay_acts_where_the_mask_lets_it(name, decay_mask):
    found = updates(0.0, name=name, decay_mask=decay_mask, weight_decay=0.5)
    # Rate times decay times parameter.
    np.testing.assert_allclose(found["kernel"], [-1e-2 * 0.5 * 4], rtol=1e-5)
    np.testing.assert_allclose(
        found["bias"], [-1e-2 * 0.5 * 4 if decay_mask == "all" else 0], rtol=1e-5
    )


def test_the_first_steps_of_each_rule():
    no_decay = {"weight_decay": 0.0, "beta1": 0.9}
    np.testing.assert_allclose(updates(7.0, name="adamw", **no_decay)["kernel"], -1e-2, rtol=1e-4)
    np.testing.assert_allclose(updates(7.0, name="lion", **no_decay)["kernel"], -1e-2, rtol=1e-4)
    np.testing.assert_allclose(updates(7.0, name="sgd", **no_decay)["kernel"], -7e-2, rtol=1e-4)
    # Momentum: 7 + 0.9 * 7.
    np.testing.assert_allclose(
        updates(7.0, steps=2, name="sgd", **no_decay)["kernel"], -1e-2 * 7 * 1.9, rtol=1e-4
    )


def test_clipping_bounds_the_global_norm():
    fields = {"name": "sgd", "weight_decay": 0.0, "clip_norm": 1.0}
    # Nine entries of 7 have norm 21; each of them becomes a third.
    np.testing.assert_allclose(updates(7.0, **fields)["kernel"], -1e-2 / 3, rtol=1e-5)
    np.testing.assert_allclose(updates(0.1, **fields)["kernel"], -1e-3, rtol=1e-5)
    fields["clip_norm"] = 0.0
    np.testing.assert_allclose(updates(7.0, **fields)["kernel"], -7e-2, rtol=1e-5)


def test_the_state_has_a_moment_for_every_parameter():
    state = optimizer.make(section(name="adamw", decay_mask="kernels", clip_norm=1.0), 10).init(
        PARAMS
    )
    for field in ("mu", "nu"):
        moments = optax.tree_utils.tree_get(state, field)
        assert jax.tree.map(np.shape, moments) == jax.tree.map(np.shape, PARAMS)
