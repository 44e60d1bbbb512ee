"""Colour jitter: brightness, contrast, saturation and hue at random, in random order.

The definition is that of torchvision's ColorJitter.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from barter_jax.data.augment import colour
from barter_jax.data.augment.settings import Augmentation

# How many random numbers `draw` takes.
NUMBERS = 8

_STEPS = (colour.brightness, colour.contrast, colour.saturation, colour.shift_hue)


class Jitter(NamedTuple):
    """What to do to one image, or with a leading axis to each of a batch.

    Attributes:
        amounts: of brightness, contrast and saturation the factors, and the hue's shift in turns,
            float32 [4].
        order: indices into the adjustments that are on at all, int32 [those that are on].
    """

    amounts: jax.Array
    order: jax.Array


def _active(settings: Augmentation) -> tuple[int, ...]:
    strengths = (settings.brightness, settings.contrast, settings.saturation, settings.hue)
    return tuple(i for i, strength in enumerate(strengths) if strength > 0)


def is_on(settings: Augmentation) -> bool:
    """Tells whether anything is adjusted."""
    return bool(_active(settings))


def draw(uniform: jax.Array, settings: Augmentation) -> Jitter:
    """Draws from NUMBERS uniform numbers what to do to one image.

    Factors are uniform in max(0, 1 - x)..1 + x, the shift in -x..x; every order is equally likely.
    """
    s = settings
    lows = [max(0.0, 1 - x) for x in (s.brightness, s.contrast, s.saturation)] + [-s.hue]
    highs = [1 + x for x in (s.brightness, s.contrast, s.saturation)] + [s.hue]
    amounts = jnp.array(lows) + (jnp.array(highs) - jnp.array(lows)) * uniform[:4]
    order = jnp.argsort(uniform[4 : 4 + len(_active(settings))])
    return Jitter(amounts, order.astype(jnp.int32))


def apply(choice: Jitter, image: jax.Array, settings: Augmentation) -> jax.Array:
    """Adjusts one packed image, uint32 [H, W]."""
    active = _active(settings)
    branches = [_STEPS[i] for i in active]
    amounts = choice.amounts[jnp.array(active)]

    def step(image: jax.Array, which: jax.Array) -> tuple[jax.Array, None]:
        return jax.lax.switch(which, branches, image, amounts[which]), None

    return jax.lax.scan(step, image, choice.order)[0]
