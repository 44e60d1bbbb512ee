"""Image folders and archives to test with."""

import io
import pathlib
import zipfile

import numpy as np
from PIL import Image

from barter_jax.data.dataset import ArraySource


def encode(image, format="PNG", **options) -> bytes:
    stream = io.BytesIO()
    if isinstance(image, np.ndarray):
        image = Image.fromarray(image)
    image.save(stream, format, **options)
    return stream.getvalue()


def noise(seed: int, size: int = 4) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (size, size, 3), np.uint8)


def write(root: pathlib.Path, files: dict[str, bytes]) -> pathlib.Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return root


def write_zip(path: pathlib.Path, files: dict[str, bytes]) -> pathlib.Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def animals(test: str = "test") -> dict[str, bytes]:
    """Three cats, four dogs; one of each to test with. The names sort in the order of the seeds."""
    files = {f"train/cat/{i}.png": encode(noise(i)) for i in range(3)}
    files |= {f"train/dog/{i}.png": encode(noise(3 + i)) for i in range(4)}
    files |= {f"{test}/cat/a.png": encode(noise(7)), f"{test}/dog/a.png": encode(noise(8))}
    return files


def numbered(count: int) -> ArraySource:
    """A source in which an image's label is its index and its pixels follow from it."""
    values = np.arange(count, dtype=np.int32)
    pixels = np.stack([values % 251, values // 251, values % 7], -1).astype(np.uint8)
    return ArraySource(np.broadcast_to(pixels[:, None, None], (count, 2, 2, 3)), values)
