"""Every formulation of an operation has the values and the gradients of the plain one."""

import dataclasses
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from barter_jax.core.topology import Topology
from barter_jax.models import ViTConfig, ops
from barter_jax.models.ops import cpu, gpu, plain, random_bits
from tests.helpers import CCT, UNEVEN, VIT, loss_and_grads, random_images, random_params

sizes = st.integers(1, 9)
seeds = st.integers(0, 2**16)


def normal(seed, *shapes):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape).astype(np.float32) for shape in shapes]


def assert_same(one, other, *args, seed=0):
    """Values, and the gradients of a random projection of them, agree."""

    @jax.jit
    def both(cotangent, *args):
        found = []
        for f in (one, other):
            value, pull_back = jax.vjp(f, *args)
            found.append((value, pull_back(cotangent)))
        return found

    shape = jax.eval_shape(other, *args)
    (cotangent,) = normal(seed + 1, shape.shape)
    found, want = both(cotangent.astype(shape.dtype), *args)
    assert found[0].dtype == want[0].dtype
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(want), strict=True):
        scale = max(1.0, float(jnp.max(jnp.abs(b), initial=0)))
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=2e-5 * scale)


@settings(max_examples=15)
@given(st.lists(sizes, min_size=1, max_size=3), st.integers(4, 12), seeds)
def test_layer_norm(rows, width, seed):
    x, scale, bias = normal(seed, (*rows, width), (width,), (width,))
    # Away from 0: a mean that were lost somewhere would show.
    assert_same(
        lambda *a: cpu.layer_norm(*a, 1e-5),
        lambda *a: plain.layer_norm(*a, 1e-5),
        x + 1,
        scale,
        bias,
    )


def test_layer_norm_of_a_constant_row_is_its_bias():
    x = np.full((2, 8), 1e3, np.float32)
    (bias,) = normal(0, (8,))
    for layer_norm in (plain.layer_norm, cpu.layer_norm):
        np.testing.assert_allclose(layer_norm(x, np.ones(8), bias, 1e-6), [bias, bias], atol=1e-3)


@settings(max_examples=20)
@given(st.lists(sizes, min_size=1, max_size=3), sizes, sizes, st.booleans(), seeds)
def test_linear(rows, wide, narrow, with_bias, seed):
    x, kernel, bias = normal(seed, (*rows, wide), (wide, narrow), (narrow,))
    args = (x, kernel, bias) if with_bias else (x, kernel)
    assert_same(cpu.linear, plain.linear, *args)


def test_gelu():
    x = np.linspace(-12, 12, 2001, dtype=np.float32)
    assert_same(cpu.gelu, plain.gelu, x)
    np.testing.assert_array_equal(cpu.gelu(np.zeros(3, np.float32)), 0)


@settings(max_examples=15)
@given(sizes, sizes, st.integers(1, 4), sizes, st.booleans(), seeds)
def test_attention(batch, tokens, heads, width, dropped, seed):
    query, key, value = normal(seed, *((batch, tokens, heads, width),) * 3)
    keep = None
    if dropped:
        mask = np.random.default_rng(seed).random((heads, batch, tokens, tokens)) < 0.7
        keep = plain.Keep(mask, 0.7)
    assert_same(
        lambda *qkv: cpu.attend(*qkv, keep),
        lambda *qkv: plain.attend(*qkv, keep),
        query,
        key,
        value,
    )


def test_attention_of_large_logits_does_not_overflow():
    query, key, value = normal(0, *((1, 4, 2, 8),) * 3)
    found = cpu.attend(1e3 * query, 1e3 * key, value)
    assert np.all(np.isfinite(found))
    np.testing.assert_allclose(found, plain.attend(1e3 * query, 1e3 * key, value), rtol=1e-5)


@settings(max_examples=12, deadline=None)
@given(st.integers(1, 3), st.integers(2, 9), st.integers(2, 9), sizes, seeds)
def test_tokenizer(batch, height, width, features, seed):
    images, kernel = normal(seed, (batch, height, width, 3), (3, 3, 3, features))
    assert_same(cpu.tokenize, plain.tokenize, images, kernel)


def test_tokenizer_gives_equal_values_of_a_window_to_the_first():
    """A flat image makes every value of the convolution equal but at its border."""
    (kernel,) = normal(0, (3, 3, 3, 4))
    for value in (1.0, 0.0):
        images = np.full((2, 8, 8, 3), value, np.float32)
        assert_same(cpu.tokenize, plain.tokenize, images, kernel)


@pytest.mark.parametrize("name", ["layer_norm", "linear", "gelu", "attend", "tokenize"])
def test_half_precision_takes_the_plain_way(name):
    def half(*shapes):
        return [jnp.asarray(x, jnp.bfloat16) for x in normal(0, *shapes)]

    scale = normal(1, (6,), (6,))
    args = {
        "layer_norm": (*half((4, 6)), *scale, 1e-5),
        "linear": (*half((4, 6)), *map(jnp.asarray, normal(2, (6, 5), (5,)))),
        "gelu": half((7,)),
        "attend": half(*((2, 3, 2, 4),) * 3),
        "tokenize": (*half((2, 4, 4, 3)), *normal(3, (3, 3, 3, 5))),
    }[name]
    found, want = (getattr(module, name)(*args) for module in (cpu, plain))
    assert found.dtype == want.dtype == jnp.bfloat16
    np.testing.assert_array_equal(found, want)


@settings(max_examples=10)
@given(st.integers(1, 4), st.lists(sizes, min_size=1, max_size=3), seeds)
def test_random_bits_are_those_of_jax(keys, shape, seed):
    keys = jax.random.split(jax.random.key(seed), keys)
    want = [jax.random.bits(key, tuple(shape), jnp.uint32) for key in keys]
    np.testing.assert_array_equal(random_bits.bits(keys, tuple(shape)), want)


# --- the choice ------------------------------------------------------------------------------


def test_auto_is_the_set_of_the_backend(monkeypatch):
    for platform, chosen in {"cpu": ops.CPU, "gpu": ops.GPU, "tpu": ops.PLAIN}.items():
        monkeypatch.setattr(jax, "default_backend", lambda platform=platform: platform)
        assert ops.choose("auto") is chosen
        assert ops.choose("plain") is ops.PLAIN


@pytest.mark.parametrize(
    "dtype, width, platform, version, capability, taken",
    [
        ("bfloat16", 16, "gpu", "cuda 13000", "9.0", True),
        ("float16", 128, "gpu", "PJRT C API CUDA", "8.0", True),
        ("float32", 16, "gpu", "cuda 13000", "9.0", False),
        ("bfloat16", 12, "gpu", "cuda 13000", "9.0", False),
        ("bfloat16", 136, "gpu", "cuda 13000", "9.0", False),
        ("bfloat16", 16, "gpu", "cuda 12000", "7.5", False),
        ("bfloat16", 16, "gpu", "rocm 60200", "gfx942", False),
        ("bfloat16", 16, "cpu", "cpu", None, False),
    ],
)
def test_where_cudnn_serves(dtype, width, platform, version, capability, taken):
    device = types.SimpleNamespace(
        platform=platform,
        client=types.SimpleNamespace(platform_version=version),
        compute_capability=capability,
    )
    assert gpu.cudnn_takes(jnp.dtype(dtype), width, device) is taken


@pytest.mark.parametrize("model", [VIT, CCT])
def test_a_model_computes_the_same_by_any_set_and_with_remat(model):
    params, images, labels = random_params(model, UNEVEN), random_images(4), np.array([0, 3, 1, 1])

    def run(**fields):
        config = dataclasses.replace(model, **fields)
        return loss_and_grads(config, UNEVEN)(params, images, labels, jax.random.key(1))

    want = run(kernels="plain")
    for fields in ({"kernels": "cpu"}, {"kernels": "gpu"}, {"remat": True, "kernels": "plain"}):
        for a, b in zip(jax.tree.leaves(run(**fields)), jax.tree.leaves(want), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-3, atol=2e-5, err_msg=str(fields))


def test_remat_keeps_less():
    """What the backward pass is handed is a fraction of what it is without."""

    def kept_bytes(remat):
        config = ViTConfig(
            layers=6, width=32, heads=4, head_width=8, channels=64, patch_size=2, remat=remat
        )
        topology = Topology((4,) * 6, (64,) * 6)
        module = config.module(topology, 5)

        def backward(params, images):
            def logits(params):
                key = {"dropout": jax.random.key(0)}
                return module.apply({"params": params}, images, train=True, rngs=key)

            return jax.vjp(logits, params)[1]

        kept = jax.eval_shape(backward, random_params(config, topology), random_images(8))
        return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(kept))

    assert kept_bytes(True) < 0.4 * kept_bytes(False)
