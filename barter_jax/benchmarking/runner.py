"""Runs the compiled steps of one case on random data."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import jax
import numpy as np

from barter_jax.benchmarking import masked
from barter_jax.benchmarking.plans import Plan
from barter_jax.core.barter import Progress
from barter_jax.data import augment
from barter_jax.training import state as state_lib
from barter_jax.training.executables import Entry
from barter_jax.training.state import TrainState


class Batch(NamedTuple):
    """One batch, for training and for evaluation.

    Attributes:
      images: float32 `[batch, size, size, 3]`, standard normal.
      targets: float32 `[batch, classes]`, smoothed as the config says.
      labels: int32 `[batch]`.
      mask: float32 `[batch]`, all ones.
    """

    images: Any
    targets: Any
    labels: Any
    mask: Any


def random_batch(plan: Plan) -> Batch:
    """A batch for all cases of a batch size, as numpy arrays."""
    rng = np.random.default_rng(plan.config.seed)
    size, classes = plan.blueprint.image_size, plan.blueprint.num_classes
    n, smoothing = plan.case.batch_size, plan.config.augment.label_smoothing
    labels = rng.integers(classes, size=n, dtype=np.int32)
    return Batch(
        images=rng.standard_normal((n, size, size, 3), np.float32),
        targets=np.asarray(augment.smooth_labels(labels, classes, smoothing)),
        labels=labels,
        mask=np.ones(n, np.float32),
    )


class Start(NamedTuple):
    """A state before the first step, as numpy arrays, and the progress that goes with it."""

    state: TrainState
    progress: Progress


def start(plan: Plan) -> Start:
    """The start of a run; the same for all methods and batch sizes at a topology."""
    state, progress = state_lib.initial(plan.blueprint, plan.barter, plan.tx, plan.config.seed)
    return Start(jax.device_get(state), progress)


class JaxRunner:
    """One case's state, on the device or away from it, and its steps.

    Args:
      plan: the case.
      entry: its compiled steps.
      start: where it begins.
    """

    def __init__(self, plan: Plan, entry: Entry, start: Start):
        self.plan, self.entry, self.progress = plan, entry, start.progress
        state, masks, self.details = start.state, (), {}
        if plan.case.method == "masked":
            table, logical = plan.barter.units, plan.blueprint.initial
            dense = state_lib.abstract(plan.blueprint, plan.tx, logical).params
            found = masked.random_masks(dense, table, plan.case.density, plan.config.seed)
            masks = (masked.pad_masks(found, state.params, table),)
            state = state._replace(params=jax.device_get(masked.apply_masks(state.params, *masks)))
            self.details = {"kept_weights": sum(int(mask.sum()) for mask in found.values())}
        self._away: Any = (state, masks)
        self._masks: tuple[Any, ...] = ()
        self.state: TrainState | None = None
        self._batch: Batch | None = None
        self._key = plan.placement.replicate(jax.random.key(plan.config.seed + 1))

    def place(self, batch: Batch) -> None:
        """Puts the state and a batch on the device."""
        self.state, self._masks = self.plan.placement.replicate(self._away)
        self._away, self._batch = None, self.plan.placement.shard(batch)
        jax.block_until_ready((self.state, self._masks, self._batch))

    def take_away(self) -> None:
        """Keeps the state in the host's memory and frees the device of all that is the case's."""
        self._away = jax.device_get((self.state, self._masks))
        self.state, self._masks, self._batch = None, (), None

    def train(self, steps: int) -> None:
        """Takes optimizer steps, and waits for the device once, at the end."""
        images, targets, _, _ = self._batch
        for _ in range(steps):
            self.state, metrics = self.entry.train(
                self.state, images, targets, self._key, *self._masks
            )
        self._loss = jax.block_until_ready((self.state, metrics))[1]["loss"]

    def evaluate(self, steps: int) -> None:
        """Runs the evaluation step, and waits for the device once, at the end."""
        images, _, labels, mask = self._batch
        counts = None
        for _ in range(steps):
            counts = self.plan.placement.queued(
                self.entry.evaluate(self.state.params, images, labels, mask)
            )
        jax.block_until_ready(counts)

    @property
    def loss(self) -> float:
        """Training loss of the last step taken."""
        return float(self._loss)


def timed(run, steps: int) -> float:
    """Seconds that `run(steps)` takes."""
    start = time.perf_counter()
    run(steps)
    return time.perf_counter() - start
