"""The handwritten digits that come with the package: 1,797 images of 8x8 pixels, ten classes.

Source: the test part of "Optical Recognition of Handwritten Digits" by E. Alpaydin and C. Kaynak,
UCI Machine Learning Repository (1998), https://doi.org/10.24432/C50P49, licensed CC BY 4.0
(https://creativecommons.org/licenses/by/4.0/), in the order in which scikit-learn gives it.
`digits.npz` holds the values 0..16 unchanged; `read_all` scales them to 0..255.
"""

import importlib.resources
import os

import numpy as np
from PIL import Image

from barter_jax.data.dataset import ArraySource, ImageDataset, Subset
from barter_jax.data.images import fit
from barter_jax.data.split import stratified_split

CLASS_NAMES = tuple("0123456789")


def load(
    *,
    dir: str | os.PathLike[str] | None,
    image_size: int,
    validation_fraction: float,
    seed: int,
    resize: bool,
    cache_mb: float,
) -> ImageDataset:
    """Loads the embedded digits; see `barter_jax.data.sources.load`.

    `dir` and `cache_mb` play no role: the images are in the package and always in memory.
    """
    del dir, cache_mb
    images, labels = read_all()
    rest, test = test_split(labels)
    # Before resizing: that concerns all images alike, and the fraction is the likelier mistake.
    train, validation = stratified_split(labels[rest], validation_fraction, seed)
    resized = [
        fit(Image.fromarray(image), f"digits, image {index}", image_size, resize)
        for index, image in enumerate(images)
    ]
    source = ArraySource(np.stack([np.asarray(image) for image in resized]), labels)
    return ImageDataset(
        train=Subset(source, rest[train]),
        validation=Subset(source, rest[validation]),
        test=Subset(source, test),
        class_names=CLASS_NAMES,
    )


def class_names(dir: str | os.PathLike[str] | None) -> tuple[str, ...]:
    """Returns "0" to "9"; `dir` plays no role."""
    del dir
    return CLASS_NAMES


def read_all() -> tuple[np.ndarray, np.ndarray]:
    """Returns all images (uint8 [1797, 8, 8, 3], round(v * 255 / 16)) and labels (int32 [1797])."""
    file = importlib.resources.files("barter_jax.data").joinpath("digits.npz")
    with file.open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
        values, labels = arrays["images"], arrays["labels"].astype(np.int32)
    grey = np.rint(values * (255 / 16)).astype(np.uint8)
    return np.repeat(grey[..., None], 3, axis=-1), labels


def test_split(labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the indices (rest, test): of every five images of a class, the third is for the test.

    It depends on no seed and no random generator: results of different runs and versions compare.
    """
    rank = np.empty(len(labels), np.int64)
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        rank[members] = np.arange(len(members))
    is_test = rank % 5 == 2
    return np.flatnonzero(~is_test), np.flatnonzero(is_test)
