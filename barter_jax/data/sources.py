"""The data sets by name."""

import dataclasses
import difflib
import functools
import os
from collections.abc import Callable

from barter_jax.data import digits, folder, tfds_prepare, tfds_source, tiny_imagenet
from barter_jax.data.dataset import ImageDataset, ImageSource
from barter_jax.errors import UserError

__all__ = ["SOURCES", "ImageDataset", "ImageSource", "Loader", "class_names", "load"]


@dataclasses.dataclass(frozen=True)
class Loader:
    """How to get one data set: both functions as below, without the name."""

    load: Callable[..., ImageDataset]
    class_names: Callable[[str | os.PathLike[str] | None], tuple[str, ...]]


def _tfds(name: str) -> Loader:
    return Loader(
        functools.partial(tfds_source.load, name),
        functools.partial(tfds_source.class_names, name),
    )


SOURCES: dict[str, Loader] = {
    "digits": Loader(digits.load, digits.class_names),
    "folder": Loader(folder.load, folder.class_names),
    "cifar10": _tfds("cifar10"),
    "cifar100": _tfds("cifar100"),
    "imagenet": _tfds("imagenet2012"),
    "tiny_imagenet": Loader(tiny_imagenet.load, tiny_imagenet.class_names),
}
TFDS_PREFIX = "tfds/"


def load(
    name: str,
    *,
    dir: str | os.PathLike[str] | None,
    image_size: int,
    validation_fraction: float,
    seed: int,
    resize: bool,
    cache_mb: float,
) -> ImageDataset:
    """Loads a data set.

    Args:
        name: a key of `SOURCES`, or `tfds/<name>[/<config>][:<version>]` for an image
            classification set of TensorFlow Datasets.
        dir: where the images are, for the sources that need it; for those of TensorFlow Datasets
            what it calls data_dir.
        image_size: height and width of every image.
        validation_fraction: the part of the training images to hold out, in (0, 1); unused where
            the data set has a validation split of its own.
        seed: decides which ones are held out. The test split never depends on it.
        resize: scale and crop images of another size instead of refusing them.
        cache_mb: decode everything now if that takes at most so many MiB, else image by image.

    Raises:
        UserError: for an unknown name, missing or badly laid out data, an unreadable image, an
            image of another size and not `resize`, or a fraction that leaves a split empty. Images
            that are decoded later raise it when they are read.
    """
    loader = _find(name)
    if image_size < 1:
        raise UserError(f"data.image_size={image_size} is not positive: set it to the images' size")
    return loader.load(
        dir=dir,
        image_size=image_size,
        validation_fraction=validation_fraction,
        seed=seed,
        resize=resize,
        cache_mb=cache_mb,
    )


def class_names(name: str, dir: str | os.PathLike[str] | None = None) -> tuple[str, ...]:
    """Returns the name of each label, in order, without decoding an image.

    Raises:
        UserError: as `load` does, for an unknown name and missing or badly laid out data.
    """
    return _find(name).class_names(dir)


def _find(name: str) -> Loader:
    if name in SOURCES:
        return SOURCES[name]
    if name.startswith(TFDS_PREFIX):
        return _tfds(name.removeprefix(TFDS_PREFIX))
    if name.partition("/")[0].partition(":")[0] in tfds_prepare.builder_names():
        nearest = [TFDS_PREFIX + name]
    else:
        nearest = difflib.get_close_matches(name, SOURCES, n=1, cutoff=0.4)
    hint = f" (did you mean {nearest[0]}?)" if nearest else ""
    raise UserError(
        f"data.name={name} is unknown{hint}: choose one of {', '.join(SOURCES)}, or "
        f"{TFDS_PREFIX}<name> for an image classification set of TensorFlow Datasets"
    )
