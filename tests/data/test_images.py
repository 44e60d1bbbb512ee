"""Decoding single images."""

import io

import numpy as np
import pytest
from PIL import Image

from barter_jax.data.images import decode_image
from barter_jax.errors import UserError

from .helpers import encode, noise


def decode(data, size=4, resize=False):
    image = decode_image(data, "some/file", size, resize)
    assert image.dtype == np.uint8 and image.shape == (size, size, 3)
    return image


@pytest.mark.parametrize("format", ["PNG", "BMP", "TIFF", "PPM", "GIF", "WEBP"])
def test_rgb_is_unchanged_in_lossless_formats(format):
    pixels = np.array([[[0, 10, 20], [255, 0, 0]], [[7, 8, 9], [1, 254, 128]]], np.uint8)
    options = {"lossless": True} if format == "WEBP" else {}
    np.testing.assert_array_equal(decode(encode(pixels, format, **options), 2), pixels)


def test_jpeg():
    pixels = np.full((8, 8, 3), (200, 100, 50), np.uint8)
    difference = decode(encode(pixels, "JPEG"), 8).astype(int) - pixels
    assert np.abs(difference).max() <= 3


def test_greyscale():
    grey = np.arange(16, dtype=np.uint8).reshape(4, 4) * 17
    np.testing.assert_array_equal(decode(encode(grey)), np.repeat(grey[..., None], 3, -1))


def test_black_and_white():
    bits = Image.fromarray(np.eye(4, dtype=bool))
    assert bits.mode == "1"
    expected = np.repeat((np.eye(4) * 255)[..., None], 3, -1)
    np.testing.assert_array_equal(decode(encode(bits)), expected)


@pytest.mark.parametrize("format", ["PNG", "TIFF", "PPM"])
def test_16_bit_is_scaled_not_clipped(format):
    values = np.array([[0, 128, 129, 257], [1000, 32767, 32768, 40000]] * 2, np.uint16)
    expected = np.rint(values * (255 / 65535))
    assert list(expected[0]) == [0, 0, 1, 1] and expected[1, 3] == 156
    image = decode(encode(values, format))
    np.testing.assert_array_equal(image, np.repeat(expected[..., None], 3, -1))


def test_palette():
    image = Image.frombytes("P", (2, 2), bytes([0, 1, 2, 1]))
    image.putpalette([255, 0, 0, 0, 255, 0, 9, 8, 7])
    expected = [[[255, 0, 0], [0, 255, 0]], [[9, 8, 7], [0, 255, 0]]]
    np.testing.assert_array_equal(decode(encode(image), 2), expected)


def test_transparent_palette_entry_becomes_white():
    image = Image.frombytes("P", (2, 1), bytes([0, 1]))
    image.putpalette([10, 20, 30, 0, 255, 0])
    data = encode(image.resize((2, 2)), transparency=1)
    np.testing.assert_array_equal(decode(data, 2)[0], [[10, 20, 30], [255, 255, 255]])


def test_alpha_is_composited_over_white():
    pixels = np.zeros((2, 2, 4), np.uint8)
    pixels[0] = [[10, 20, 30, 255], [10, 20, 30, 0]]
    pixels[1] = [[0, 0, 0, 51], [255, 255, 255, 51]]  # An alpha of 51 is one fifth.
    expected = [[[10, 20, 30], [255] * 3], [[204] * 3, [255] * 3]]
    np.testing.assert_array_equal(decode(encode(pixels), 2), expected)


def test_grey_with_alpha():
    image = Image.merge("LA", [Image.new("L", (2, 2), 40), Image.new("L", (2, 2), 0)])
    np.testing.assert_array_equal(decode(encode(image), 2), np.full((2, 2, 3), 255))


@pytest.mark.parametrize("format", ["TIFF", "JPEG"])
def test_cmyk(format):
    image = Image.new("CMYK", (8, 8), (0, 255, 255, 0))
    difference = decode(encode(image, format), 8).astype(int) - [255, 0, 0]
    assert np.abs(difference).max() <= 8


def test_exif_orientation():
    pixels = noise(0)
    exif = Image.Exif()
    exif[0x0112] = 6  # To be turned by 90 degrees clockwise for display.
    data = encode(pixels, exif=exif)
    np.testing.assert_array_equal(decode(data), np.rot90(pixels, -1))


def test_size_that_differs_is_refused():
    data = encode(np.zeros((6, 5, 3), np.uint8))
    with pytest.raises(UserError, match=r"some/file: 5x6 .*data\.image_size=4.*data\.resize=True"):
        decode(data)


def test_resize_leaves_an_image_of_the_right_size_alone():
    pixels = noise(1)
    np.testing.assert_array_equal(decode(encode(pixels), resize=True), pixels)


def test_only_the_longer_side_is_cropped():
    pixels = np.arange(4 * 9 * 3, dtype=np.uint8).reshape(4, 9, 3)
    np.testing.assert_array_equal(decode(encode(pixels), resize=True), pixels[:, 2:6])
    upright = pixels.transpose(1, 0, 2)
    np.testing.assert_array_equal(decode(encode(upright), resize=True), upright[2:6])


def test_shrinking_averages():
    # Fine stripes: without antialiasing, sampling every fourth column would give 0 or 255.
    stripes = np.zeros((16, 32, 3), np.uint8)
    stripes[:, ::2] = 255
    image = decode(encode(stripes), resize=True)
    assert image.min() >= 100 and image.max() <= 155


@pytest.mark.parametrize("size", [(1, 7), (3, 2), (5, 1000), (333, 500)])
def test_any_size_can_be_resized(size):
    assert (decode(encode(np.full((*size, 3), 99, np.uint8)), resize=True) == 99).all()


@pytest.mark.parametrize("format", ["JPEG", "PNG", "BMP", "TIFF", "PPM", "WEBP"])
@pytest.mark.filterwarnings("ignore:Truncated File Read")
def test_truncated(format):
    pixels = noise(2, 32)
    data = encode(pixels, format)
    whole = decode(data, 32)
    for length in range(0, len(data), max(len(data) // 40, 1)):
        try:
            image = decode(data[:length], 32)
        except UserError as error:
            assert str(error).startswith("some/file: cannot be decoded (")
            assert "\n" not in str(error) and "object at" not in str(error)
        else:
            # Only what follows the pixels may be missing.
            np.testing.assert_array_equal(image, whole)


@pytest.mark.parametrize("content", [b"", b"hello", b"\xff\xd8\xff\xe0" + b"\0" * 100])
def test_not_an_image(content):
    with pytest.raises(UserError, match=r"some/file: cannot be decoded \(.*replace or remove it"):
        decode(content)


def test_floating_point_is_refused():
    data = encode(np.ones((4, 4), np.float32), "TIFF")
    with pytest.raises(UserError, match="some/file.*floating-point"):
        decode(data)


def test_32_bit_values_beyond_16_bits_are_refused():
    data = encode(np.full((4, 4), 70000, np.int32), "TIFF")
    assert Image.open(io.BytesIO(data)).mode == "I"
    with pytest.raises(UserError, match="some/file.*16 bits"):
        decode(data)
