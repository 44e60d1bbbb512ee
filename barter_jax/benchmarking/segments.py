"""Short stretches of the real training loop on the real data, as the paper measures training."""

from __future__ import annotations

import copy
import dataclasses
import logging
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ml_collections import config_dict

from barter_jax import blueprint as blueprint_lib
from barter_jax.benchmarking.cases import TORCH, UPDATING, Case
from barter_jax.benchmarking.plans import Plan
from barter_jax.core.schedule import PlannedUpdate
from barter_jax.errors import UserError
from barter_jax.training import loop

log = logging.getLogger("barter_jax")

# What training itself takes. Compiling is paid once a run, evaluation as often as one likes.
TRAINING = ("step", "data", "update")


@dataclasses.dataclass(frozen=True)
class Segment:
    """One stretch, as the loop's own clock has it.

    Attributes:
      case: what was trained.
      steps: optimizer steps taken.
      steps_per_epoch: of the configured run.
      updates: topology updates that moved a unit.
      seconds: by the kinds of `training.clock`.
    """

    case: Case
    steps: int
    steps_per_epoch: int
    updates: int
    seconds: Mapping[str, float]

    def per_epoch(self, kind: str) -> float:
        """Seconds an epoch of one kind."""
        return self.seconds[kind] * self.steps_per_epoch / self.steps

    @property
    def seconds_per_epoch(self) -> float:
        """Seconds an epoch of training itself."""
        return sum(self.per_epoch(kind) for kind in TRAINING)


def check_data(config: config_dict.ConfigDict) -> None:
    """Checks, before anything is measured, that the data is at hand.

    Raises:
      UserError: it is not.
    """
    try:
        blueprint_lib.check_data(config, blueprint_lib.load_data(config))
    except UserError as error:
        raise UserError(f"--segment trains on the real data: {error}") from error


def can_run(case: Case) -> bool:
    """Whether the loop has the case's method."""
    return case.method not in (*TORCH, "masked")


def segment_config(
    config: config_dict.ConfigDict,
    steps: int,
    schedule: Sequence[PlannedUpdate],
    total_steps: int,
) -> config_dict.ConfigDict:
    """The config of a case cut short.

    As many topology updates are made as the configured schedule has in so many steps on average,
    but one at least where it has any, each of the size of the configured ones. (The whole schedule
    in one epoch would make updates look dear.)

    Args:
      config: a case's config.
      steps: optimizer steps of the segment.
      schedule: the configured run's planned updates.
      total_steps: its optimizer steps.
    """
    own = copy.deepcopy(config)
    own.train.steps = own.train.eval_every_steps = own.checkpoint.every_steps = steps
    own.log.tensorboard = False
    # A background compile would take the processor from the steps, in a segment much more than
    # in a whole run; in the foreground it is charged to compiling.
    own.executables.ahead = False
    if schedule:
        own.topology.updates = max(1, round(len(schedule) * steps / total_steps))
        largest = schedule[: own.topology.updates]
        own.topology.total_heads = sum(update.heads for update in largest)
        own.topology.total_channels = sum(update.channels for update in largest)
    return own


def run(plan: Plan, steps: int | None) -> Segment:
    """Trains for a segment in a temporary work directory, which is removed afterwards.

    Args:
      plan: the case.
      steps: optimizer steps; None for one epoch.

    Raises:
      UserError: the data cannot be had.
      RunError: training diverged.
      Stopped: on SIGINT or SIGTERM.
    """
    blueprint, case = plan.blueprint, plan.case
    steps = steps or blueprint.steps_per_epoch
    log.info("a segment of %d steps of %s", steps, case.name)
    schedule = blueprint.schedule if case.method in UPDATING else ()
    config = segment_config(plan.config, steps, schedule, blueprint.total_steps)
    with tempfile.TemporaryDirectory(prefix="barter_jax_segment_") as directory:
        summary = loop.train(config, Path(directory) / "run", False)
    return Segment(
        case, steps, blueprint.steps_per_epoch, summary["updates"], dict(summary["seconds"])
    )


def document(segments: Sequence[Segment]) -> list[dict[str, Any]]:
    """The `segments` of the document; the speed-up is that over the dense segment."""
    rows = []
    for segment in segments:
        case = segment.case
        dense = next((s for s in segments if s.case == Case("dense", None, case.batch_size)), None)
        rows.append(
            {
                "method": case.method,
                "density": case.density,
                "batch_size": case.batch_size,
                "steps": segment.steps,
                "steps_per_epoch": segment.steps_per_epoch,
                "updates": segment.updates,
                "seconds": dict(segment.seconds),
                "per_epoch": {kind: segment.per_epoch(kind) for kind in TRAINING},
                "seconds_per_epoch": segment.seconds_per_epoch,
                "speedup": (dense.seconds_per_epoch / segment.seconds_per_epoch if dense else None),
            }
        )
    return rows
