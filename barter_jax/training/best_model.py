"""The compact model of a run's best evaluation, as it is written while the run goes on."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ml_collections import config_dict

from barter_jax.blueprint import Blueprint
from barter_jax.core.topology import Topology
from barter_jax.deploy import model as compact
from barter_jax.errors import RunError, UserError
from barter_jax.training.checkpoint import Evaluation

DIRECTORY = "model"


def write(
    workdir: Path,
    config: config_dict.ConfigDict,
    plan: Blueprint,
    labels: Sequence[str],
    best: Evaluation,
    topology: Topology,
    params: Any,
) -> None:
    """Writes `model/` of a work directory.

    Args:
      workdir: the work directory.
      config: the run's config.
      plan: its blueprint.
      labels: class names.
      best: step and validation metrics of the evaluation.
      topology: counts of `params`.
      params: unpadded parameters.
    """
    card = compact.Card(
        model=config.model.name,
        model_config=dataclasses.asdict(plan.model),
        topology=topology,
        labels=tuple(labels),
        image_size=plan.image_size,
        mean=tuple(config.data.mean),
        std=tuple(config.data.std),
        step=best.step,
        metrics=best.metrics,
        load_size=config.data.load_size,
    )
    compact.save(workdir / DIRECTORY, card, params)


def is_there(workdir: Path, best: Evaluation) -> bool:
    """Whether `model/` is what the best evaluation wrote: it may have been removed since."""
    try:
        return compact.read_card(workdir).step == best.step
    except (UserError, RunError):
        return False
