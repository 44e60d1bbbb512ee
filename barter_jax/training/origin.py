"""Where a run stands before its first step in this process: at its beginning, or at a checkpoint.

The first process reads the checkpoint; the others get from it what it holds.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np

from barter_jax.core.barter import Progress
from barter_jax.core.topology import Topology
from barter_jax.errors import UserError
from barter_jax.training import start
from barter_jax.training import state as state_lib
from barter_jax.training.checkpoint import Bookkeeping, Checkpoints, Evaluation
from barter_jax.training.clock import Clock
from barter_jax.training.inputs import Inputs
from barter_jax.training.job import Job
from barter_jax.training.state import TrainState
from barter_jax.training.window import Window

PyTree = Any


@dataclasses.dataclass(frozen=True)
class Origin:
    """What a run goes on from.

    Attributes:
      step: optimizer steps taken.
      updates: topology updates so far that moved a unit.
      progress: topology and what has moved.
      best, latest: evaluations so far.
      window: training metrics since the last line of the log.
      clock: time spent so far.
      state: on the devices, padded.
    """

    step: int
    updates: int
    progress: Progress
    best: Evaluation
    latest: Evaluation
    window: Window
    clock: Clock
    state: TrainState


def find(job: Job, checkpoints: Checkpoints | None, inputs: Inputs) -> Origin:
    """The newest checkpoint's state, or that before the first step; `inputs` is put there too.

    Args:
      job: the run.
      checkpoints: of its work directory; None in all processes but the first.
      inputs: its batches.

    Raises:
      UserError: the data is not what it was when the run began, or `init` cannot be followed.
      RunError: the checkpoint is damaged, or of another model.
    """
    stored = job.hosts.from_first(lambda: _newest(checkpoints))
    if stored is None:
        return _beginning(job, inputs)
    books = Bookkeeping.from_json(stored)
    _check_data(job, books.dataset)
    progress = job.barter.resume(books.progress)
    state = restored(job, checkpoints, books.step, progress.topology)
    state = state_lib.repad(state, job.barter, job.tx, progress.topology, progress.physical)
    inputs.set_state(books.data)
    return Origin(
        step=books.step,
        updates=books.updates,
        progress=progress,
        best=books.best,
        latest=books.latest,
        window=Window(books.window),
        clock=Clock(books.seconds),
        state=job.placement.replicate(state),
    )


def restored(
    job: Job, checkpoints: Checkpoints | None, step: int, topology: Topology
) -> TrainState:
    """The unpadded state of a checkpoint, in every process."""
    template = state_lib.abstract(job.plan, job.tx, topology)
    state = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), template)

    def read() -> None:
        nonlocal state
        state = checkpoints.restore(step, template)

    job.hosts.from_first(read)
    return job.hosts.tree_from_first(state)


def _newest(checkpoints: Checkpoints) -> dict[str, Any] | None:
    """The bookkeeping of the newest checkpoint as JSON, if there is one."""
    latest = checkpoints.latest_step()
    return None if latest is None else checkpoints.read_bookkeeping(latest).to_json()


def _beginning(job: Job, inputs: Inputs) -> Origin:
    clock = Clock({})
    params = None
    if job.config.init["from"]:
        fitted = job.fitted or start.read(
            job.config, job.plan, job.dataset.class_names, job.identity
        )
        params = start.parameters(job.config, job.plan, inputs, fitted)
        # Rounding may differ from host to host, and with it a choice of units.
        params = job.hosts.tree_from_first(params)
    state, progress = state_lib.initial(
        job.plan, job.barter, job.tx, job.config.seed, params, start.mask_selection(job.config)
    )
    return Origin(
        step=0,
        updates=0,
        progress=progress,
        best=Evaluation(),
        latest=Evaluation(),
        window=Window({}),
        clock=clock,
        state=job.placement.replicate(state),
    )


def _check_data(job: Job, theirs: dict[str, Any] | None) -> None:
    """Refuses other data than the checkpoint's: what was held out would be trained on."""
    if theirs in (None, job.identity):
        return
    said = ", ".join(
        f"{theirs.get(name)} then and {value} now ({name})"
        for name, value in job.identity.items()
        if name != "hash" and theirs.get(name) != value
    )
    raise UserError(
        f"config.data.dir={job.config.data.dir} is not as it was when the run in {job.directory} "
        f"began: {said or 'as many images, but others'}. Put it back, or give another --workdir, "
        "or --overwrite to start afresh there"
    )
