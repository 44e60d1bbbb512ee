"""The crop of one image: drawn as whole numbers of pixels, then cut out."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

from barter_jax.data.augment import pixels
from barter_jax.data.augment.randomness import BOX_NUMBERS, fitting_boxes

# How many random numbers `draw_box` takes.
NUMBERS = BOX_NUMBERS

# Of Pillow's weights in fixed point: 8 bits of a value and 2 of head room remain of 32.
_BITS = 22


def centre(image: jax.Array, height: int, width: int) -> jax.Array:
    """Returns the middle of an image [H, W, ...]: [height, width, ...]; odd rests go to the end."""
    top, left = (image.shape[0] - height) // 2, (image.shape[1] - width) // 2
    return image[top : top + height, left : left + width]


def draw_window(
    key: jax.Array, shape: tuple[int, int], padding: int, height: int, width: int
) -> jax.Array:
    """Draws where a window of height and width lies in an image [H, W] after padding.

    Returns:
        top and left in the padded image, int32 [2], each place equally likely.
    """
    highest = jnp.array([shape[0] - height, shape[1] - width]) + 2 * padding
    return jax.random.randint(key, (2,), 0, highest + 1)


def window(image: jax.Array, corner: jax.Array, padding: int, height: int, width: int) -> jax.Array:
    """Cuts a window out of an image [H, W, ...] that has `padding` zeros on every side.

    Args:
        image: [H, W, ...].
        corner: top and left in the padded image, int32 [2].
        padding: zeros on every side.
        height: of the window.
        width: of the window.

    Returns:
        [height, width, ...] of the image's dtype.
    """
    rest = image.shape[2:]
    padded = jnp.pad(image, ((padding, padding), (padding, padding), *((0, 0) for _ in rest)))
    start = (corner[0], corner[1], *(0 for _ in rest))
    return jax.lax.dynamic_slice(padded, start, (height, width, *rest))


def draw_box(
    uniform: jax.Array,
    shape: tuple[int, int],
    scale: tuple[float, float],
    ratio: tuple[float, float],
) -> jax.Array:
    """Draws the box of a random resized crop (Szegedy et al., 2015) as torchvision does.

    Of ten boxes, whose area is a uniform part of the image and whose width over height is
    log-uniform, the first that fits is placed uniformly. Where none fits, it is the largest box in
    the middle whose ratio is within the bounds.

    Args:
        uniform: random numbers in [0, 1), float32 [NUMBERS]; they decide everything.
        shape: height and width of the image.
        scale: bounds of the part of the area.
        ratio: bounds of width over height.

    Returns:
        top, left, height and width, int32 [4].
    """
    height, width = shape
    box, found = fitting_boxes(uniform, shape, scale, (1 / ratio[1], 1 / ratio[0]), slack=0)
    h, w = height, width
    if width / height < ratio[0]:
        h = round(width / ratio[0])
    elif width / height > ratio[1]:
        w = round(height * ratio[1])
    middle = jnp.array([(height - h) // 2, (width - w) // 2, h, w], jnp.int32)
    return jnp.where(found, box, middle)


def resized(
    image: jax.Array, box: jax.Array, height: int, width: int, interpolation: str
) -> jax.Array:
    """Resizes a part of an image, with antialiasing, as Pillow's crop and then resize do.

    First along the width, then along the height, each with rounding to 8 bits (newer versions of
    Pillow turn the order round for some shapes). All sums are of integers, so that every backend
    and every order of summing gives the same.

    Args:
        image: packed, uint32 [H, W].
        box: top, left, height and width of the part, int32 [4], inside the image.
        height: of the result.
        width: of the result.
        interpolation: bilinear or bicubic.

    Returns:
        The packed image, uint32 [height, width].
    """
    places, weights = _taps(box[1], box[3], image.shape[1], width, interpolation)
    narrow = _weigh(lambda p: image.at[:, p].get(mode="promise_in_bounds"), places, weights)
    places, weights = _taps(box[0], box[2], narrow.shape[0], height, interpolation)
    weights = weights[..., None]
    return _weigh(lambda p: narrow.at[p].get(mode="promise_in_bounds"), places, weights)


def _weigh(
    fetch: Callable[[jax.Array], jax.Array], places: jax.Array, weights: jax.Array
) -> jax.Array:
    """Sums what is fetched from the places [taps, n] with the weights [taps, ...].

    A loop, though a short one: what it starts from and ends with is stored, while an expression
    would be evaluated again for every pixel that it goes into.
    """

    def add(sums: pixels.Channels, tap: tuple[jax.Array, jax.Array]):
        place, weight = tap
        values = pixels.split(fetch(place))
        return tuple(s + v * weight for s, v in zip(sums, values, strict=True)), None

    shape = jax.eval_shape(fetch, places[0]).shape
    half = jnp.full(shape, 1 << (_BITS - 1), jnp.int32)
    sums, _ = jax.lax.scan(add, (half, half, half), (places, weights))
    return pixels.join(*(jnp.clip(s >> _BITS, 0, 255) for s in sums))


def _taps(
    start: jax.Array, length: jax.Array, limit: int, size: int, interpolation: str
) -> tuple[jax.Array, jax.Array]:
    """Returns what goes into each of `size` results: places and weights, int32 [taps, size].

    The part reaches from `start` over `length` of an axis of `limit`. How many taps there are does
    not depend on the part, only on the longest one.
    """
    radius, weigh = _KERNELS[interpolation]
    result = jnp.arange(size)
    # All in units of 1 / (2 size) of a pixel, so that they are whole numbers.
    middle = (2 * result + 1) * length
    wide = jnp.maximum(length, size)
    first = jax.lax.div(jnp.maximum(middle - 2 * radius * wide + size, 0), 2 * size)
    last = jnp.minimum(jax.lax.div(middle + 2 * radius * wide + size, 2 * size), length)
    taps = 2 * math.ceil(radius * max(limit / size, 1)) + 1
    at = first + jnp.arange(taps)[:, None]
    weights = weigh((2 * at + 1) * size - middle, 2 * wide, at < last)
    return jnp.minimum(start + at, limit - 1), weights


def _bilinear(distance: jax.Array, unit: jax.Array, used: jax.Array) -> jax.Array:
    """Returns weights in fixed point that are exact but for their own rounding.

    Halves are common among the sums (of eight pixels reduced to seven, say): errors of float32
    would round many of them another way than Pillow's float64.
    """
    weights = jnp.where(used, jnp.maximum(unit - jnp.abs(distance), 0), 0)
    total = jnp.broadcast_to(jnp.sum(weights, axis=0), weights.shape)
    # A long division of two digits: the numerator itself would not fit into 32 bits.
    digit = _BITS // 2
    high = jax.lax.div(weights << digit, total)
    rest = (weights << digit) - high * total
    return (high << digit) + jax.lax.div((rest << digit) + (total >> 1), total)


def _bicubic(distance: jax.Array, unit: jax.Array, used: jax.Array) -> jax.Array:
    """Returns weights, in fixed point, of cubic convolution (Keys, 1981) with a = -1/2."""
    x = jnp.abs(distance.astype(jnp.float32) / unit)
    near = (1.5 * x - 2.5) * x * x + 1
    far = ((-0.5 * x + 2.5) * x - 4) * x + 2
    weights = jnp.where(used, jnp.where(x < 1, near, jnp.where(x < 2, far, 0)), 0)
    return jnp.round(weights / jnp.sum(weights, axis=0) * (1 << _BITS)).astype(jnp.int32)


_KERNELS = {"bilinear": (1, _bilinear), "bicubic": (2, _bicubic)}
