"""Random erasing (Zhong et al., 2020): a box of a normalised image is overwritten."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from barter_jax.data.augment.randomness import BOX_NUMBERS, fitting_boxes, noise
from barter_jax.data.augment.settings import Augmentation

# How many random numbers `draw` takes.
NUMBERS = 1 + BOX_NUMBERS


class Erase(NamedTuple):
    """What to do to one image, or with a leading axis to each of a batch.

    Attributes:
        box: top, left, height and width, int32 [4]; without height or width, nothing is erased.
        key: PRNG key of the noise; None where a constant is written.
    """

    box: jax.Array
    key: jax.Array | None


def draw(uniform: jax.Array, settings: Augmentation, shape: tuple[int, int]) -> jax.Array:
    """Draws whether and what to erase of an image of height and width `shape`.

    Of ten boxes, whose area is a uniform part of the image and whose height over width is
    log-uniform or uniform, the first smaller than the image in both directions is placed
    uniformly; if there is none, nothing is erased.

    Args:
        uniform: random numbers in (0, 1), float32 [NUMBERS]; they decide everything.
        settings: of which the fields `erase_*` matter.
        shape: height and width of the image.

    Returns:
        The `box` of an Erase.
    """
    area, ratio = settings.erase_area, settings.erase_ratio
    log = settings.erase_ratio_law == "log"
    box, found = fitting_boxes(uniform[1:], shape, area, ratio, slack=1, log=log)
    return jnp.where((uniform[0] < settings.erase_probability) & found, box, 0)


def apply(choice: Erase, image: jax.Array, settings: Augmentation) -> jax.Array:
    """Erases a box of one normalised image, float32 [H, W, 3]."""
    top, left, height, width = choice.box
    y, x = jnp.arange(image.shape[0]), jnp.arange(image.shape[1])
    inside = ((y >= top) & (y < top + height))[:, None] & ((x >= left) & (x < left + width))
    if settings.erase_mode == "constant":
        value = jnp.asarray(settings.erase_value, image.dtype)
        return jnp.where(inside[..., None], value, image)

    def overwrite(image: jax.Array) -> jax.Array:
        return jnp.where(inside[..., None], noise(choice.key, image.shape), image)

    return jax.lax.cond(height * width > 0, overwrite, lambda image: image, image)
