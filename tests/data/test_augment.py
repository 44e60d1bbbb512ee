"""Crop, flip, normalisation and labels of a batch against what numpy computes."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from barter_jax.data import augment
from barter_jax.data.augment import Augmentation

PLAIN = Augmentation(
    mean=(0.5, 0.25, 0.0),
    std=(0.5, 1.0, 0.25),
    flip=False,
    crop_padding=0,
    label_smoothing=0.0,
    num_classes=4,
)
FULL = dataclasses.replace(PLAIN, flip=True, crop_padding=2, label_smoothing=0.1)
RAW = dataclasses.replace(PLAIN, mean=(0.0,) * 3, std=(1 / 255,) * 3)

prepare_train = jax.jit(augment.prepare_train, static_argnames="augmentation")


def images(count, size=6, seed=0):
    generator = np.random.default_rng(seed)
    return generator.integers(1, 256, (count, size, size + 1, 3), np.uint8)


def key(seed=0):
    return jax.random.key(seed)


def windows(image, padding):
    """All crops that may come out, by offset."""
    height, width, _ = image.shape
    padded = np.pad(image, ((padding, padding), (padding, padding), (0, 0)))
    offsets = range(2 * padding + 1)
    return {(y, x): padded[y : y + height, x : x + width] for y in offsets for x in offsets}


def test_normalise():
    pixels = np.array([[[[0, 255, 51]]]], np.uint8)
    output = augment.normalise(pixels, PLAIN.mean, PLAIN.std)
    assert output.dtype == jnp.float32
    np.testing.assert_allclose(output, [[[[-1, 0.75, 0.8]]]], rtol=1e-6)


def shifted(key, batch, padding):
    """Images that were only cropped, uint8."""
    options = dataclasses.replace(RAW, crop_padding=padding)
    return raw(prepare_train(key, batch, np.zeros(len(batch), np.int32), options)[0])


def mirrored(key, batch):
    options = dataclasses.replace(RAW, flip=True)
    return raw(prepare_train(key, batch, np.zeros(len(batch), np.int32), options)[0])


def raw(output):
    return np.rint(np.asarray(output)).astype(np.uint8)


def test_flip_mirrors_about_half_of_the_images_and_only_left_to_right():
    batch = images(400)
    output = mirrored(key(), batch)
    flipped = np.array([(o == i[:, ::-1]).all() for o, i in zip(output, batch, strict=True)])
    kept = np.array([(o == i).all() for o, i in zip(output, batch, strict=True)])
    assert (flipped ^ kept).all()
    assert 150 < flipped.sum() < 250  # Five standard deviations are 50.


def test_crop_is_a_window_of_the_padded_image_and_every_offset_occurs():
    batch = images(400)
    output = shifted(key(), batch, 2)
    counts = np.zeros((5, 5), int)
    for image, crop in zip(batch, output, strict=True):
        (offset,) = [o for o, w in windows(image, 2).items() if (w == crop).all()]
        counts[offset] += 1
    assert counts.min() >= 4  # 16 are expected of each.
    assert counts.sum(0).min() > 40 and counts.sum(1).min() > 40


def test_crop_without_padding_changes_nothing():
    batch = images(5)
    np.testing.assert_array_equal(shifted(key(), batch, 0), batch)


@pytest.mark.parametrize("transform", [mirrored, lambda k, x: shifted(k, x, 2)])
def test_an_image_does_not_depend_on_the_others(transform):
    batch = images(16)
    output = transform(key(), batch)
    np.testing.assert_array_equal(output, transform(key(), batch))
    assert (output != transform(key(1), batch)).any()
    np.testing.assert_array_equal(output[:5], transform(key(), batch[:5]))
    other = images(16, seed=1)
    other[3] = batch[3]
    np.testing.assert_array_equal(output[3], transform(key(), other)[3])


def test_the_bits_of_crop_and_flip_stay_what_they_are():
    # Runs of earlier versions can be repeated only with the same draws.
    batch = images(6)
    options = dataclasses.replace(RAW, crop_padding=2, flip=True)
    output = raw(prepare_train(key(7), batch, np.zeros(6, np.int32), options)[0])
    crop_key, flip_key = jax.random.split(key(7))
    for i in range(6):
        offset = jax.random.randint(jax.random.fold_in(crop_key, i), (2,), 0, 5)
        expected = windows(batch[i], 2)[tuple(offset.tolist())]
        if jax.random.bernoulli(jax.random.fold_in(flip_key, i)):
            expected = expected[:, ::-1]
        np.testing.assert_array_equal(output[i], expected)


def test_flip_and_crop_are_independent():
    # Were both to use the same bits, the mirrored images would all be shifted to one side.
    batch = images(300)
    plain = dataclasses.replace(FULL, mean=(0.0,) * 3, std=(1.0,) * 3)
    output, _ = prepare_train(key(), batch, np.zeros(300, np.int32), plain)
    output = np.rint(np.asarray(output) * 255).astype(np.uint8)
    counts = {}
    for image, result in zip(batch, output, strict=True):
        for flipped in (False, True):
            for (_, x), window in windows(image, 2).items():
                if (window[:, ::-1] if flipped else window).tobytes() == result.tobytes():
                    counts[flipped, x] = counts.get((flipped, x), 0) + 1
    assert sum(counts.values()) == 300
    assert len(counts) == 10 and min(counts.values()) > 8  # 30 are expected of each.


def test_smooth_labels():
    output = augment.smooth_labels(np.array([0, 3], np.int32), 4, 0.2)
    assert output.dtype == jnp.float32
    expected = [[0.85, 0.05, 0.05, 0.05], [0.05, 0.05, 0.05, 0.85]]
    np.testing.assert_allclose(output, expected, rtol=1e-6)
    np.testing.assert_allclose(output.sum(1), 1, rtol=1e-6)
    np.testing.assert_array_equal(augment.smooth_labels(np.array([2]), 3, 0.0), [[0, 0, 1]])


def test_train_without_augmentation_is_evaluation():
    batch, labels = images(4), np.arange(4, dtype=np.int32)
    output, targets = augment.prepare_train(key(), batch, labels, PLAIN)
    expected = (batch / 255 - np.array(PLAIN.mean)) / np.array(PLAIN.std)
    np.testing.assert_allclose(output, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(output, augment.prepare_eval(batch, PLAIN), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(targets, np.eye(4))
    assert output.dtype == targets.dtype == jnp.float32


def test_the_border_is_black_before_normalisation():
    batch = np.full((64, 6, 6, 3), 255, np.uint8)
    options = dataclasses.replace(PLAIN, crop_padding=2)
    output, _ = augment.prepare_train(key(), batch, np.zeros(64, np.int32), options)
    black, white = (
        augment.prepare_eval(np.full((1, 1, 1, 3), v, np.uint8), PLAIN) for v in (0, 255)
    )
    is_black, is_white = ((np.asarray(output) == np.asarray(v)).all(-1) for v in (black, white))
    assert (is_black ^ is_white).all() and is_black.any() and is_white.any()


def test_jitted_once_and_equal_to_eager():
    traces = []

    def prepare(key, images, labels, augmentation):
        traces.append(1)
        return augment.prepare_train(key, images, labels, augmentation)

    jitted = jax.jit(prepare, static_argnames="augmentation")
    batch, labels = images(8), np.arange(8, dtype=np.int32) % 4
    for seed in range(3):
        # An equal description, not the same object, must not trace again.
        output, targets = jitted(key(seed), batch, labels, dataclasses.replace(FULL))
        eager, eager_targets = augment.prepare_train(key(seed), batch, labels, FULL)
        np.testing.assert_allclose(output, eager, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(targets, eager_targets, rtol=1e-6)
    assert len(traces) == 1
