"""From the bytes of an image file to an 8-bit RGB array of the wanted size."""

import io

import numpy as np
from PIL import Image, ImageOps

from barter_jax.errors import UserError

_ALPHA_MODES = ("RGBA", "RGBa", "LA", "La", "PA")


def decode_image(data: bytes, name: str, image_size: int, resize: bool) -> np.ndarray:
    """Decodes one image file.

    The EXIF orientation is applied; grey, palette, CMYK and the like become RGB; 16-bit values are
    scaled to 8 bits; transparent pixels are composited over white, the background such images are
    usually drawn for. Of an animation the first frame counts.

    Args:
        data: the file's content.
        name: how errors name the file.
        image_size: height and width of the result.
        resize: scale the shorter side to `image_size` (bilinear, antialiased) and crop the centre
            when the size differs, instead of refusing the image.

    Returns:
        uint8 [image_size, image_size, 3].

    Raises:
        UserError: when the file is not an image, is damaged, or has another size and not `resize`.
    """
    try:
        with Image.open(io.BytesIO(data)) as image:
            ImageOps.exif_transpose(image, in_place=True)
            image = _to_rgb(image)
    except MemoryError:
        raise
    # Pillow's parsers answer damaged files with many types (OSError, SyntaxError, struct.error...).
    except Exception as error:
        # Pillow's own words for this one are the address of our buffer.
        unknown = isinstance(error, Image.UnidentifiedImageError)
        reason = "no image format that Pillow knows" if unknown else str(error) or repr(error)
        raise UserError(f"{name}: cannot be decoded ({reason}): replace or remove it") from error
    return np.asarray(fit(image, name, image_size, resize))


def fit(image: Image.Image, name: str, image_size: int, resize: bool) -> Image.Image:
    """Returns an image of `image_size` squared: as it is, or its scaled and centre-cropped copy.

    Raises:
        UserError: when the size differs and not `resize`.
    """
    width, height = image.size
    if (width, height) == (image_size, image_size):
        return image
    if not resize:
        raise UserError(
            f"{name}: {width}x{height} pixels, but data.image_size={image_size}: "
            f"set data.image_size to the images' size, or data.resize=True to scale and crop them"
        )
    scale = image_size / min(width, height)
    # The shorter side must come out exact, and rounding must not take the longer one below it.
    width, height = (max(round(side * scale), image_size) for side in (width, height))
    image = image.resize((width, height), Image.Resampling.BILINEAR)
    left, top = (width - image_size) // 2, (height - image_size) // 2
    return image.crop((left, top, left + image_size, top + image_size))


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode == "I" or image.mode.startswith("I;16"):
        values = np.asarray(image).astype(np.int64)
        if values.min() < 0 or values.max() > 65535:
            raise ValueError("its values do not fit in 16 bits")
        # Pillow's own conversion clips at 255. 65535 = 255 * 257: this is round(v * 255 / 65535).
        return Image.fromarray(((values + 128) // 257).astype(np.uint8)).convert("RGB")
    if image.mode == "F":
        raise ValueError("its values are floating-point, of unknown range")
    if image.mode in _ALPHA_MODES or "transparency" in image.info:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        return Image.alpha_composite(white, image).convert("RGB")
    return image.convert("RGB")
