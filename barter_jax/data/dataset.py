"""What a data set is to the rest of the project: three random-access sources and class names."""

import abc
import dataclasses
import hashlib
from collections.abc import Sequence

import numpy as np

from barter_jax.errors import UserError

Item = dict[str, np.ndarray]


class ImageSource(abc.ABC):
    """Labelled images of one size, in a fixed order; what grain calls a random-access source.

    `labels` holds all labels (int32 [N]) and is known without decoding an image. Reading is
    thread-safe and gives the same item every time. A source can be pickled, for processes that
    read; `in_memory` tells that the pickle would hold the images.
    """

    labels: np.ndarray
    in_memory: bool = False

    def __len__(self) -> int:
        return len(self.labels)

    @abc.abstractmethod
    def __getitem__(self, index: int) -> Item:
        """Returns {"image": uint8 [H, W, 3], "label": int32 scalar}; IndexError past the end."""

    def identity(self) -> bytes:
        """Returns what tells these images from others, without reading one: here the labels."""
        return self.labels.tobytes()

    def read(self, indices: Sequence[int] | np.ndarray) -> Item:
        """Returns {"image": uint8 [n, H, W, 3], "label": int32 [n]} for n >= 1 indices."""
        return stack_items([self[int(index)] for index in indices])


class ArraySource(ImageSource):
    """Images that are already in memory."""

    in_memory = True

    def __init__(self, images: np.ndarray, labels: np.ndarray):
        """Wraps images (uint8 [N, H, W, 3], not copied) and labels (integers [N]).

        Raises:
            ValueError: for another dtype, rank or a different number of images and labels.
        """
        if images.dtype != np.uint8 or images.ndim != 4 or images.shape[-1] != 3:
            raise ValueError(f"images are {images.dtype} {images.shape}, not uint8 [N, H, W, 3]")
        if labels.shape != images.shape[:1]:
            raise ValueError(f"{images.shape[0]} images but labels of shape {labels.shape}")
        # Items are views of this array: writing to one would corrupt every later epoch.
        self.images = images.view()
        self.images.flags.writeable = False
        self.labels = labels.astype(np.int32)

    def __getitem__(self, index: int) -> Item:
        return {"image": self.images[index], "label": self.labels[index]}

    def read(self, indices: Sequence[int] | np.ndarray) -> Item:
        indices = np.asarray(indices)
        return {"image": self.images[indices], "label": self.labels[indices]}


class Subset(ImageSource):
    """Some images of another source, by index; nothing is copied."""

    def __init__(self, source: ImageSource, indices: np.ndarray):
        self._source = source
        self._indices = np.asarray(indices, dtype=np.int64)
        self.labels = source.labels[self._indices]
        self.in_memory = source.in_memory

    def identity(self) -> bytes:
        return self._source.identity() + self._indices.tobytes()

    def __getitem__(self, index: int) -> Item:
        return self._source[int(self._indices[index])]

    def read(self, indices: Sequence[int] | np.ndarray) -> Item:
        return self._source.read(self._indices[np.asarray(indices)])


@dataclasses.dataclass(frozen=True)
class ImageDataset:
    """The three splits of a data set, pairwise disjoint, and the name of each label.

    Raises:
        UserError: for a label without a name; -1, for one, stands for no label in some data sets.
    """

    train: ImageSource
    validation: ImageSource
    test: ImageSource
    class_names: tuple[str, ...]

    def __post_init__(self):
        for split in ("train", "validation", "test"):
            labels = getattr(self, split).labels
            outside = (labels < 0) | (labels >= len(self.class_names))
            if outside.any():
                index = int(np.argmax(outside))
                raise UserError(
                    f"{split} image {index} of the data has the label {labels[index]}, but the "
                    f"{len(self.class_names)} classes have 0 to {len(self.class_names) - 1}: mend "
                    "its label, or set data.name to a data set that is labelled"
                )

    def identity(self) -> dict[str, int | str]:
        """Returns the sizes, and a hash of the class names and of which images are in which split.

        By names and labels, without reading an image: what a file holds may change unseen.
        """
        splits = {name: getattr(self, name) for name in ("train", "validation", "test")}
        digest = hashlib.sha256("\n".join(self.class_names).encode())
        for source in splits.values():
            digest.update(hashlib.sha256(source.identity()).digest())
        sizes = {name: len(source) for name, source in splits.items()}
        return {"classes": len(self.class_names), **sizes, "hash": digest.hexdigest()}


def stack_items(items: Sequence[Item]) -> Item:
    """Stacks n >= 1 items into {"image": uint8 [n, H, W, 3], "label": int32 [n]}."""
    return {
        "image": np.stack([item["image"] for item in items]),
        "label": np.array([item["label"] for item in items], dtype=np.int32),
    }
