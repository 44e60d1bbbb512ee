"""What a run is made of, worked out before its first step."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import optax
from ml_collections import config_dict

from barter_jax.blueprint import Blueprint
from barter_jax.core.barter import Barter
from barter_jax.data.sources import ImageDataset
from barter_jax.pretrained import Fitted
from barter_jax.training.distributed import Placement
from barter_jax.training.hosts import Hosts


@dataclasses.dataclass(frozen=True)
class Job:
    """A run before it begins; nothing of it changes.

    Attributes:
      config: the validated config.
      directory: the work directory.
      plan: all that follows from config and data sizes.
      barter: the method.
      tx: the optimizer.
      placement: where arrays live.
      dataset: the data.
      identity: `ImageDataset.identity` of it.
      hosts: the processes that train.
      fitted: the weights that it starts from, where they have been read.
    """

    config: config_dict.ConfigDict
    directory: Path
    plan: Blueprint
    barter: Barter
    tx: optax.GradientTransformation
    placement: Placement
    dataset: ImageDataset
    identity: dict[str, Any]
    hosts: Hosts
    fitted: Fitted | None = None
