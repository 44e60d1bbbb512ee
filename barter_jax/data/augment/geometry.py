"""Affine transformations of one image, as Pillow's `Image.transform` and `Image.rotate` do them.

The matrix (a, b, c, d, e, f) says where an output pixel comes from: the point (x, y), pixel centres
lying at halves, is fetched at (a x + b y + c, d x + e y + f).
"""

import jax
import jax.numpy as jnp

from barter_jax.data.augment import pixels


def rotation(degrees: jax.Array, height: int, width: int) -> jax.Array:
    """Returns the matrices, float32 [..., 6], that turn the content counter-clockwise."""
    angle = -degrees * (jnp.pi / 180)
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    x, y = width / 2, height / 2
    rows = (cos, sin, x - cos * x - sin * y, -sin, cos, y + sin * x - cos * y)
    return jnp.stack(rows, axis=-1)


def shear_x(slope: jax.Array) -> jax.Array:
    """Returns the matrices, float32 [..., 6], that fetch row y from `slope` * y to the right."""
    return _matrix(slope, 1)


def shear_y(slope: jax.Array) -> jax.Array:
    """Returns the matrices, float32 [..., 6], that fetch column x from `slope` * x below."""
    return _matrix(slope, 3)


def translation_x(amount: jax.Array) -> jax.Array:
    """Returns the matrices, float32 [..., 6], that fetch from `amount` pixels to the right."""
    return _matrix(amount, 2)


def translation_y(amount: jax.Array) -> jax.Array:
    """Returns the matrices, float32 [..., 6], that fetch from `amount` pixels below."""
    return _matrix(amount, 5)


def _matrix(value: jax.Array, place: int) -> jax.Array:
    identity = jnp.asarray((1, 0, 0, 0, 1, 0), jnp.float32)
    return jnp.where(jnp.arange(6) == place, jnp.asarray(value)[..., None], identity)


def transform(
    image: jax.Array, matrix: jax.Array, interpolation: str, fill: tuple[int, int, int]
) -> jax.Array:
    """Transforms an image; its size stays.

    Args:
        image: packed, uint32 [H, W].
        matrix: float32 [6].
        interpolation: nearest or bilinear.
        fill: the colour of what lies outside the image.

    Returns:
        The packed image, uint32 [H, W].
    """
    colour = jnp.uint32(fill[0] | fill[1] << 8 | fill[2] << 16)
    if interpolation == "nearest":
        return _nearest(image, matrix, colour)
    return _bilinear(image, matrix, colour)


def _nearest(image: jax.Array, matrix: jax.Array, fill: jax.Array) -> jax.Array:
    """Places in 16-bit fixed point, as Pillow counts them: equal values on every backend."""
    height, width = image.shape
    y, x = (jax.lax.broadcasted_iota(jnp.int32, image.shape, axis) for axis in (0, 1))

    def place(row: jax.Array) -> jax.Array:
        start = row[2] + 0.5 * row[0] + 0.5 * row[1]
        a, b, c = (jnp.floor(v * 65536 + 0.5).astype(jnp.int32) for v in (row[0], row[1], start))
        return (c + x * a + y * b) >> 16

    u, v = place(matrix[:3]), place(matrix[3:])
    inside = (u >= 0) & (u < width) & (v >= 0) & (v < height)
    return jnp.where(inside, _fetch(image, jnp.where(inside, v * width + u, 0)), fill)


def _bilinear(image: jax.Array, matrix: jax.Array, fill: jax.Array) -> jax.Array:
    height, width = image.shape
    y, x = (jax.lax.broadcasted_iota(jnp.float32, image.shape, axis) + 0.5 for axis in (0, 1))

    def places(row: jax.Array, size: int) -> tuple[jax.Array, ...]:
        point = row[0] * x + row[1] * y + row[2]
        start = jnp.floor(point - 0.5)
        first = start.astype(jnp.int32)
        neighbours = (jnp.clip(first, 0, size - 1), jnp.clip(first + 1, 0, size - 1))
        return (point >= 0) & (point < size), *neighbours, point - 0.5 - start

    in_x, left, right, dx = places(matrix[:3], width)
    in_y, top, bottom, dy = places(matrix[3:], height)
    corners = [
        pixels.split(_fetch(image, v * width + u)) for v in (top, bottom) for u in (left, right)
    ]

    def mix(low: jax.Array, high: jax.Array, share: jax.Array) -> jax.Array:
        return low + (high - low) * share

    mixed = []
    for values in zip(*corners, strict=True):
        a, b, c, d = (v.astype(jnp.float32) for v in values)
        mixed.append(mix(mix(a, b, dx), mix(c, d, dx), dy).astype(jnp.int32))
    return jnp.where(in_x & in_y, pixels.join(*mixed), fill)


def _fetch(image: jax.Array, places: jax.Array) -> jax.Array:
    return image.reshape(-1).at[places].get(mode="promise_in_bounds")
