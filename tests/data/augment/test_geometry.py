"""Rotations, shears and translations against Pillow."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from barter_jax.data.augment import geometry
from tests.data.augment.helpers import assert_close, images, on_batch, pillow

FILL = (128, 10, 77)
RESAMPLING = {"nearest": Image.Resampling.NEAREST, "bilinear": Image.Resampling.BILINEAR}
nearest, bilinear = (
    on_batch(lambda x, matrix, i=i: geometry.transform(x, matrix, i, FILL)) for i in RESAMPLING
)
OURS = {"nearest": nearest, "bilinear": bilinear}


def theirs(batch, name, value, interpolation):
    size = batch.shape[1]
    options = {"resample": RESAMPLING[interpolation], "fillcolor": FILL}
    if name == "rotation":
        return pillow(lambda i: i.rotate(value, **options), batch)
    matrix = [1.0, 0.0, 0.0, 0.0, 1.0, 0.0]
    places = {"shear_x": 1, "shear_y": 3, "translation_x": 2, "translation_y": 5}
    matrix[places[name]] = value
    affine = Image.Transform.AFFINE
    return pillow(lambda i: i.transform((size, size), affine, matrix, **options), batch)


def cases(size):
    yield from (("rotation", degrees) for degrees in (-30.0, -9.3, 0.0, 3.0, 27.0))
    yield from ((f"shear_{axis}", slope) for axis in "xy" for slope in (-0.3, 0.1234))
    yield from ((f"translation_{a}", part * size) for a in "xy" for part in (-0.45, 0.1234))


def matrix_of(name, value, size):
    value = jnp.float32(value)
    make = getattr(geometry, name)
    return make(value, size, size) if name == "rotation" else make(value)


@pytest.mark.parametrize("size", [8, 32, 33, 64, 224])
def test_nearest(size):
    batch = images(size)[:3]
    for name, value in cases(size):
        ours = nearest(batch, matrix_of(name, value, size))
        expected = theirs(batch, name, value, "nearest")
        # A place in float32 may lie on the other side of the line between two pixels.
        assert (ours != expected).any(-1).mean() < 1e-4, (name, value)


@pytest.mark.parametrize("size", [8, 32, 33, 64, 224])
def test_bilinear(size):
    batch = images(size)[:3]
    for name, value in cases(size):
        ours = bilinear(batch, matrix_of(name, value, size))
        difference = np.abs(ours.astype(int) - theirs(batch, name, value, "bilinear")).max(-1)
        assert (difference > 1).mean() < 1e-3, (name, value)
        # Many sums are whole numbers in float64 and just below in float32, or the other way.
        assert (difference > 0).mean() < 0.35, (name, value)


@pytest.mark.parametrize("interpolation", OURS)
def test_doing_nothing_and_filling(interpolation):
    batch = images(32)
    transform = OURS[interpolation]
    np.testing.assert_array_equal(transform(batch, matrix_of("shear_x", 0, 32)), batch)
    np.testing.assert_array_equal(
        transform(batch, matrix_of("translation_y", 40, 32)), np.full_like(batch, FILL)
    )
    moved = transform(batch, matrix_of("translation_x", 5, 32))
    np.testing.assert_array_equal(moved[:, :, :-5], batch[:, :, 5:])
    assert (moved[:, :, -5:] == FILL).all()
    grey = on_batch(lambda x, m: geometry.transform(x, m, interpolation, (9, 9, 9)))
    turned = grey(batch[2:3], matrix_of("rotation", 20, 32))
    assert (turned == turned[..., :1]).all()


def test_rotation_is_counter_clockwise_about_the_middle():
    batch = images(8)
    # Pillow turns by exactly this for 90 degrees, without interpolation.
    turned = nearest(batch, matrix_of("rotation", 90, 8))
    assert_close(turned, np.rot90(batch, axes=(1, 2)), 0)


def test_matrices_of_many():
    angles = jnp.array([[1.0, 2.0], [3.0, 4.0]])
    assert geometry.rotation(angles, 4, 6).shape == (2, 2, 6)
    many = jax.vmap(geometry.translation_x)(angles)
    np.testing.assert_array_equal(many[1, 0], [1, 0, 3, 0, 1, 0])
