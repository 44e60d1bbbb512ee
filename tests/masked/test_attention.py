"""Scores of heads against their definition, spelled out with a perturbation of every map."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from barter_jax.core.topology import Topology
from barter_jax.masked import attention
from barter_jax.masked.attention import make_scores
from barter_jax.models.ops import plain
from tests.helpers import CCT, CLASSES, VIT, random_images, random_params
from tests.masked import quick


def inputs(seed=0, dropout=True):
    rng = np.random.default_rng(seed)
    q, k, v = (rng.standard_normal((2, 5, 3, 4)).astype(np.float32) for _ in range(3))
    keep = plain.Keep(jnp.asarray(rng.random((3, 2, 5, 5)) < 0.7), 0.7) if dropout else None
    return q, k, v, keep


@pytest.mark.parametrize("dropout", [False, True])
def test_attention_with_a_probe_is_attention(dropout):
    q, k, v, keep = inputs(dropout=dropout)
    found = attention.attend(jnp.zeros(3), q, k, v, keep)
    np.testing.assert_allclose(found, plain.attend(q, k, v, keep), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dropout", [False, True])
def test_scores_by_their_definition(dropout):
    q, k, v, keep = inputs(dropout=dropout)
    target = np.random.default_rng(1).standard_normal((2, 5, 3, 4))

    def loss(mixed):
        return jnp.sum(jnp.square(mixed - target)) / 7

    found = jax.grad(lambda probe: loss(attention.attend(probe, q, k, v, keep)))(jnp.ones(3))

    maps = jax.nn.softmax(jnp.einsum("bnhk,bmhk->bhnm", q / 2, k), axis=-1)

    def perturbed(maps):
        if keep is not None:
            maps = jnp.where(jnp.einsum("hbmn->bhnm", keep.mask), maps / keep.share, 0)
        return loss(jnp.einsum("bhnm,bmhk->bnhk", maps, v))

    expected = np.mean(np.abs(maps * jax.grad(perturbed)(maps)), axis=(0, 2, 3))
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    assert len(set(np.round(expected, 6))) == 3


def test_the_gradient_of_all_else_is_untouched():
    q, k, v, keep = inputs()

    def total(attend):
        return lambda q, k, v: jnp.sum(jnp.sin(attend(q, k, v, keep)))

    found = jax.grad(total(lambda *args: attention.attend(jnp.zeros(3), *args)), argnums=(0, 1, 2))(
        q, k, v
    )
    expected = jax.grad(total(plain.attend), argnums=(0, 1, 2))(q, k, v)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


UNEVEN = Topology((3, 2), (5, 7))


@pytest.mark.parametrize("config", [VIT, CCT])
def test_scores_of_a_model(config):
    """One score a head, in the order of the layers; a head that is off and moves nothing has 0."""
    module = config.module(UNEVEN, CLASSES)
    params = random_params(config, UNEVEN)
    # What head 1 of layer 0 makes goes nowhere.
    params["block_0"]["attention"]["out"]["kernel"][1] = 0
    targets = np.eye(CLASSES, dtype=np.float32)[[0, 1, 2]]
    scores = quick.jit(make_scores(module))(params, random_images(), targets, jax.random.key(0))
    assert [s.shape for s in scores] == [(3,), (2,)]
    assert all(s.dtype == jnp.float32 for s in scores)
    assert scores[0][1] == 0
    assert np.all(np.delete(scores[0], 1) > 0) and np.all(np.asarray(scores[1]) > 0)


def test_a_probed_model_is_the_model():
    """The same logits with the same dropout."""
    params, images = random_params(VIT, UNEVEN), random_images()
    module = VIT.module(UNEVEN, CLASSES)

    @quick.jit
    def both(params, images, key):
        arguments = ({"params": params}, images)
        training = {"train": True, "rngs": {"dropout": key}}
        probes = (jnp.zeros(3), jnp.zeros(2))
        found = attention.apply_probed(module, probes, *arguments, **training)
        return found, module.apply(*arguments, **training)

    np.testing.assert_allclose(*both(params, images, jax.random.key(3)), rtol=1e-4, atol=1e-5)


def test_blocks_that_are_computed_again_are_probed_once():
    scores = make_scores(VIT.module(UNEVEN, CLASSES).clone(remat=True))
    arguments = (random_params(VIT, UNEVEN), random_images(), np.eye(3, CLASSES, dtype=np.float32))
    shapes = jax.eval_shape(scores, *arguments, jax.random.key(0))
    assert [s.shape for s in shapes] == [(3,), (2,)]


@pytest.mark.parametrize(("probes", "word"), [(1, "more"), (3, "less")])
def test_a_model_with_another_number_of_layers_is_refused(probes, word):
    module = VIT.module(UNEVEN, CLASSES)
    arguments = ({"params": random_params(VIT, UNEVEN)}, random_images())
    with pytest.raises(ValueError, match=f"attends {word} often than {probes} times"):
        attention.apply_probed(
            module, (jnp.zeros(3), jnp.zeros(2), jnp.zeros(3))[:probes], *arguments
        )


def test_any_keep_will_do():
    """The tap needs no more of what dropout keeps than its two fields."""
    q, k, v, keep = inputs()
    alike = types.SimpleNamespace(mask=keep.mask, share=keep.share)
    np.testing.assert_array_equal(
        attention.attend(jnp.zeros(3), q, k, v, alike),
        attention.attend(jnp.zeros(3), q, k, v, keep),
    )


@pytest.mark.parametrize("biases", [False, True])
def test_a_head_that_comes_back_learns_to_attend_only_with_biases(biases):
    """Query and key weights of zero: what `masked.s2vite` says of heads that are grown."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 5, 6)).astype(np.float32)
    zero, value = np.zeros((6, 3, 4), np.float32), rng.standard_normal((6, 3, 4))
    bias = rng.standard_normal((2, 3, 4)).astype(np.float32) * biases

    def loss(query, key):
        q, k, v = (jnp.einsum("bnd,dhk->bnhk", x, w) for w in (query, key, value))
        return jnp.sum(jnp.sin(plain.attend(q + bias[0], k + bias[1], v)))

    grads = jax.grad(loss, argnums=(0, 1))(zero, zero)
    # The softmax does not see what all keys have in common, their bias, so the key learns first.
    np.testing.assert_allclose(grads[0], 0, atol=1e-5)
    assert np.any(np.abs(grads[1]) > 1e-2) == biases
    assert biases or not np.any(grads[0]) and not np.any(grads[1])
