"""Colour operations against Pillow."""

import hypothesis
import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageEnhance, ImageOps

from barter_jax.data.augment import colour, pixels
from tests.data.augment.helpers import assert_close, images, on_batch, pillow

ENHANCERS = {
    "brightness": (colour.brightness, ImageEnhance.Brightness),
    "contrast": (colour.contrast, ImageEnhance.Contrast),
    "saturation": (colour.saturation, ImageEnhance.Color),
    "sharpness": (colour.sharpness, ImageEnhance.Sharpness),
}


# Compiled once for each size: all of them at the same arguments.
@on_batch
def plain(x):
    return {
        "invert": colour.invert(x),
        "equalize": colour.equalize(x),
        "auto_contrast": colour.auto_contrast(x),
    }


@on_batch
def graded(x, whole, factor):
    return {
        "posterize": colour.posterize(x, whole % 9),
        "solarize": colour.solarize(x, whole),
        "solarize_add": colour.solarize_add(x, whole),
        **{name: ours(x, factor) for name, (ours, _) in ENHANCERS.items()},
    }


shift_hue = on_batch(colour.shift_hue)


def solarize_add(image, amount):
    return image.point([min(i + amount, 255) if i < 128 else i for i in range(256)] * 3)


@pytest.mark.parametrize("size", [1, 8, 33, 64, 224])
def test_operations_without_argument(size):
    batch = images(size)
    ours = plain(batch)
    np.testing.assert_array_equal(ours["invert"], pillow(ImageOps.invert, batch))
    np.testing.assert_array_equal(ours["equalize"], pillow(ImageOps.equalize, batch))
    # Pillow's float64 may fall just below a whole number.
    assert_close(ours["auto_contrast"], pillow(ImageOps.autocontrast, batch), 1, 0.2)
    assert (ours["equalize"][3] == batch[3]).all() and (ours["auto_contrast"][3] == batch[3]).all()


def check_graded(batch, whole, factor):
    ours = graded(batch, np.int32(whole), np.float32(factor))
    bits = whole % 9
    kept = batch & (0xFF00 >> bits & 0xFF)
    if bits:
        kept = pillow(lambda i: ImageOps.posterize(i, bits), batch)
    np.testing.assert_array_equal(ours["posterize"], kept)
    np.testing.assert_array_equal(
        ours["solarize"], pillow(lambda i: ImageOps.solarize(i, whole), batch)
    )
    np.testing.assert_array_equal(
        ours["solarize_add"], pillow(lambda i: solarize_add(i, whole), batch)
    )
    for name, (_, enhancer) in ENHANCERS.items():
        theirs = pillow(lambda i, e=enhancer: e(i).enhance(float(factor)), batch)
        np.testing.assert_array_equal(ours[name], theirs, name)


@pytest.mark.parametrize("size", [2, 8, 33, 224])
@pytest.mark.parametrize(("whole", "factor"), [(0, 0.1), (110, 0.6), (256, 1.9)])
def test_operations_with_an_argument(size, whole, factor):
    check_graded(images(size), whole, factor)


@hypothesis.settings(max_examples=12)
@given(st.integers(0, 256), st.floats(0.0, 2.0, width=32), st.integers(0, 2**32 - 1))
def test_any_argument(whole, factor, seed):
    check_graded(images(32, seed), whole, np.float32(factor))


def test_black_is_what_no_bits_leave():
    assert not graded(images(32), np.int32(9), np.float32(1))["posterize"].any()


def test_solarize_takes_thresholds_between_whole_numbers():
    batch = np.arange(256, dtype=np.uint8).reshape(1, 16, 16, 1).repeat(3, 3)
    ours = on_batch(colour.solarize)(batch, np.float32(28.4))
    np.testing.assert_array_equal(ours, np.where(batch < 28.4, batch, 255 - batch))


@pytest.mark.parametrize("shift", [-128, -31, 0, 40, 127])
def test_hue_against_pillow_within_its_quantisation(shift):
    batch = np.concatenate([images(32, seed) for seed in range(3)])

    def turn(image):
        hue, saturation, value = image.convert("HSV").split()
        hue = Image.fromarray(np.asarray(hue) + np.uint8(shift % 256))
        return Image.merge("HSV", (hue, saturation, value)).convert("RGB")

    ours, theirs = shift_hue(batch, np.float32(shift / 256)), pillow(turn, batch)
    # Pillow cuts the hue to 8 bits: 6 levels at full chroma for each unit that it is off.
    assert_close(ours, theirs, 12)
    assert np.abs(ours.astype(int) - theirs).mean() < 1.2


def test_hue_by_hand():
    red = np.array([[[[200, 50, 50]]]], np.uint8)
    np.testing.assert_array_equal(shift_hue(red, np.float32(1 / 3)), [[[[50, 200, 50]]]])
    np.testing.assert_array_equal(shift_hue(red, np.float32(-1 / 3)), [[[[50, 50, 200]]]])
    np.testing.assert_array_equal(shift_hue(red, np.float32(0.5)), [[[[50, 200, 200]]]])
    batch = images(8)
    for turns in (0, 1, -1):
        np.testing.assert_array_equal(shift_hue(batch, np.float32(turns)), batch)
    assert (shift_hue(batch, np.float32(0.3))[2] == batch[2]).all()  # grey has no hue


def test_grey_stays_grey():
    grey = images(32)[2:3]
    results = plain(grey) | graded(grey, np.int32(77), np.float32(1.7))
    for name, result in results.items():
        assert (result == result[..., :1]).all(), name


def test_packing_loses_nothing():
    batch = images(8)
    packed = pixels.pack(batch)
    assert packed.dtype == np.uint32 and packed.shape == batch.shape[:3]
    np.testing.assert_array_equal(jax.jit(pixels.unpack)(packed), batch)
    np.testing.assert_array_equal(
        pixels.luma(*pixels.split(packed)), pillow(lambda i: i.convert("L"), batch)
    )
