"""Batches on the device: read by grain, placed, augmented by functions compiled once."""

from __future__ import annotations

import collections
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from ml_collections import config_dict

from barter_jax.data import augment, pipeline
from barter_jax.data.sources import ImageDataset
from barter_jax.training.distributed import Placement

# Batches that are placed before they are asked for: one is copied while another is computed on.
_AHEAD = 1


class Inputs:
    """The training and validation batches of a run.

    Nothing here depends on the topology, so nothing is compiled again when it changes.

    Args:
      config: the validated config.
      dataset: the data it names.
      placement: where batches go.
      key: PRNG key of the augmentation; batch s is augmented with `fold_in(key, s)`.
    """

    def __init__(
        self,
        config: config_dict.ConfigDict,
        dataset: ImageDataset,
        placement: Placement,
        key: jax.Array,
    ):
        self._validation = dataset.validation
        self._eval_batch_size = config.train.eval_batch_size
        self._threads = config.data.threads
        self._placement = placement
        self._key = placement.replicate(key)
        self._batches = pipeline.train_batches(
            dataset.train,
            batch_size=config.train.batch_size,
            seed=config.seed,
            process_index=jax.process_index(),
            process_count=jax.process_count(),
            num_threads=config.data.threads,
            workers=config.data.workers,
            prefetch=2 * config.data.threads,
        )
        settings = augment.from_config(config, len(dataset.class_names))
        self._ahead: collections.deque[tuple[dict[str, Any], Any]] = collections.deque()
        self._prepare_train = jax.jit(
            lambda key, step, images, labels: augment.prepare_train(
                jax.random.fold_in(key, step), images, labels, settings
            ),
            out_shardings=placement.split,
        )
        self._prepare_eval = jax.jit(
            lambda images: augment.prepare_eval(images, settings),
            out_shardings=placement.split,
        )

    def next(self) -> dict[str, jax.Array]:
        """The next raw batch: `image` uint8 `[b, h, w, 3]` and `label` int32 `[b]`.

        The one after it is on its way to the devices by then.
        """
        while len(self._ahead) <= _AHEAD:
            position = self._batches.get_state()
            self._ahead.append((position, self._placement.shard(next(self._batches))))
        return self._ahead.popleft()[1]

    def prepare(self, step: int, batch: dict[str, jax.Array]) -> tuple[jax.Array, jax.Array]:
        """Augments a raw batch: normalised images and soft targets, both float32."""
        return self._prepare_train(self._key, np.int32(step), batch["image"], batch["label"])

    def validation(self) -> Iterator[tuple[jax.Array, jax.Array, jax.Array]]:
        """The validation split, once: normalised images, labels and mask, batch by batch."""
        batches = pipeline.eval_batches(
            self._validation,
            self._eval_batch_size,
            process_index=jax.process_index(),
            process_count=jax.process_count(),
            num_threads=self._threads,
        )
        for batch in batches:
            placed = self._placement.shard(batch)
            yield self._prepare_eval(placed["image"]), placed["label"], placed["mask"]

    def get_state(self) -> dict[str, Any]:
        """The position in the training data, as JSON: that of the batch `next` would give."""
        return self._ahead[0][0] if self._ahead else self._batches.get_state()

    def set_state(self, state: dict[str, Any]) -> None:
        self._ahead.clear()
        self._batches.set_state(state)

    def close(self) -> None:
        """Stops the reading threads."""
        self._batches.close()
