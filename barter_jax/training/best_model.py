"""The compact model of a run's best evaluation, as it is written while the run goes on."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from ml_collections import config_dict

from barter_jax.blueprint import Blueprint
from barter_jax.core.surgery import resize
from barter_jax.core.topology import Topology
from barter_jax.deploy import model as compact
from barter_jax.errors import RunError, UserError
from barter_jax.masked.export import compact as compact_of_masked
from barter_jax.masked.export import nonzero
from barter_jax.masked.masked import S2VITE
from barter_jax.training.checkpoint import Evaluation
from barter_jax.training.state import TrainState

DIRECTORY = "model"


def write(
    workdir: Path,
    config: config_dict.ConfigDict,
    plan: Blueprint,
    labels: Sequence[str],
    best: Evaluation,
    topology: Topology,
    state: TrainState,
    dataset: dict[str, Any],
) -> None:
    """Writes `model/` of a work directory.

    Args:
      workdir: the work directory.
      config: the run's config.
      plan: its blueprint.
      labels: class names.
      best: step and validation metrics of the evaluation.
      topology: logical counts of the state.
      state: the state that was evaluated, padded or not.
      dataset: `ImageDataset.identity` of its data.
    """
    params, topology, count = deployable(plan, state, topology)
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
        parameters=count,
        dataset=dataset,
    )
    compact.save(workdir / DIRECTORY, card, params)


def deployable(
    plan: Blueprint, state: TrainState, topology: Topology
) -> tuple[Any, Topology, int | None]:
    """What is kept of a state: parameters, their topology, and how many are not masked, if any are.

    Padding is left out. Of S2ViTE's model the active units alone are; other masked models keep
    their full size, with zeros.
    """
    units = plan.model.units()
    params = jax.tree.map(np.asarray, state.averaged)
    if state.masks is None:
        return resize(params, units, topology, topology, {}), topology, None
    masks = jax.tree.map(np.asarray, state.masks.masks)
    if plan.masked.method == S2VITE:
        return *compact_of_masked(params, masks, units), None
    return params, topology, nonzero(params, masks)


def is_there(workdir: Path, best: Evaluation) -> bool:
    """Whether `model/` is what the best evaluation wrote: it may have been removed since."""
    try:
        return compact.read_card(workdir).step == best.step
    except (UserError, RunError):
        return False
