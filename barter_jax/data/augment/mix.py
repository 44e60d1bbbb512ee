"""Mixup (Zhang et al., 2018) and CutMix (Yun et al., 2019): pairs of a batch in one image.

One decision and one share for the whole batch.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from barter_jax.data.augment.randomness import below, uniform
from barter_jax.data.augment.settings import Augmentation


class Mix(NamedTuple):
    """How to mix a batch.

    Attributes:
        share: of an image's own label in its target, float32 scalar; 1: the batch is not mixed.
        box: y0, x0, y1, x1 of what is pasted from the partner, int32 [4]; empty but for CutMix.
        cut: whether the box, and not the share, mixes the images; bool scalar.
        partners: the index of each image's partner, int32 [B].
    """

    share: jax.Array
    box: jax.Array
    cut: jax.Array
    partners: jax.Array


def is_on(settings: Augmentation) -> bool:
    """Tells whether any batch is mixed."""
    alphas = settings.mixup_alpha, settings.cutmix_alpha
    return settings.mix_probability > 0 and max(alphas) > 0


def cutmix_probability(settings: Augmentation) -> float:
    """Returns the probability that a mixed batch is one of CutMix."""
    if settings.mixup_alpha > 0 and settings.cutmix_alpha > 0:
        return settings.cutmix_probability
    return 1.0 if settings.cutmix_alpha > 0 else 0.0


def draw(key: jax.Array, batch_size: int, settings: Augmentation, shape: tuple[int, int]) -> Mix:
    """Draws how to mix a batch of images of height and width `shape`; `is_on` must hold."""
    numbers = uniform(key[None], 6 + batch_size)[0]
    decide, kind = numbers[:2]
    mixed = decide < settings.mix_probability
    cut = mixed & (kind < cutmix_probability(settings))
    alpha = jnp.where(cut, settings.cutmix_alpha, settings.mixup_alpha)
    share = jnp.where(mixed, symmetric_beta(numbers[2:4], alpha), 1.0)
    box = jnp.where(cut, cutmix_box(numbers[4:6], share, shape), 0)
    area = ((box[2] - box[0]) * (box[3] - box[1])).astype(jnp.float32)
    share = jnp.where(cut, 1 - area / (shape[0] * shape[1]), share)
    if settings.mix_pairs == "flip":
        partners = jnp.arange(batch_size)[::-1]
    else:
        partners = jnp.argsort(numbers[6:])
    return Mix(share, box, cut, partners)


def symmetric_beta(numbers: jax.Array, alpha: jax.Array) -> jax.Array:
    """Draws from Beta(alpha, alpha) for any alpha > 0: a float32 scalar in [0, 1].

    With t of Student's distribution with n = 2 alpha degrees of freedom, it is
    (1 + t / sqrt(n + t^2)) / 2 (Devroye, 1986); t is a polar transform of two uniform numbers
    (Bailey, 1994).

    Args:
        numbers: two uniform random numbers in (0, 1).
        alpha: float32 scalar.
    """
    cos = jnp.cos(2 * jnp.pi * numbers[1])
    # t^2 / n, which may be infinite.
    square = jnp.expm1(-jnp.log(numbers[0]) / alpha) * cos * cos
    return (1 + jnp.sign(cos) * jax.lax.rsqrt(1 + 1 / square)) / 2


def cutmix_box(uniform: jax.Array, share: jax.Array, shape: tuple[int, int]) -> jax.Array:
    """Draws a box around a uniform centre, whose sides are sqrt(1 - share) of the image's.

    Args:
        uniform: two random numbers in (0, 1); they decide everything.
        share: float32 scalar.
        shape: height and width of the image.

    Returns:
        y0, x0, y1, x1, int32 [4]: clipped to the image, so that its area may be less.
    """
    sides = jnp.array(shape)
    half = jnp.floor(sides * jnp.sqrt(1 - share)).astype(jnp.int32) // 2
    middle = below(uniform, sides)
    return jnp.concatenate([jnp.maximum(middle - half, 0), jnp.minimum(middle + half, sides)])


def apply(choice: Mix, images: jax.Array, targets: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Mixes a batch.

    Args:
        choice: how.
        images: float32 [B, H, W, 3].
        targets: float32 [B, C].

    Returns:
        images and targets of the same shapes: share * own + (1 - share) * partner's, in CutMix by
        pixels. An unmixed batch comes back as it was.
    """
    y, x = jnp.arange(images.shape[1])[:, None], jnp.arange(images.shape[2])
    y0, x0, y1, x1 = choice.box
    inside = (y >= y0) & (y < y1) & (x >= x0) & (x < x1)
    own = jnp.where(choice.cut, jnp.where(inside, 0.0, 1.0), choice.share)[None, :, :, None]
    images = own * images + (1 - own) * images[choice.partners]
    targets = choice.share * targets + (1 - choice.share) * targets[choice.partners]
    return images, targets
