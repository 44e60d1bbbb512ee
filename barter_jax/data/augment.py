"""Augmentation and normalisation on the device: pure functions that know no model.

All randomness comes from the key; image i uses a key folded from it and i, so what happens to one
image depends neither on the others nor on the size of the batch.
"""

import dataclasses

import jax
import jax.numpy as jnp
from ml_collections import config_dict


@dataclasses.dataclass(frozen=True)
class Augmentation:
    """What to do to a batch; hashable, so that a jitted function can take it as a static argument.

    Attributes:
        mean: per channel, on the scale 0..1.
        std: per channel, on the same scale.
        flip: mirror each training image left to right with probability 1/2.
        crop_padding: shift each training image by up to so many pixels in both directions.
        label_smoothing: the part of a training label that is spread evenly over all classes.
        num_classes: the width of a label.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    flip: bool
    crop_padding: int
    label_smoothing: float
    num_classes: int


def from_config(config: config_dict.ConfigDict, num_classes: int) -> Augmentation:
    """Returns what a validated config asks for."""
    return Augmentation(
        mean=tuple(config.data.mean),
        std=tuple(config.data.std),
        flip=config.augment.flip,
        crop_padding=config.augment.crop_padding,
        label_smoothing=config.augment.label_smoothing,
        num_classes=num_classes,
    )


def normalise(images: jax.Array, mean: tuple[float, ...], std: tuple[float, ...]) -> jax.Array:
    """Returns (images / 255 - mean) / std: float32 [B, H, W, C] from uint8 [B, H, W, C]."""
    images = images.astype(jnp.float32) / 255
    return (images - jnp.asarray(mean, jnp.float32)) / jnp.asarray(std, jnp.float32)


def random_flip(key: jax.Array, images: jax.Array) -> jax.Array:
    """Mirrors each of the images [B, H, W, C] left to right with probability 1/2."""
    flip = jax.vmap(jax.random.bernoulli)(_keys(key, len(images)))
    return jnp.where(flip[:, None, None, None], images[:, :, ::-1], images)


def random_crop(key: jax.Array, images: jax.Array, padding: int) -> jax.Array:
    """Shifts each of the images [B, H, W, C] by -padding..padding pixels along height and width.

    Each offset is equally likely; what comes in from outside is zero: black, before normalisation.
    """
    _, height, width, channels = images.shape
    padded = jnp.pad(images, ((0, 0), (padding, padding), (padding, padding), (0, 0)))

    def crop(key: jax.Array, image: jax.Array) -> jax.Array:
        top, left = jax.random.randint(key, (2,), 0, 2 * padding + 1)
        return jax.lax.dynamic_slice(image, (top, left, 0), (height, width, channels))

    return jax.vmap(crop)(_keys(key, len(images)), padded)


def smooth_labels(labels: jax.Array, num_classes: int, smoothing: float) -> jax.Array:
    """Returns (1 - s) * one_hot + s / C: float32 [B, C], rows summing to 1, from integers [B]."""
    one_hot = jax.nn.one_hot(labels, num_classes, dtype=jnp.float32)
    return (1 - smoothing) * one_hot + smoothing / num_classes


def prepare_train(
    key: jax.Array, images: jax.Array, labels: jax.Array, augmentation: Augmentation
) -> tuple[jax.Array, jax.Array]:
    """Augments a training batch.

    Args:
        key: decides everything random.
        images: uint8 [B, H, W, 3].
        labels: int32 [B].
        augmentation: what to do; static under jit.

    Returns:
        The model's input, float32 [B, H, W, 3], and the targets, float32 [B, num_classes].
    """
    crop_key, flip_key = jax.random.split(key)
    if augmentation.crop_padding:
        images = random_crop(crop_key, images, augmentation.crop_padding)
    if augmentation.flip:
        images = random_flip(flip_key, images)
    targets = smooth_labels(labels, augmentation.num_classes, augmentation.label_smoothing)
    return normalise(images, augmentation.mean, augmentation.std), targets


def prepare_eval(images: jax.Array, augmentation: Augmentation) -> jax.Array:
    """Returns the model's input, float32 [B, H, W, 3], of uint8 images [B, H, W, 3] as they are."""
    return normalise(images, augmentation.mean, augmentation.std)


def _keys(key: jax.Array, count: int) -> jax.Array:
    return jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(count))
