"""Operations on the colours of one image, as Pillow defines them for 8-bit RGB.

Every function takes a packed image, uint32 [H, W] (see `pixels`), and returns one. The definitions
are those of Pillow's ImageOps, ImageEnhance and Image.blend; hue alone is computed in float32.
"""

import jax
import jax.numpy as jnp

from barter_jax.data.augment import pixels


def invert(image: jax.Array) -> jax.Array:
    """Replaces each value v by 255 - v."""
    return image ^ jnp.uint32(0xFFFFFF)


def posterize(image: jax.Array, bits: jax.Array) -> jax.Array:
    """Keeps the highest 0..8 `bits` (an integer scalar) of each value; 0 of them leave black."""
    dropped = (8 - bits).astype(jnp.uint32)
    kept = (jnp.uint32(255) >> dropped) << dropped
    return image & (kept * jnp.uint32(0x010101))


def solarize(image: jax.Array, threshold: jax.Array) -> jax.Array:
    """Inverts the values that are not below the threshold, a scalar in 0..256."""
    return pixels.join(*(jnp.where(v < threshold, v, 255 - v) for v in pixels.split(image)))


def solarize_add(image: jax.Array, amount: jax.Array) -> jax.Array:
    """Adds the amount, an integer scalar, to the values below 128, up to 255."""
    moved = (jnp.where(v < 128, jnp.minimum(v + amount, 255), v) for v in pixels.split(image))
    return pixels.join(*moved)


def brightness(image: jax.Array, factor: jax.Array) -> jax.Array:
    """Blends from black (factor 0) over the image (1) to beyond it."""
    return pixels.join(*(pixels.blend(jnp.zeros_like(v), v, factor) for v in pixels.split(image)))


def contrast(image: jax.Array, factor: jax.Array) -> jax.Array:
    """Blends from the mean grey value of the image (factor 0) over the image (1) to beyond it."""
    channels = pixels.split(image)
    total = jnp.sum(pixels.luma(*channels))
    mean = (2 * total + image.size) // (2 * image.size)
    return pixels.join(*(pixels.blend(mean, v, factor) for v in channels))


def saturation(image: jax.Array, factor: jax.Array) -> jax.Array:
    """Blends from the grey image (factor 0) over the image (1) to beyond it."""
    channels = pixels.split(image)
    grey = pixels.luma(*channels)
    return pixels.join(*(pixels.blend(grey, v, factor) for v in channels))


def sharpness(image: jax.Array, factor: jax.Array) -> jax.Array:
    """Blends from the smoothed image (factor 0) over the image (1) to beyond it.

    A smoothed pixel is 5/13 of itself and 1/13 of each of its eight neighbours, rounded; the pixels
    of the border stay as they are.
    """
    height, width = image.shape
    if height < 3 or width < 3:
        return image
    # Red and blue are summed in one word: 13 * 255 needs 12 of the 16 bits of each.
    red_blue, green = image & jnp.uint32(0xFF00FF), (image >> 8) & 255

    def smooth(x: jax.Array) -> jax.Array:
        rows = x[:-2] + x[1:-1] + x[2:]
        return rows[:, :-2] + rows[:, 1:-1] + rows[:, 2:] + 4 * x[1:-1, 1:-1]

    def divide(total: jax.Array) -> jax.Array:
        # (2 t + 13) // 26 for t up to 13 * 255, without a division.
        return ((2 * total.astype(jnp.int32) + 13) * 20165) >> 19

    red_blue, green = smooth(red_blue), smooth(green)
    smoothed = (divide(red_blue & 0xFFFF), divide(green), divide(red_blue >> 16))
    inner = image[1:-1, 1:-1]
    mixed = (pixels.blend(s, v, factor) for s, v in zip(smoothed, pixels.split(inner), strict=True))
    return image.at[1:-1, 1:-1].set(pixels.join(*mixed))


def auto_contrast(image: jax.Array) -> jax.Array:
    """Stretches the values of each channel so that they reach from 0 to 255.

    A channel of one value stays. Pillow computes the same in float64 and may be 1 lower where the
    result is a whole number.
    """

    def stretch(v: jax.Array) -> jax.Array:
        low, high = jnp.min(v), jnp.max(v)
        # Half a unit keeps what should be a whole number from being cut to the one below.
        scale = 1 / jnp.maximum(high - low, 1).astype(jnp.float32)
        stretched = ((255 * (v - low)).astype(jnp.float32) + 0.5) * scale
        return jnp.where(high > low, stretched.astype(jnp.int32), v)

    return pixels.join(*(stretch(v) for v in pixels.split(image)))


def equalize(image: jax.Array) -> jax.Array:
    """Maps the values of each channel so that they are spread evenly over 0..255."""
    channels = pixels.split(image)
    zeros = jnp.zeros(256, jnp.int32)
    counts = jnp.stack([zeros.at[v.reshape(-1)].add(1, mode="promise_in_bounds") for v in channels])
    same = jnp.broadcast_to(jnp.arange(256), counts.shape)
    # The branch is not for an image of one value, which the formula covers: its result is stored,
    # while a formula alone would become a part of the lookup and be evaluated for every pixel.
    several = jnp.max(counts) < image.size
    tables = jax.lax.cond(several, _equalizing, lambda _: same, counts)
    looked_up = (
        table.at[v].get(mode="promise_in_bounds") for table, v in zip(tables, channels, strict=True)
    )
    return pixels.join(*looked_up)


def _equalizing(counts: jax.Array) -> jax.Array:
    """Returns what `equalize` maps values to, int32 [3, 256], from how often each occurs."""
    below = jnp.cumsum(counts, axis=1) - counts
    values = jnp.arange(256)
    highest = jnp.max(jnp.where(counts > 0, values, 0), axis=1, keepdims=True)
    # What lies below the highest value that occurs, in 255 steps.
    total = jnp.sum(jnp.where(values < highest, counts, 0), axis=1, keepdims=True)
    step = jax.lax.div(total, 255)
    spread = jax.lax.div(step // 2 + below, jnp.broadcast_to(jnp.maximum(step, 1), below.shape))
    return jnp.where(step > 0, jnp.minimum(spread, 255), values)


def shift_hue(image: jax.Array, turns: jax.Array) -> jax.Array:
    """Turns the hue by a part of the colour circle, at equal HSV saturation and value.

    Args:
        image: uint32 [H, W].
        turns: float32 scalar; whole numbers change nothing.
    """
    red, green, blue = (v.astype(jnp.float32) for v in pixels.split(image))
    high = jnp.maximum(jnp.maximum(red, green), blue)
    chroma = high - jnp.minimum(jnp.minimum(red, green), blue)
    scale = 1 / jnp.maximum(chroma, 1)
    # In sixths of the circle, from red over green to blue.
    sixths = jnp.where(
        high == red,
        (green - blue) * scale,
        jnp.where(high == green, 2 + (blue - red) * scale, 4 + (red - green) * scale),
    )
    sixths = sixths + 6 * turns

    def channel(start: float) -> jax.Array:
        place = start + sixths
        place = place - 6 * jnp.floor(place / 6)
        return high - chroma * jnp.clip(jnp.minimum(place, 4 - place), 0, 1)

    return pixels.join(*(jnp.round(channel(start)).astype(jnp.int32) for start in (5, 3, 1)))
