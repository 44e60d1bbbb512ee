"""Images that are read larger than the model takes them, and cut to their centre to evaluate on."""

from collections.abc import Sequence

import numpy as np

from barter_jax.data.dataset import ImageSource, Item


def centre(images: np.ndarray, size: int) -> np.ndarray:
    """Returns the central [..., size, size, 3] of images [..., H, W, 3]; a view.

    Where the rest is odd, one pixel more is cut off below and on the right.

    Raises:
        ValueError: when an image is smaller than that.
    """
    height, width = images.shape[-3:-1]
    if min(height, width) < size:
        raise ValueError(f"images of {width}x{height} pixels have no centre of {size}x{size}")
    top, left = (height - size) // 2, (width - size) // 2
    return images[..., top : top + size, left : left + size, :]


class CentreCropped(ImageSource):
    """The images of another source, cut to their centre."""

    def __init__(self, source: ImageSource, size: int):
        """Wraps a source of images at least `size` pixels high and wide; nothing is copied."""
        self._source = source
        self._size = size
        self.labels = source.labels
        self.in_memory = source.in_memory

    def identity(self) -> bytes:
        return self._source.identity()

    def __getitem__(self, index: int) -> Item:
        return self._cut(self._source[index])

    def read(self, indices: Sequence[int] | np.ndarray) -> Item:
        return self._cut(self._source.read(indices))

    def _cut(self, item: Item) -> Item:
        return {**item, "image": centre(item["image"], self._size)}
