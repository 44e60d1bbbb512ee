"""From a batch as it was read to the model's input and targets."""

import jax
import jax.numpy as jnp

from barter_jax.data.augment import crop, image, mix, pixels
from barter_jax.data.augment.settings import Augmentation

# What is folded into the key for the mixing; `image` has the numbers below.
_MIX = 4


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
        The model's input, float32 [B, h, w, 3], and the targets, float32 [B, num_classes].

    Raises:
        UserError: if the images are too small for the crop.
    """
    choices = image.draw(key, len(images), augmentation, images.shape[1:3])
    images = image.apply_batch(choices, images, augmentation)
    targets = smooth_labels(labels, augmentation.num_classes, augmentation.label_smoothing)
    if mix.is_on(augmentation):
        key = jax.random.fold_in(key, _MIX)
        choice = mix.draw(key, len(images), augmentation, images.shape[1:3])
        images, targets = mix.apply(choice, images, targets)
    return images, targets


def prepare_eval(images: jax.Array, augmentation: Augmentation) -> jax.Array:
    """Returns the model's input, float32 [B, h, w, 3]: the middle of uint8 images [B, H, W, 3]."""
    height, width = augmentation.output_shape(images.shape[1:3])
    images = jax.vmap(lambda x: crop.centre(x, height, width))(images)
    return pixels.normalise(images, augmentation.mean, augmentation.std)
