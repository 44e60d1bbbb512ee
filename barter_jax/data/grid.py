"""Drawing images in a grid, with captions, and the balance of classes; with Pillow alone."""

import functools
import math
from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw, ImageFont

# Bars with names up to so many classes, a curve beyond.
MOST_BARS = 40

_BACKGROUND = "white"
_TEXT = (32, 32, 32)
_FAINT = (150, 150, 150)
_FILL = (76, 120, 168)
_MARGIN = 8
_LINE = 15  # height of a line of text, in pixels
_SMALLEST, _LARGEST = 96, 256  # sides of a tile, in pixels
_MOST_COLUMNS = 8
_BARS_IN_A_COLUMN = 20
_CURVE_HEIGHT = 160


def tiles(images: np.ndarray, captions: Sequence[Sequence[str]]) -> Image.Image:
    """Draws images side by side, in rows, each with its lines of text below.

    Small images are enlarged by a whole number, so that their pixels stay what they are; large ones
    are reduced.

    Args:
        images: uint8 [n, size, size, 3], n >= 1.
        captions: n sequences of lines; a line that is too long is cut.
    """
    count, size = images.shape[:2]
    side = size * math.ceil(_SMALLEST / size) if size < _SMALLEST else min(size, _LARGEST)
    filter = Image.Resampling.NEAREST if side >= size else Image.Resampling.LANCZOS
    columns = min(math.ceil(math.sqrt(count)), _MOST_COLUMNS)
    lines = max(map(len, captions))
    width, height = side + _MARGIN, side + lines * _LINE + _MARGIN
    picture = Image.new(
        "RGB", (columns * width + _MARGIN, math.ceil(count / columns) * height), _BACKGROUND
    )
    draw = ImageDraw.Draw(picture)
    for place, (image, caption) in enumerate(zip(images, captions, strict=True)):
        left = _MARGIN + place % columns * width
        top = place // columns * height
        picture.paste(Image.fromarray(image).resize((side, side), filter), (left, top))
        for number, line in enumerate(caption):
            at = (left, top + side + number * _LINE)
            draw.text(at, shortened(line, side), _TEXT, _font())
    return picture


def balance(names: Sequence[str], counts: Sequence[int], width: int) -> Image.Image:
    """Draws how many images each class has: bars, or a falling curve for many classes.

    Args:
        names: of the classes, at least one.
        counts: images of each.
        width: of the picture, in pixels.
    """
    return (_bars if len(names) <= MOST_BARS else _curve)(names, counts, width)


def stacked(parts: Sequence[Image.Image | str]) -> Image.Image:
    """Pictures and lines of text below each other, as wide as the widest picture."""
    width = max(part.width for part in parts if not isinstance(part, str))
    heights = [_LINE + _MARGIN if isinstance(part, str) else part.height for part in parts]
    picture = Image.new("RGB", (width, sum(heights) + 2 * _MARGIN), _BACKGROUND)
    draw = ImageDraw.Draw(picture)
    top = _MARGIN
    for part, height in zip(parts, heights, strict=True):
        if isinstance(part, str):
            line = shortened(part, width - 2 * _MARGIN)
            draw.text((_MARGIN, top), line, _TEXT, _font())
        else:
            picture.paste(part, (0, top))
        top += height
    return picture


def shortened(text: str, width: float) -> str:
    """The text, or its beginning and two dots where it takes more than `width` pixels."""
    if _font().getlength(text) <= width:
        return text
    kept = text
    while kept and _font().getlength(kept + "..") > width:
        kept = kept[:-1]
    return kept + ".."


def _bars(names: Sequence[str], counts: Sequence[int], width: int) -> Image.Image:
    columns = math.ceil(len(names) / _BARS_IN_A_COLUMN)
    rows = math.ceil(len(names) / columns)
    column = (width - _MARGIN) // columns
    numbers = [f"{count:,}" for count in counts]
    for_names = min(max(map(_font().getlength, names)), column / 3)
    for_numbers = max(map(_font().getlength, numbers))
    longest = max(column - for_names - for_numbers - 3 * _MARGIN, 1)
    picture = Image.new("RGB", (width, rows * _LINE + _MARGIN), _BACKGROUND)
    draw = ImageDraw.Draw(picture)
    for place, (name, count, number) in enumerate(zip(names, counts, numbers, strict=True)):
        left, top = _MARGIN + place // rows * column, place % rows * _LINE
        draw.text((left, top), shortened(name, for_names), _TEXT, _font())
        start = left + for_names + _MARGIN
        end = start + longest * count / max(*counts, 1)
        draw.rectangle((start, top + 2, end, top + _LINE - 3), _FILL)
        draw.text((end + _MARGIN / 2, top), number, _TEXT, _font())
    return picture


def _curve(names: Sequence[str], counts: Sequence[int], width: int) -> Image.Image:
    falling = np.sort(np.asarray(counts))[::-1]
    most = f"{falling[0]:,}"
    left = 2 * _MARGIN + math.ceil(_font().getlength(most))
    across = max(width - left - _MARGIN, 1)
    picture = Image.new("RGB", (width, _CURVE_HEIGHT + _LINE + 2 * _MARGIN), _BACKGROUND)
    draw = ImageDraw.Draw(picture)
    bottom = _MARGIN + _CURVE_HEIGHT
    for x in range(across):
        count = falling[x * len(falling) // across]
        height = round(_CURVE_HEIGHT * count / max(falling[0], 1))
        if height:
            draw.line((left + x, bottom - height, left + x, bottom), _FILL)
    draw.line((left, bottom, left + across, bottom), _FAINT)
    draw.text((_MARGIN, _MARGIN), most, _TEXT, _font())
    draw.text((_MARGIN, bottom - _LINE), "0", _TEXT, _font())
    line = (
        f"{len(names):,} classes, from the largest to the smallest: at most {falling[0]:,}, median "
        f"{np.median(falling):,.0f}, at least {falling[-1]:,}"
    )
    draw.text((left, bottom + 4), shortened(line, across), _TEXT, _font())
    return picture


@functools.cache
def _font() -> ImageFont.ImageFont | ImageFont.FreeTypeFont:
    return ImageFont.load_default()
