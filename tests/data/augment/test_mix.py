"""Mixup and CutMix."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from barter_jax.data.augment import mix
from tests.data.augment.helpers import PLAIN, assert_rate

COUNT = 20000
BOTH = dataclasses.replace(PLAIN, mixup_alpha=0.8, cutmix_alpha=1.0)


MIXUP = dataclasses.replace(BOTH, cutmix_alpha=0.0)
CUTMIX = dataclasses.replace(BOTH, mixup_alpha=0.0)


@functools.cache
def drawn(settings, batch_size=5, shape=(20, 30), count=COUNT):
    keys = jax.random.split(jax.random.key(2), count)
    draw = jax.jit(jax.vmap(lambda k: mix.draw(k, batch_size, settings, shape)))
    return jax.tree.map(np.asarray, draw(keys))


def test_how_often_what_is_done():
    settings = dataclasses.replace(BOTH, mix_probability=0.7, cutmix_probability=0.2)
    choice = drawn(settings)
    assert_rate(choice.cut, 0.7 * 0.2)
    assert_rate((choice.share < 1) & ~choice.cut, 0.7 * 0.8)
    assert not drawn(MIXUP).cut.any() and drawn(CUTMIX).cut.all()
    assert (drawn(MIXUP).share < 1).mean() > 0.99
    never = dataclasses.replace(BOTH, mixup_alpha=0.0, cutmix_alpha=0.0)
    assert mix.is_on(BOTH) and not mix.is_on(never)
    assert not mix.is_on(dataclasses.replace(BOTH, mix_probability=0.0))


@pytest.fixture(scope="module")
def beta():
    numbers = jax.random.uniform(jax.random.key(0), (COUNT, 2), minval=2.0**-24)
    draw = jax.jit(jax.vmap(mix.symmetric_beta, (0, None)))
    return lambda alpha: np.asarray(draw(numbers, jnp.float32(alpha)), np.float64)


@pytest.mark.parametrize("alpha", [0.2, 0.8, 1.0, 5.0])
def test_the_share_is_beta(alpha, beta):
    share = beta(alpha)
    variance = 1 / (4 * (2 * alpha + 1))
    assert abs(share.mean() - 0.5) < 4.5 * np.sqrt(variance / COUNT)
    # The fourth central moment of Beta(a, a) is 3 / (16 (2a + 1) (2a + 3)).
    fourth = 3 / (16 * (2 * alpha + 1) * (2 * alpha + 3))
    assert abs(share.var() - variance) < 4.5 * np.sqrt((fourth - variance**2) / COUNT)
    assert abs(((share - 0.5) ** 4).mean() - fourth) < 0.05 * fourth
    assert_rate(share < 0.5, 0.5)


def test_tiny_and_huge_alphas(beta):
    assert set(np.unique(beta(1e-6))) == {0.0, 1.0}
    assert_rate(beta(1e-6) == 1, 0.5)
    assert np.abs(beta(1e6) - 0.5).max() < 0.003


def test_mixup_draws_its_own_alpha():
    share = drawn(MIXUP).share
    assert abs(share.var() - 1 / (4 * 2.6)) < 0.003


def test_boxes_are_the_papers_and_the_share_is_the_area_left():
    choice = drawn(CUTMIX)
    y0, x0, y1, x1 = choice.box.T
    assert y0.min() == 0 and y1.max() == 20 and x0.min() == 0 and x1.max() == 30
    assert (y1 >= y0).all() and (x1 >= x0).all()
    np.testing.assert_allclose(choice.share, 1 - (y1 - y0) * (x1 - x0) / 600, rtol=1e-6, atol=1e-6)
    # sqrt(1 - lambda) is below 1/2 with probability 1/4: half of such a box's height is at most 4.
    inner = (y0 > 0) & (y1 < 20) & (x0 > 0) & (x1 < 30)
    half_y, half_x = (y1 - y0)[inner] // 2, (x1 - x0)[inner] // 2
    assert np.abs(half_x - 1.5 * half_y).max() <= 1.5
    assert ((y1 - y0)[inner] % 2 == 0).all()


def test_a_box_by_hand():
    # 1 - 0.75 is a quarter of the area: half of 20 and half of 30, 5 and 7 on either side.
    def box(y, x):
        return mix.cutmix_box(jnp.array([y, x]), jnp.float32(0.75), (20, 30)).tolist()

    assert box(0.501, 0.501) == [5, 8, 15, 22]
    assert box(0.001, 0.999) == [0, 22, 5, 30]
    assert mix.cutmix_box(jnp.array([0.5, 0.5]), jnp.float32(1.0), (20, 30)).tolist() == [
        10,
        15,
        10,
        15,
    ]


def test_partners():
    permuted = drawn(BOTH).partners
    assert (np.sort(permuted, axis=1) == np.arange(5)).all()
    for partner in range(5):
        assert_rate(permuted[:, 2] == partner, 0.2)
    flip = dataclasses.replace(BOTH, mix_pairs="flip")
    assert mix.draw(jax.random.key(0), 5, flip, (20, 30)).partners.tolist() == [4, 3, 2, 1, 0]
    assert mix.draw(jax.random.key(0), 1, BOTH, (20, 30)).partners.tolist() == [0]


def test_mixing_by_hand():
    images = jnp.arange(3 * 2 * 2 * 3, dtype=jnp.float32).reshape(3, 2, 2, 3)
    targets = jnp.eye(3)
    nowhere, partners = jnp.zeros(4, jnp.int32), jnp.array([1, 2, 0])
    choice = mix.Mix(jnp.float32(0.75), nowhere, jnp.array(False), partners)
    mixed, soft = mix.apply(choice, images, targets)
    np.testing.assert_allclose(mixed, 0.75 * images + 0.25 * images[partners], rtol=1e-6)
    np.testing.assert_allclose(soft[0], [0.75, 0.25, 0])
    np.testing.assert_allclose(soft[2], [0.25, 0, 0.75])

    cut = mix.Mix(jnp.float32(0.5), jnp.array([0, 1, 2, 2]), jnp.array(True), partners)
    mixed, soft = mix.apply(cut, images, targets)
    np.testing.assert_array_equal(mixed[:, :, 0], images[:, :, 0])
    np.testing.assert_array_equal(mixed[:, :, 1], images[partners][:, :, 1])
    np.testing.assert_allclose(soft[1], [0, 0.5, 0.5])

    unmixed = mix.Mix(jnp.float32(1), nowhere, jnp.array(False), partners)
    mixed, soft = mix.apply(unmixed, images, targets)
    np.testing.assert_array_equal(mixed, images)
    np.testing.assert_array_equal(soft, targets)
