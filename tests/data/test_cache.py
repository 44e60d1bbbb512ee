"""Decoding ahead, into memory."""

import os
import time

import numpy as np
import pytest

from barter_jax.data import cache
from barter_jax.data.dataset import ArraySource, ImageDataset, ImageSource, Subset
from barter_jax.errors import UserError

from .helpers import noise, numbered


class Counted(ImageSource):
    """Images that are made when they are asked for; `read_at` tells which were."""

    def __init__(self, count, size=4):
        self.labels = np.arange(count, dtype=np.int32) % 2
        self.size = size
        self.read_at = []

    def __getitem__(self, index):
        self.read_at.append(index)
        return {"image": noise(index, self.size), "label": self.labels[index]}


def logged(monkeypatch):
    told = []
    monkeypatch.setattr(cache.log, "info", lambda text, *args: told.append(text % args))
    return told


@pytest.mark.parametrize("count", [1, 255, 256, 257, 600])
def test_every_image_is_where_it_was(count):
    source = Counted(count)
    decoded = cache.decode_all(source)
    assert decoded.in_memory and not source.in_memory
    np.testing.assert_array_equal(decoded.images, [noise(i) for i in range(count)])
    np.testing.assert_array_equal(decoded.labels, source.labels)
    # The first one also tells the size of all.
    assert sorted(source.read_at) == [0, *range(count)]


def test_progress_is_told_during_long_decoding(monkeypatch):
    source = numbered(5)
    monkeypatch.setattr(cache, "_CHUNK", 2)
    monkeypatch.setattr(cache, "_SECONDS_BETWEEN_LOGS", -1)
    told = logged(monkeypatch)
    np.testing.assert_array_equal(cache.decode_all(source).images, source.images)
    assert told == [f"decoded {n} of 5 images" for n in (2, 4, 5)]


def test_the_first_unreadable_image_is_reported_whichever_thread_is_faster(monkeypatch):
    class Failing(Counted):
        def __getitem__(self, index):
            if index == 0:
                return super().__getitem__(index)
            if index == 1:
                time.sleep(0.05)
            raise UserError(f"image {index}")

    monkeypatch.setattr(cache, "_CHUNK", 1)
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    with pytest.raises(UserError, match="^image 1$"):
        cache.decode_all(Failing(8))


def test_the_limit_counts_all_splits_and_is_told(monkeypatch):
    told = logged(monkeypatch)
    size = 128  # An image takes 3/64 of a MiB, ten of them 0.46875.
    sources = {"train": Counted(6, size), "validation": Counted(2, size), "test": Counted(2, size)}
    fits = cache.cache_if_fits(sources, size, 0.46875)
    assert all(isinstance(source, ArraySource) for source in fits.values())
    assert told == []
    assert cache.cache_if_fits(sources, size, 0.4687) == sources
    assert told == [
        "the decoded images take 0 MiB, more than data.cache_mb=0.4687: decoding them as they "
        "are needed"
    ]
    assert cache.cache_if_fits(sources, size, 0) == sources and len(told) == 1


def test_a_cached_data_set_keeps_labels_and_names():
    source = Counted(12)
    parts = (np.arange(0, 6), np.arange(6, 9), np.arange(9, 12))
    lazy = ImageDataset(*(Subset(source, part) for part in parts), ("even", "odd"))
    eager = cache.cached(lazy, 4, 1)
    assert eager.class_names == lazy.class_names
    for split, part in zip(("train", "validation", "test"), parts, strict=True):
        held = getattr(eager, split)
        assert held.in_memory
        np.testing.assert_array_equal(held.images, [noise(index) for index in part])
        np.testing.assert_array_equal(held.labels, part % 2)
