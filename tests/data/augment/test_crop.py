"""Crops against Pillow, and the boxes against their definition."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from barter_jax.data.augment import crop, pixels, randomness
from tests.data.augment.helpers import assert_close, assert_rate, assert_uniform, images

FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
COUNT = 20000


@functools.partial(jax.jit, static_argnums=(2, 3))
def resized(batch, boxes, size, interpolation):
    def one(image, box):
        return crop.resized(image, box, size, size, interpolation)

    return pixels.unpack(jax.vmap(one)(pixels.pack(batch), boxes))


def pillow_resized(image, box, size, interpolation):
    """One direction after the other: in which order Pillow does it depends on its version."""
    top, left, height, width = box
    part = Image.fromarray(image).crop((left, top, left + width, top + height))
    part = part.resize((size, height), FILTERS[interpolation])
    return np.asarray(part.resize((size, size), FILTERS[interpolation]))


@pytest.mark.parametrize("interpolation", FILTERS)
@pytest.mark.parametrize(("load", "size"), [(8, 8), (32, 32), (33, 20), (64, 64), (256, 224)])
def test_resized_against_pillow(load, size, interpolation):
    batch = images(load)
    boxes = [
        (0, 0, load, load),
        (1, 2, load - 3, load - 2),
        (3, 0, 2, 5),
        (load - 1, load - 1, 1, 1),
        (load // 2, load // 3, load // 2, load // 4),
    ]
    for shift in range(2):
        turn = boxes[shift:] + boxes[:shift]
        ours = np.asarray(resized(batch, jnp.array(turn, jnp.int32), size, interpolation))
        assert ours.dtype == np.uint8
        for image, box, result in zip(batch, turn, ours, strict=True):
            expected = pillow_resized(image, box, size, interpolation)
            if interpolation == "bilinear":
                np.testing.assert_array_equal(result, expected, f"{box}")
            else:  # Weights in float32 miss some halves, in either direction.
                assert_close(result, expected, 2, 0.05, f"{box}")


def test_the_whole_box_of_the_same_size_is_the_image():
    batch = images(32)
    boxes = jnp.tile(jnp.array([0, 0, 32, 32]), (5, 1))
    for interpolation in FILTERS:
        np.testing.assert_array_equal(resized(batch, boxes, 32, interpolation), batch)


def test_nothing_outside_the_box_matters():
    batch = images(33)
    other = batch.copy()
    other[:, :5], other[:, 25:], other[:, :, :4], other[:, :, 30:] = 0, 255, 255, 0
    boxes = jnp.tile(jnp.array([5, 4, 20, 26]), (5, 1))
    for interpolation in FILTERS:
        np.testing.assert_array_equal(
            resized(batch, boxes, 20, interpolation), resized(other, boxes, 20, interpolation)
        )


def draw_boxes(shape, scale, ratio, count=COUNT):
    numbers = randomness.uniform(jax.random.split(jax.random.key(1), count), crop.NUMBERS)
    boxes = jax.jit(jax.vmap(lambda u: crop.draw_box(u, shape, scale, ratio)))(numbers)
    return np.asarray(boxes, int)


def test_boxes_have_the_area_ratio_and_place_of_their_definition():
    # Boxes of these bounds always fit.
    top, left, height, width = draw_boxes((200, 240), (0.1, 0.3), (3 / 4, 4 / 3)).T
    area, ratio = height * width / (200 * 240), np.log(width / height)
    assert abs(area.mean() - 0.2) < 4.5 * 0.2 / np.sqrt(12 * COUNT) + 2e-3
    assert abs(area.var() - 0.2**2 / 12) < 2e-4
    assert 0.098 < area.min() and area.max() < 0.303
    assert abs(ratio.mean()) < 4.5 * np.log(16 / 9) / np.sqrt(12 * COUNT) + 2e-3
    assert abs(ratio.var() - np.log(16 / 9) ** 2 / 12) < 2e-3
    # Half a pixel on both sides makes a whole number uniform.
    assert_uniform((top + 0.5) / (200 - height + 1), 0, 1)
    assert_uniform((left + 0.5) / (240 - width + 1), 0, 1)


def test_boxes_lie_inside():
    for shape in ((32, 32), (9, 40)):
        top, left, height, width = draw_boxes(shape, (0.08, 1.0), (3 / 4, 4 / 3)).T
        assert top.min() >= 0 and left.min() >= 0 and min(height.min(), width.min()) >= 1
        assert (top + height).max() <= shape[0] and (left + width).max() <= shape[1]


@pytest.mark.parametrize(
    ("shape", "expected"),
    [((10, 60), (0, 23, 10, 13)), ((60, 10), (23, 0, 13, 10)), ((20, 20), (0, 0, 20, 20))],
)
def test_where_no_box_fits_the_largest_in_the_middle_is_taken(shape, expected):
    # The whole area fits only at the image's own ratio.
    boxes = draw_boxes(shape, (1.0, 1.0), (3 / 4, 4 / 3), 500)
    fallback = (boxes == expected).all(1)
    assert fallback.mean() > 0.5 if shape == (20, 20) else fallback.all()


def test_windows_are_uniform_and_cut_out_of_the_zeros_around():
    keys = jax.random.split(jax.random.key(0), 4000)
    draw = jax.jit(jax.vmap(lambda k: crop.draw_window(k, (12, 10), 2, 8, 8)))
    corners = np.asarray(draw(keys))
    for axis, places in ((0, 9), (1, 7)):
        for place in range(places):
            assert_rate(corners[:, axis] == place, 1 / places)
    image = np.random.default_rng(0).integers(1, 256, (12, 10, 3), np.uint8)
    padded = np.pad(image, ((2, 2), (2, 2), (0, 0)))
    for top, left in ((0, 0), (8, 6), (3, 5)):
        ours = crop.window(jnp.asarray(image), jnp.array([top, left]), 2, 8, 8)
        np.testing.assert_array_equal(ours, padded[top : top + 8, left : left + 8])


def test_centre():
    image = jnp.arange(7 * 6).reshape(7, 6)
    np.testing.assert_array_equal(crop.centre(image, 4, 4), image[1:5, 1:5])
    np.testing.assert_array_equal(crop.centre(image, 7, 6), image)
