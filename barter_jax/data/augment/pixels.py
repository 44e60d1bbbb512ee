"""An image of one machine word a pixel, and arithmetic on its three channels.

A red, a green and a blue byte share a uint32. A gather (a rotation, a crop, a lookup) then fetches
a pixel at once, and an operation writes each pixel once: XLA's CPU code does neither for an array
whose last axis has three elements.
"""

import jax
import jax.numpy as jnp

Channels = tuple[jax.Array, jax.Array, jax.Array]


def pack(images: jax.Array) -> jax.Array:
    """Returns uint32 [...] of red | green << 8 | blue << 16 from uint8 [..., 3]."""
    return join(images[..., 0], images[..., 1], images[..., 2])


def unpack(packed: jax.Array) -> jax.Array:
    """Returns uint8 [..., 3] from what `pack` returned."""
    return jnp.stack(split(packed), axis=-1).astype(jnp.uint8)


def split(packed: jax.Array) -> Channels:
    """Returns red, green and blue, each int32 [...] in 0..255."""
    signed = packed.astype(jnp.int32)
    return signed & 255, (signed >> 8) & 255, (signed >> 16) & 255


def join(red: jax.Array, green: jax.Array, blue: jax.Array) -> jax.Array:
    """Returns the packed image of three integer channels in 0..255."""
    red, green, blue = (x.astype(jnp.uint32) for x in (red, green, blue))
    return red | (green << 8) | (blue << 16)


def luma(red: jax.Array, green: jax.Array, blue: jax.Array) -> jax.Array:
    """Returns the grey value in 0..255 that ITU-R 601 gives a colour, rounded as in Pillow."""
    return (19595 * red + 38470 * green + 7471 * blue + 0x8000) >> 16


def blend(low: jax.Array, high: jax.Array, factor: jax.Array) -> jax.Array:
    """Returns low + factor * (high - low) in 0..255, cut to an integer as Pillow's blend does.

    In float32 and with two roundings, as there: a factor of 0.6 is a little more than that, and
    whether a product with it comes to a whole number is a matter of rounding.

    Args:
        low: int32 in 0..255, what a factor of 0 gives.
        high: int32 in 0..255, what a factor of 1 gives.
        factor: float32 scalar, at least 0.
    """
    product = factor * (high - low).astype(jnp.float32)
    moved = low.astype(jnp.float32) + _rounded(product, factor)
    return jnp.clip(moved, 0, 255).astype(jnp.int32)


def _rounded(product: jax.Array, factor: jax.Array) -> jax.Array:
    """Returns a product of a factor that is not negative as it is, but never fused with a sum.

    Compilers make one operation with one rounding of a product and a sum. They cannot across a
    detour over the bits and the factor's sign, of which only we know that it is 0.
    """
    sign = jax.lax.bitcast_convert_type(factor, jnp.uint32) >> 31
    bits = jax.lax.bitcast_convert_type(product, jnp.uint32)
    return jax.lax.bitcast_convert_type(bits ^ sign, jnp.float32)


def normalise(images: jax.Array, mean: tuple[float, ...], std: tuple[float, ...]) -> jax.Array:
    """Returns (images / 255 - mean) / std: float32 [..., C] from uint8 [..., C]."""
    images = images.astype(jnp.float32) / 255
    return (images - jnp.asarray(mean, jnp.float32)) / jnp.asarray(std, jnp.float32)
