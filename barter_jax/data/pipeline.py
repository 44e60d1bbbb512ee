"""Batches: endless shuffled ones to train on, one pass in order to evaluate on."""

import math
from collections.abc import Iterator
from fractions import Fraction

import grain
import numpy as np

from barter_jax.data.dataset import ImageSource, Item
from barter_jax.errors import UserError


def train_batches(
    source: ImageSource,
    *,
    batch_size: int,
    seed: int,
    process_index: int = 0,
    process_count: int = 1,
    num_threads: int,
    prefetch: int,
) -> grain.DatasetIterator[Item]:
    """Returns an endless iterator over shuffled batches for this process.

    The images of epoch 0, 1, ... each in an order of its own make one stream; global batch k is its
    elements [k * batch_size, (k + 1) * batch_size), so a batch can span two epochs and no image is
    left out. Of it, each process gets one contiguous block, in the order of the processes: any
    number of processes sees the same global batches.

    `get_state()` is {"next_index": k}, the number of batches taken; `set_state` goes there. It does
    not depend on `num_threads` and `prefetch`, but it counts batches of this `batch_size`. After an
    exception, which leaves the position at the failed batch, call `set_state` before `next`.

    Args:
        source: the training images.
        batch_size: images in a global batch.
        seed: a non-negative integer; decides the order.
        process_index: which block is wanted, in 0..process_count-1.
        process_count: the number of blocks, a divisor of `batch_size`.
        num_threads: threads that assemble batches ahead; 0 assembles them in `next`.
        prefetch: batches to hold ready; 0 assembles them in `next`.

    Returns:
        An iterator over {"image": uint8 [b, H, W, 3], "label": int32 [b]}, where
        b = batch_size / process_count, with `get_state`, `set_state` and `close`. What the source
        raises comes out of `next` unchanged.

    Raises:
        UserError: for a batch size below 1, above the number of images or not divisible by the
            number of processes.
    """
    if batch_size < 1:
        raise UserError(f"train.batch_size={batch_size} is not positive: raise it")
    if batch_size > len(source):
        raise UserError(
            f"train.batch_size={batch_size} is larger than the {len(source)} training images: "
            "lower it"
        )
    if batch_size % process_count:
        raise UserError(
            f"train.batch_size={batch_size} is not divisible by the {process_count} processes: "
            f"set it to a multiple of {process_count}"
        )
    if not 0 <= process_index < process_count:
        raise ValueError(f"process_index={process_index} is not in 0..{process_count - 1}")
    # Grain carries indices only, and the images of a batch are gathered at once: that is many
    # times cheaper than passing single images through its Python layers.
    # The repeated stream has sys.maxsize elements: without drop_remainder, grain's length of it in
    # batches is rounded in floating point, past what `len` can return.
    blocks = (
        grain.MapDataset.range(len(source))
        .shuffle(seed=_order_seed(seed))
        .repeat()
        .batch(batch_size // process_count, drop_remainder=True)
    )
    batches = blocks[process_index::process_count].map(source.read)
    # Threads without a batch to prepare would be idle.
    options = grain.ReadOptions(
        num_threads=min(num_threads, prefetch), prefetch_buffer_size=prefetch
    )
    return iter(batches.to_iter_dataset(options))


def eval_batches(source: ImageSource, batch_size: int) -> Iterator[Item]:
    """Yields every image exactly once, in order, in batches of one shape.

    Yields:
        {"image": uint8 [batch_size, H, W, 3], "label": int32 [batch_size], "mask": float32
        [batch_size]}. The last batch is filled up with zeros, where the mask is 0 instead of 1.

    Raises:
        UserError: for a batch size below 1.
    """
    if batch_size < 1:
        raise UserError(f"the evaluation batch size {batch_size} is not positive: raise it")
    return _eval_batches(source, batch_size)


def _eval_batches(source: ImageSource, batch_size: int) -> Iterator[Item]:
    for start in range(0, len(source), batch_size):
        batch = source.read(np.arange(start, min(start + batch_size, len(source))))
        batch["mask"] = np.ones(len(batch["label"]), np.float32)
        padding = batch_size - len(batch["label"])
        yield {
            name: np.pad(value, [(0, padding)] + [(0, 0)] * (value.ndim - 1)) if padding else value
            for name, value in batch.items()
        }


def steps_per_epoch(num_images: int, batch_size: int, passes: float) -> int:
    """Returns floor(passes * num_images / batch_size), `passes` being the decimal it prints as.

    In floating point 0.29 passes over 100 images would be 28 images.
    """
    return math.floor(Fraction(str(float(passes))) * num_images / batch_size)


def _order_seed(seed: int) -> int:
    """Spreads seeds over 32 bits.

    Grain orders epoch e by seed + e: without this, epoch 1 of seed 0 would be epoch 0 of seed 1,
    and runs that are meant to be independent would share most of their data order.
    """
    return int(np.random.SeedSequence(seed).generate_state(1)[0])
