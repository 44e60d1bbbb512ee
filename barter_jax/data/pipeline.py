"""Batches: endless shuffled ones to train on, one pass in order to evaluate on."""

import contextlib
import gc
import logging
import math
import os
import shutil
import signal
import threading
import traceback
from collections.abc import Iterator
from fractions import Fraction
from multiprocessing import parent_process, resource_tracker
from typing import Any

import grain
import jax
import numpy as np
from absl import flags

from barter_jax.data.dataset import ImageSource, Item
from barter_jax.data.order import Order
from barter_jax.errors import RunError, UserError

log = logging.getLogger("barter_jax")

# Batches of one reading process that can be in shared memory at once: one in its queue, one that
# it is adding, one on the way to `next`.
_IN_FLIGHT = 3
_SHARED_MEMORY = "/dev/shm"
# Batches of a stream without an end, few enough for grain to count.
_ENDLESS = 2**40
# Bytes of a batch: smaller ones are copied faster than another thread hands them over.
_WORTH_A_THREAD = 2**20
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class TrainBatches(Iterator[Item]):
    """What `train_batches` returns: an endless iterator whose position is one number."""

    def __init__(
        self,
        indices: grain.MapDataset[np.ndarray],
        source: ImageSource,
        options: grain.ReadOptions,
        workers: int,
    ):
        self._indices = indices
        self._source = source
        self._options = options
        self._workers = workers
        self._next_index = 0
        self._iterator: grain.DatasetIterator[Item] | None = None

    def __next__(self) -> Item:
        try:
            if self._iterator is None:
                self._iterator = self._start()
            batch = next(self._iterator)
        except BaseException as error:
            self.close()
            if self._workers:
                _forget_frames(error)
            if isinstance(error, RuntimeError) and "terminated unexpectedly" in str(error):
                raise RunError(
                    f"a process that reads images has died ({error}): if memory ran out, lower "
                    "config.data.workers or config.train.batch_size; with config.data.workers=0 "
                    "there are no such processes"
                ) from error
            raise
        self._next_index += 1
        if self._workers:
            # Grain frees the shared memory of an array when Python lets go of it, whether or not
            # a device still reads from there.
            batch = {name: np.array(value) for name, value in batch.items()}
        return batch

    def get_state(self) -> dict[str, int]:
        """Returns {"next_index": k}: k batches have been taken."""
        return {"next_index": self._next_index}

    def set_state(self, state: dict[str, Any]) -> None:
        """Goes to where `get_state` gave `state`."""
        index = state["next_index"]
        if index < 0:
            raise ValueError(f"there is no batch {index}")
        self.close()
        self._next_index = index

    def close(self) -> None:
        """Ends the threads and processes; the position stays, and `next` starts them again."""
        iterator, self._iterator = self._iterator, None
        if iterator is not None:
            iterator.close()

    def _start(self) -> grain.DatasetIterator[Item]:
        # The state of grain's own iterator holds the number of workers. A slice begins anywhere.
        indices = self._indices[self._next_index :]
        rest = indices.map(self._source.read).to_iter_dataset(self._options)
        if not self._workers:
            return iter(rest)
        batch_bytes = len(indices[0]) * self._source[0]["image"].nbytes
        _check_shared_memory(_IN_FLIGHT * self._workers * batch_bytes, self._workers)
        if not flags.FLAGS.is_parsed():
            # Grain looks at flags of its own; outside the commands nobody has parsed any.
            flags.FLAGS.mark_as_parsed()
        iterator = iter(
            rest.mp_prefetch(
                grain.MultiprocessingOptions(num_workers=self._workers), _set_up_worker
            )
        )
        # `get_state` makes the parts of the iterator, one a worker; made by `next`, those whose
        # turn has not come yet would not be closed. The processes start with the signals blocked,
        # as the threads that start them have it from this one: a Ctrl-C is for the parent alone.
        iterator.get_state()
        with _blocked_signals(), _quiet_tracker():
            iterator.start_prefetch()
        return iterator


def train_batches(
    source: ImageSource,
    *,
    batch_size: int,
    seed: int,
    process_index: int = 0,
    process_count: int = 1,
    num_threads: int,
    prefetch: int,
    workers: int = 0,
) -> TrainBatches:
    """Returns an endless iterator over shuffled batches for this process.

    The order is that of `barter_jax.data.order`: any number of processes sees the same global
    batches.

    `get_state()` is {"next_index": k}, the number of batches taken; `set_state` goes there. It does
    not depend on `num_threads`, `prefetch` and `workers`, but it counts batches of this
    `batch_size`. An exception leaves the position at the failed batch, which `next` tries again.

    With `workers`, processes read instead of this one, and batches come from them in turn. The
    source is copied to each, so images that are in memory already are read by this process's
    threads all the same. Python's way to start such a process imports the main module: a script of
    one's own that trains needs `if __name__ == "__main__":`. The processes use no accelerator,
    leave signals to their parent, and end with it however it ends.

    Args:
        source: the training images.
        batch_size: images in a global batch.
        seed: a non-negative integer; decides the order.
        process_index: which block is wanted, in 0..process_count-1.
        process_count: the number of blocks, a divisor of `batch_size`.
        num_threads: threads that assemble batches ahead; 0 assembles them in `next`, as do small
            batches of images in memory.
        prefetch: batches to hold ready; 0 assembles them in `next`.
        workers: processes to read in, each with `num_threads` and `prefetch` of its own; 0 reads in
            this one.

    Returns:
        An iterator over {"image": uint8 [b, H, W, 3], "label": int32 [b]}, where
        b = batch_size / process_count, with `get_state`, `set_state` and `close`. What the source
        raises comes out of `next`, with its type and message. With `workers`, `next` also raises
        RunError when a process dies, and UserError when the batches do not fit in shared memory.

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
    order = Order(len(source), batch_size, seed, process_index, process_count)
    indices = grain.MapDataset.range(_ENDLESS).map(order)
    if source.in_memory and len(order(0)) * source[0]["image"].nbytes < _WORTH_A_THREAD:
        num_threads = 0
    # Threads without a batch to prepare would be idle.
    options = grain.ReadOptions(
        num_threads=min(num_threads, prefetch), prefetch_buffer_size=prefetch
    )
    if workers and source.in_memory:
        log.info(
            "the images are in memory, where threads read them as fast: config.data.workers=%d "
            "starts no processes",
            workers,
        )
        workers = 0
    return TrainBatches(indices, source, options, workers)


def eval_batches(
    source: ImageSource,
    batch_size: int,
    *,
    process_index: int = 0,
    process_count: int = 1,
    num_threads: int = 0,
) -> Iterator[Item]:
    """Yields every image exactly once, in order, in batches of one shape.

    Args:
        source: the images.
        batch_size: images in a global batch.
        process_index: of each batch, this process gets the block of this number.
        process_count: the number of blocks, a divisor of `batch_size`.
        num_threads: threads that read ahead, a batch each; images in memory need none.

    Yields:
        {"image": uint8 [b, H, W, 3], "label": int32 [b], "mask": float32 [b]}, where
        b = batch_size / process_count. The last batch is filled up with zeros, where the mask is 0
        instead of 1.

    Raises:
        UserError: for a batch size below 1.
        ValueError: for one that does not split over the processes.
    """
    if batch_size < 1:
        raise UserError(f"the evaluation batch size {batch_size} is not positive: raise it")
    if batch_size % process_count:
        raise ValueError(f"a batch of {batch_size} does not split over {process_count} processes")
    own = batch_size // process_count

    def read(batch: int) -> Item:
        start = batch * batch_size + process_index * own
        return _filled_up(source, start, min(start + own, len(source)), own)

    threads = 0 if source.in_memory else num_threads
    batches = grain.MapDataset.range(math.ceil(len(source) / batch_size)).map(read)
    options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=threads)
    return iter(batches.to_iter_dataset(options))


def _filled_up(source: ImageSource, start: int, stop: int, size: int) -> Item:
    """The images from `start` to `stop`, which may be none, and zeros up to `size` of them."""
    count = max(stop - start, 0)
    # Even where no image is left, one tells their shape.
    batch = source.read(np.arange(start, stop) if count else np.zeros(1, np.int64))
    padded = {}
    for name, value in batch.items():
        padded[name] = np.zeros((size, *value.shape[1:]), value.dtype)
        padded[name][:count] = value[:count]
    padded["mask"] = (np.arange(size) < count).astype(np.float32)
    return padded


def steps_per_epoch(num_images: int, batch_size: int, passes: float) -> int:
    """Returns floor(passes * num_images / batch_size), `passes` being the decimal it prints as.

    In floating point 0.29 passes over 100 images would be 28 images.
    """
    return math.floor(Fraction(str(float(passes))) * num_images / batch_size)


def _check_shared_memory(needed: int, workers: int) -> None:
    """Refuses batches that do not fit: a process that writes beyond the end is killed."""
    if not os.path.isdir(_SHARED_MEMORY):
        return
    free = shutil.disk_usage(_SHARED_MEMORY).free
    if needed > free:
        raise UserError(
            f"config.data.workers={workers} needs {needed / 2**20:.0f} MiB of shared memory, but "
            f"{_SHARED_MEMORY} has {free / 2**20:.0f} MiB free: lower it or "
            "config.train.batch_size, or give the container more (docker run --shm-size=2g)"
        )


@contextlib.contextmanager
def _blocked_signals() -> Iterator[None]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _quiet_tracker() -> Iterator[None]:
    """Has Python's own process that frees shared memory do so without a word.

    Batches that were on their way when a run ends are what it is there for.
    """
    name, quiet = "PYTHONWARNINGS", "ignore::UserWarning:multiprocessing.resource_tracker"
    before = os.environ.get(name)
    os.environ[name] = f"{before},{quiet}" if before else quiet
    try:
        resource_tracker.ensure_running()
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _forget_frames(error: BaseException) -> None:
    """Takes the traceback from an exception: its frames keep shared memory from being freed.

    What is left is told on stderr when the program ends. Of a failure that nobody expects, where it
    happened stays as text.
    """
    if isinstance(error, Exception) and not isinstance(error, UserError):
        error.add_note("".join(traceback.format_exception(error)))
    error.__traceback__ = None
    gc.collect()  # The frames that grain makes up for its workers are a cycle.


def _set_up_worker(index: int, count: int) -> None:
    """Runs in each reading process before it reads."""
    del index, count
    # The parent saves first and needs the batches for that; it ends this process by other means.
    for number in _STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    # Nothing here needs a device, and whoever asked for one would get it from under the parent.
    jax.config.update("jax_platforms", "cpu")
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
