"""Decoding a data set once, into memory."""

import dataclasses
import logging
import os
import time
from collections.abc import Mapping
from concurrent import futures

import numpy as np

from barter_jax.data.dataset import ArraySource, ImageDataset, ImageSource

log = logging.getLogger("barter_jax")

_CHUNK = 256
_MAX_THREADS = 16
_SECONDS_BETWEEN_LOGS = 5.0


def cache_if_fits(
    sources: Mapping[str, ImageSource], image_size: int, cache_mb: float
) -> dict[str, ImageSource]:
    """Returns the sources in memory if together they fit in `cache_mb` MiB, else as they are.

    0 asks for no decoding ahead; any other limit that does not suffice is told.
    """
    if cache_mb == 0:
        return dict(sources)
    size = sum(map(len, sources.values())) * image_size**2 * 3
    if size > cache_mb * 2**20:
        log.info(
            "the decoded images take %.0f MiB, more than data.cache_mb=%g: decoding them as they "
            "are needed",
            size / 2**20,
            cache_mb,
        )
        return dict(sources)
    return {name: decode_all(source) for name, source in sources.items()}


def cached(dataset: ImageDataset, image_size: int, cache_mb: float) -> ImageDataset:
    """The data set with its images in memory if they fit; see `cache_if_fits`."""
    splits = {name: getattr(dataset, name) for name in ("train", "validation", "test")}
    return dataclasses.replace(dataset, **cache_if_fits(splits, image_size, cache_mb))


def decode_all(source: ImageSource) -> ArraySource:
    """Reads every image of a source, with a few threads, into one array.

    Args:
        source: at least one image; all of one size.

    Raises:
        What the source raises for its first unreadable image.
    """
    images = np.empty((len(source), *source[0]["image"].shape), np.uint8)

    def fill(start: int) -> None:
        for index in range(start, min(start + _CHUNK, len(source))):
            images[index] = source[index]["image"]

    logged = time.monotonic()
    pool = futures.ThreadPoolExecutor(min(os.cpu_count() or 1, _MAX_THREADS))
    try:
        starts = range(0, len(source), _CHUNK)
        # Waiting in order makes the first unreadable image the one that is reported.
        for start, done in zip(starts, [pool.submit(fill, start) for start in starts], strict=True):
            done.result()
            if time.monotonic() - logged > _SECONDS_BETWEEN_LOGS:
                logged = time.monotonic()
                done_so_far = min(start + _CHUNK, len(source))
                log.info("decoded %d of %d images", done_so_far, len(source))
    finally:
        pool.shutdown(cancel_futures=True)
    return ArraySource(images, source.labels)
