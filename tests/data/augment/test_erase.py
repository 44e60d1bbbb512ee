"""Random erasing."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from barter_jax.data.augment import erase, randomness
from tests.data.augment.helpers import PLAIN, assert_rate, assert_uniform

COUNT = 20000
SETTINGS = dataclasses.replace(
    PLAIN, erase_probability=0.25, erase_area=(0.02, 0.2), erase_value=(1.0, 2.0, 3.0)
)


def drawn(settings, shape):
    keys = jax.random.split(jax.random.key(5), COUNT)
    numbers = randomness.uniform(keys, erase.NUMBERS)
    return np.asarray(jax.jit(jax.vmap(lambda u: erase.draw(u, settings, shape)))(numbers), int)


def test_boxes_follow_their_definition():
    # Of this height and width, every box fits at once.
    boxes = drawn(SETTINGS, (300, 300))
    erased = boxes[:, 2] > 0
    assert_rate(erased, 0.25)
    top, left, height, width = boxes[erased].T
    area = height * width / 90000
    assert abs(area.mean() - 0.11) < 4.5 * 0.18 / np.sqrt(12 * len(area)) + 1e-3
    assert 0.019 < area.min() and area.max() < 0.203
    ratio = np.log(height / width)
    spread = 2 * np.log(1 / 0.3)
    assert abs(ratio.mean()) < 4.5 * spread / np.sqrt(12 * len(area)) + 2e-3
    assert abs(ratio.std() - spread / np.sqrt(12)) < 0.03
    assert_uniform((top + 0.5) / (300 - height + 1), 0, 1)
    assert_uniform((left + 0.5) / (300 - width + 1), 0, 1)


def test_a_uniform_ratio_makes_tall_boxes_oftener():
    settings = dataclasses.replace(
        SETTINGS, erase_probability=1.0, erase_ratio=(0.25, 4.0), erase_ratio_law="uniform"
    )
    *_, height, width = drawn(settings, (300, 300)).T
    assert_rate(height > width, 0.8)
    ratio = height / width
    spread = 3.75 / np.sqrt(12)
    # Whole pixels move the ratio a little.
    assert abs(ratio.mean() - 2.125) < 4.5 * spread / np.sqrt(COUNT) + 0.01
    assert abs(ratio.std() - spread) < 0.03


def test_the_smallest_box_has_a_pixel():
    settings = dataclasses.replace(SETTINGS, erase_probability=1.0, erase_area=(1e-5, 1e-5))
    *_, height, width = drawn(settings, (8, 12)).T
    assert (height == 1).all() and (width == 1).all()


def test_boxes_lie_inside_and_nothing_is_erased_where_none_fits():
    wide = dataclasses.replace(SETTINGS, erase_probability=1.0, erase_area=(0.02, 1.0))
    top, left, height, width = drawn(wide, (8, 12)).T
    assert top.min() >= 0 and (top + height).max() <= 8 and height.max() < 8
    assert left.min() >= 0 and (left + width).max() <= 12 and width.max() < 12
    assert_rate(height > 0, 0.999)
    whole = dataclasses.replace(wide, erase_area=(1.0, 1.0))
    assert not drawn(whole, (8, 12)).any()


def test_a_constant_is_written_into_the_box():
    image = jnp.full((6, 7, 3), -1.0)
    choice = erase.Erase(jnp.array([1, 2, 3, 4]), None)
    result = np.asarray(erase.apply(choice, image, SETTINGS))
    expected = np.full((6, 7, 3), -1.0)
    expected[1:4, 2:6] = (1, 2, 3)
    np.testing.assert_array_equal(result, expected)
    nothing = erase.Erase(jnp.zeros(4, jnp.int32), None)
    np.testing.assert_array_equal(erase.apply(nothing, image, SETTINGS), image)


def test_noise_is_standard_normal_and_of_its_own_key():
    settings = dataclasses.replace(SETTINGS, erase_mode="pixel")
    image = jnp.full((120, 100, 3), 50.0)
    apply = jax.jit(lambda box, key: erase.apply(erase.Erase(box, key), image, settings))
    keys = jax.random.split(jax.random.key(0))
    first, second = (np.asarray(apply(jnp.array([10, 20, 100, 70]), key)) for key in keys)
    box = np.zeros((120, 100), bool)
    box[10:110, 20:90] = True
    assert (first[~box] == 50).all()
    noise = first[box]
    assert abs(noise.mean()) < 4.5 / np.sqrt(noise.size)
    assert abs(noise.var() - 1) < 4.5 * np.sqrt(2 / noise.size)
    assert_rate(noise.ravel() < -1, 0.158655)
    assert_rate(noise.ravel() > 2, 0.022750)
    assert abs(np.corrcoef(noise.ravel(), second[box].ravel())[0, 1]) < 4.5 / np.sqrt(noise.size)
    assert abs(np.corrcoef(noise[:, 0], noise[:, 1])[0, 1]) < 4.5 / np.sqrt(len(noise))
    np.testing.assert_array_equal(apply(jnp.zeros(4, jnp.int32), keys[0]), image)


def test_the_extremes_of_the_bits_are_finite():
    extremes = randomness.normal(jnp.array([2.0**-24, 1 - 2.0**-24, 0.5]))
    np.testing.assert_allclose(extremes, [-5.295, 5.295, 0], atol=0.02)
