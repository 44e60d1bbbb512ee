"""Random numbers of the images of a batch.

All uniform numbers of a stage are made at once, and what is drawn is a function of them: each call
of a generator would be compiled by itself, at several tenths of a second.
"""

import jax
import jax.numpy as jnp

from barter_jax.models.ops import random_bits

_ATTEMPTS = 10
# How many uniform numbers `fitting_boxes` takes.
BOX_NUMBERS = 4 * _ATTEMPTS


def image_keys(key: jax.Array, count: int) -> jax.Array:
    """Returns a key for each of `count` images, folded from the batch's key and the index."""
    return jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(count))


def uniform(keys: jax.Array, count: int) -> jax.Array:
    """Returns `count` numbers of each key, float32 [keys, count]: odd multiples of 2^-24 in (0, 1).

    Neither 0 nor 1 can occur, nor is any number rounded.
    """
    return _to_uniform(jax.vmap(lambda key: jax.random.bits(key, (count,)))(keys))


def noise(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Returns standard normal numbers, float32: many at once in a single pass."""
    return normal(_to_uniform(random_bits.bits(key[None], shape)[0]))


def _to_uniform(bits: jax.Array) -> jax.Array:
    return ((bits >> 9).astype(jnp.float32) + 0.5) * 2.0**-23


def normal(uniform: jax.Array) -> jax.Array:
    """Returns standard normal numbers from such uniform ones, by the inverse distribution."""
    return jnp.float32(2**0.5) * jax.lax.erf_inv(2 * uniform - 1)


def sign(uniform: jax.Array) -> jax.Array:
    """Returns -1 or 1, equally likely, float32, from uniform numbers."""
    return jnp.where(uniform < 0.5, -1.0, 1.0)


def below(uniform: jax.Array, count: jax.Array | int) -> jax.Array:
    """Returns one of 0..count - 1, equally likely, int32, from uniform numbers."""
    # The product may be rounded up to the count itself.
    return jnp.minimum(jnp.floor(uniform * count).astype(jnp.int32), count - 1)


def fitting_boxes(
    uniform: jax.Array,
    shape: tuple[int, int],
    area: tuple[float, float],
    ratio: tuple[float, float],
    slack: int,
    log: bool = True,
) -> tuple[jax.Array, jax.Array]:
    """Draws ten boxes and takes the first that fits into the image, placed uniformly.

    Args:
        uniform: float32 [BOX_NUMBERS]; they decide everything.
        shape: height and width of the image.
        area: bounds of the part of the image's area, uniform.
        ratio: bounds of height over width.
        slack: by how much height and width must at least be below those of the image.
        log: whether the ratio is log-uniform; else it is uniform.

    Returns:
        top, left, height and width, int32 [4], and whether any fits, bool; if none does, the box
        is without meaning.
    """
    at_area, at_ratio, at_top, at_left = uniform.reshape(4, _ATTEMPTS)
    target = (area[0] + (area[1] - area[0]) * at_area) * (shape[0] * shape[1])
    low, high = jnp.asarray(ratio, jnp.float32)
    if log:
        aspect = jnp.exp(jnp.log(low) + (jnp.log(high) - jnp.log(low)) * at_ratio)
    else:
        aspect = low + (high - low) * at_ratio
    height = jnp.maximum(jnp.round(jnp.sqrt(target * aspect)).astype(jnp.int32), 1)
    width = jnp.maximum(jnp.round(jnp.sqrt(target / aspect)).astype(jnp.int32), 1)
    fits = (height <= shape[0] - slack) & (width <= shape[1] - slack)
    top = below(at_top, shape[0] - height + 1)
    left = below(at_left, shape[1] - width + 1)
    first = jnp.argmax(fits)
    return jnp.stack([top, left, height, width])[:, first], fits[first]
