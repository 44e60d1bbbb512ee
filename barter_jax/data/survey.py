"""What a data set holds: images per class and split, and figures of a sample of its pixels."""

from typing import Any

import numpy as np

from barter_jax.data.cache import decode_all
from barter_jax.data.dataset import ImageDataset, ImageSource, Subset

SPLITS = ("train", "validation", "test")


def class_counts(dataset: ImageDataset) -> dict[str, np.ndarray]:
    """Images of each class (int64 [C]) in each split; no image is read."""
    classes = len(dataset.class_names)
    return {
        split: np.bincount(getattr(dataset, split).labels, minlength=classes) for split in SPLITS
    }


def extremes(names: tuple[str, ...], counts: np.ndarray) -> dict[str, Any]:
    """What to say of one split: its images, classes, and the smallest and largest of these.

    Args:
        names: of the classes.
        counts: images of each, [C].

    Returns:
        {"images": n, "classes": those with images, "smallest": {"class": name, "images": n},
        "largest": ...}; among equals, the first class.
    """

    def one(label: int) -> dict[str, Any]:
        return {"class": names[label], "images": int(counts[label])}

    return {
        "images": int(counts.sum()),
        "classes": int(np.count_nonzero(counts)),
        "smallest": one(int(np.argmin(counts))),
        "largest": one(int(np.argmax(counts))),
    }


def sample_figures(source: ImageSource, count: int, seed: int) -> dict[str, Any]:
    """Figures of a random sample, drawn without replacement, of at most `count` images.

    Returns:
        {"images": n, "greyscale": images whose three channels are equal, "mean": [r, g, b], "std":
        [r, g, b]}: over all pixels, on the scale 0..1 that `data.mean` and `data.std` have.

    Raises:
        UserError: an image cannot be read.
    """
    order = np.random.default_rng(seed).permutation(len(source))
    images = decode_all(Subset(source, np.sort(order[:count]))).images
    grey = sum(bool((image == image[..., :1]).all()) for image in images)
    values = np.arange(256) / 255
    mean, std = [], []
    for channel in range(3):
        # Exact, and without a copy of the pixels in floating point.
        share = np.bincount(images[..., channel].reshape(-1), minlength=256) / images[..., 0].size
        mean.append(float(share @ values))
        std.append(float(np.sqrt(share @ (values - mean[-1]) ** 2)))
    return {"images": len(images), "greyscale": grey, "mean": mean, "std": std}
