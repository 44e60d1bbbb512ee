"""In which order the training images come: a permutation an epoch, end to end, cut into batches.

Batch k is known without those before it, so a position in the data is one number. Whole
permutations are drawn at once, since picking images one by one in Python (as grain's own shuffle
does: 1.1 ms for a batch of 64) can take a fifth of a small model's step.
"""

from __future__ import annotations

import dataclasses
import functools

import numpy as np


@dataclasses.dataclass(frozen=True)
class Order:
    """The images of each batch that one process reads.

    The images of epoch 0, 1, ... each in an order of its own make one stream. Global batch k is its
    elements [k * batch_size, (k + 1) * batch_size), so it may span epochs and no image is left out.
    Each process takes one contiguous block of it, in the order of the processes.

    Attributes:
        num_images: images of an epoch.
        batch_size: images in a global batch.
        seed: non-negative; decides all orders.
        process_index: which block, in 0..process_count-1.
        process_count: the number of blocks, a divisor of `batch_size`.
    """

    num_images: int
    batch_size: int
    seed: int
    process_index: int = 0
    process_count: int = 1

    def __call__(self, batch: int) -> np.ndarray:
        """The indices of the images of a batch, int64 `[batch_size / process_count]`."""
        own = self.batch_size // self.process_count
        position = batch * self.batch_size + self.process_index * own
        parts, left = [], own
        while left:
            epoch, offset = divmod(position, self.num_images)
            part = permutation(self.seed, epoch, self.num_images)[offset : offset + left]
            parts.append(part)
            position, left = position + len(part), left - len(part)
        return np.concatenate(parts)


# A batch that spans two epochs needs both; threads may be a batch or two apart.
@functools.lru_cache(maxsize=4)
def permutation(seed: int, epoch: int, size: int) -> np.ndarray:
    """The order of an epoch: a permutation of `size` numbers, int64, not to be written to.

    Seeds and epochs are independent of each other: no epoch of a seed is that of another one.
    """
    order = np.random.default_rng((seed, epoch)).permutation(size)
    order.flags.writeable = False
    return order
