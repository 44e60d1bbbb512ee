"""Images that are hard in different ways, and what several tests need to compare."""

import jax
import jax.numpy as jnp
import numpy as np
from PIL import Image

from barter_jax.data.augment import Augmentation, pixels

PLAIN = Augmentation(
    mean=(0.0, 0.0, 0.0),
    std=(1 / 255, 1 / 255, 1 / 255),
    flip=False,
    crop_padding=0,
    label_smoothing=0.0,
    num_classes=4,
    image_size=32,
    crop="none",
)


def images(size, seed=0):
    """uint8 [5, size, size, 3]: noise, a soft gradient, grey noise, one colour, two values."""
    random = np.random.default_rng(seed)
    y, x = np.mgrid[:size, :size] / size
    gradient = np.stack([200 * x + 20, 120 * y + 60, 45 * (x + y) + 100], -1)
    return np.stack(
        [
            random.integers(0, 256, (size, size, 3)),
            gradient + random.integers(-6, 7, (size, size, 3)),
            np.repeat(random.integers(0, 256, (size, size, 1)), 3, 2),
            np.full((size, size, 3), (7, 200, 90)),
            100 + 40 * random.integers(0, 2, (size, size, 3)),
        ]
    ).astype(np.uint8)


def pillow(function, batch):
    """What a function of a Pillow image makes of each of a batch."""
    return np.stack([np.asarray(function(Image.fromarray(image))) for image in batch])


def on_batch(function):
    """Compiles a function of a packed image and more for a batch of uint8 images and the same."""

    @jax.jit
    def run(batch, *more):
        packed = jax.vmap(lambda x: function(x, *more))(pixels.pack(batch))
        return jax.tree.map(pixels.unpack, packed)

    return lambda batch, *more: jax.tree.map(np.asarray, run(jnp.asarray(batch), *more))


def assert_close(actual, expected, levels, share=1.0, message=""):
    """No value differs by more than `levels`, and at most a `share` of them differs."""
    difference = np.abs(actual.astype(int) - expected.astype(int))
    assert difference.max() <= levels, f"{message}: {difference.max()} levels"
    assert (difference > 0).mean() <= share, f"{message}: {(difference > 0).mean()} differ"


def assert_rate(hits, probability, count=None):
    """The hits are within 4.5 standard deviations of what the probability makes expected."""
    count = len(hits) if count is None else count
    expected = probability * count
    deviation = np.sqrt(expected * (1 - probability)) + 1e-9
    assert abs(np.sum(hits) - expected) <= 4.5 * deviation, (np.sum(hits), expected)


def assert_uniform(values, low, high):
    """Mean and spread are those of the uniform distribution, and nothing lies outside."""
    values = np.asarray(values, np.float64)
    width, slack = high - low, 1e-5 * (high - low)
    assert low - slack <= values.min() and values.max() <= high + slack
    unit = (values - low) / width
    assert abs(unit.mean() - 1 / 2) <= 4.5 * np.sqrt(1 / 12 / len(unit))
    assert abs(unit.var() - 1 / 12) <= 4.5 * np.sqrt(1 / 180 / len(unit))
