"""Image folders and archives to test with."""

import io
import pathlib
import socket
import sys
import tarfile
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


def tiny_imagenet(root: str = "tiny-imagenet-200/") -> dict[str, bytes]:
    """Three classes, the ids in no order, of four training and two validation images of 8x8 pixels.

    One image of each split is greyscale.
    """
    wnids = ("n30", "n10", "n20")
    files = {
        "wnids.txt": "\n".join(wnids).encode(),
        "words.txt": b"n00\tentity\nn10\tcrane, hoist\nn20\tcrane\nn30\tred fox, Vulpes vulpes\n",
        "test/images/test_0.JPEG": encode(noise(99, 8), "JPEG"),
    }
    lines = []
    for label, wnid in enumerate(wnids):
        files[f"train/{wnid}/{wnid}_boxes.txt"] = b""
        for i in range(4):
            image = noise(10 * label + i, 8)
            files[f"train/{wnid}/images/{wnid}_{i}.JPEG"] = encode(
                image[..., 0] if label == i == 1 else image, "JPEG"
            )
        for i in range(2):
            name = f"val_{2 * i + 3 * label}.JPEG"
            image = noise(100 + 10 * label + i, 8)
            files[f"val/images/{name}"] = encode(image[..., 0] if label == i else image, "JPEG")
            lines.append(f"{name}\t{wnid}\t0\t1\t7\t7")
    files["val/val_annotations.txt"] = "\n".join(lines).encode() + b"\n"
    return {root + name: content for name, content in files.items()}


def write_tar(path: pathlib.Path, files: dict[str, bytes], mode: str = "w") -> pathlib.Path:
    with tarfile.open(path, mode) as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def without_network(monkeypatch) -> list[tuple]:
    """Forbids `import tensorflow` and connections; returns the connections that were tried."""
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    tried: list[tuple] = []

    def refuse(*arguments, **options):
        tried.append(arguments)
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    return tried
