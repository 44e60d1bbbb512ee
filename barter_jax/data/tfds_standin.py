"""The few functions of TensorFlow that TensorFlow Datasets calls while it prepares images.

Reading array_record data needs none of them, but extracting an archive and writing an image do. On
local files and with Pillow they are short; whatever else is asked for raises `NeedsTensorFlow`.
"""

import glob as glob_lib
import io as io_lib
import os
import shutil
import types
from collections.abc import Callable, Iterator

import numpy as np
from PIL import Image


class NeedsTensorFlow(ImportError):
    """Something of TensorFlow that is not among the functions here; `name` tells what."""


class Namespace(types.SimpleNamespace):
    """A module with a few entries. Asking for others raises NeedsTensorFlow."""

    def __init__(self, path: str, **entries):
        super().__init__(**entries)
        self._path = path

    def __getattr__(self, name: str):
        if name.startswith("__"):  # Copying, pickling and printing look for these.
            raise AttributeError(name)
        raise NeedsTensorFlow(f"{self._path}.{name}", name=f"{self._path}.{name}")


class Eager:
    """A value that is got by `.numpy()`, as an eager tensor's is."""

    def __init__(self, value: bytes | np.ndarray):
        self._value = value

    def numpy(self) -> bytes | np.ndarray:
        return self._value


def make() -> Namespace:
    """Returns what can take the place of the module `tensorflow`."""
    return Namespace(
        "tf",
        executing_eagerly=lambda: True,
        compat=Namespace("tf.compat", as_text=_as_text, as_str=_as_text, as_bytes=_as_bytes),
        dtypes=Namespace("tf.dtypes", DType=type("DType", (), {})),
        errors=Namespace("tf.errors", **{name: _error(name) for name in _ERRORS}),
        image=Namespace(
            "tf.image",
            encode_png=lambda image: _encode(image, "PNG"),
            encode_jpeg=_encode_jpeg,
            decode_image=_decode,
            decode_png=_decode,
            decode_jpeg=_decode,
        ),
        io=Namespace("tf.io", gfile=_gfile(), encode_jpeg=_encode_jpeg),
    )


# Those that TensorFlow Datasets catches. None is raised here: the built-in ones come instead.
_ERRORS = (
    "AbortedError",
    "AlreadyExistsError",
    "FailedPreconditionError",
    "InvalidArgumentError",
    "NotFoundError",
    "OutOfRangeError",
    "PermissionDeniedError",
    "ResourceExhaustedError",
    "UnimplementedError",
)


def _error(name: str) -> type[Exception]:
    return type(name, (Exception,), {})


def _as_text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _as_bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value


def _encode(image: np.ndarray, format: str, **options) -> Eager:
    """Encodes uint8 or uint16 [H, W, 1, 3 or 4]; PNG keeps every value."""
    image = np.asarray(image)
    if image.dtype != np.uint8 and not (image.dtype == np.uint16 and image.shape[-1] == 1):
        # Pillow has no images of several 16-bit channels.
        raise NeedsTensorFlow(f"tf.image.encode_{format.lower()} of {image.dtype} {image.shape}")
    stream = io_lib.BytesIO()
    Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image).save(
        stream, format, **options
    )
    return Eager(stream.getvalue())


def _encode_jpeg(image: np.ndarray, format: str = "", quality: int = 95) -> Eager:
    del format  # It follows from the image.
    return _encode(image, "JPEG", quality=quality)


def _decode(data: bytes, channels: int = 0) -> Eager:
    """Decodes to uint8 [H, W, C]: C as asked for, else 1 for grey, 4 with alpha, 3 for others."""
    with Image.open(io_lib.BytesIO(data)) as image:
        own = {"1": "L", "L": "L", "RGBA": "RGBA"}.get(image.mode, "RGB")
        pixels = np.asarray(image.convert({0: own, 1: "L", 3: "RGB", 4: "RGBA"}[channels]))
    return Eager(pixels if pixels.ndim == 3 else pixels[..., None])


def _gfile() -> Namespace:
    def open_file(name: str | os.PathLike[str], mode: str = "r"):
        # GFile writes to any path whose folder exists and never translates line ends.
        return open(name, mode) if "b" in mode else open(name, mode, newline="", encoding="utf-8")

    def copy(source, target, overwrite: bool = False) -> None:
        if os.path.exists(target) and not overwrite:
            raise FileExistsError(f"{target} exists")
        shutil.copyfile(source, target)

    def rename(source, target, overwrite: bool = False) -> None:
        if os.path.exists(target) and not overwrite:
            raise FileExistsError(f"{target} exists")
        os.replace(source, target)

    def find(pattern: str | list[str]) -> list[str]:
        patterns = [pattern] if isinstance(pattern, str | os.PathLike) else pattern
        return sorted(name for p in patterns for name in glob_lib.glob(os.fspath(p)))

    def walk(top) -> Iterator[tuple[str, list[str], list[str]]]:
        for parent, folders, files in os.walk(top):
            folders.sort()
            yield parent, folders, sorted(files)

    functions: dict[str, Callable] = {
        "GFile": open_file,
        "copy": copy,
        "exists": os.path.exists,
        "glob": find,
        "isdir": os.path.isdir,
        "listdir": lambda path: sorted(os.listdir(path)),
        "makedirs": lambda path: os.makedirs(path, exist_ok=True),
        "mkdir": os.mkdir,
        "remove": os.remove,
        "rename": rename,
        "rmtree": shutil.rmtree,
        "stat": os.stat,
        "walk": walk,
    }
    return Namespace("tf.io.gfile", **functions)
