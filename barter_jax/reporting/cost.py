"""Parameters and FLOPs that a config stands for, where this version can tell. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from barter_jax import models
from barter_jax.core import accounting
from barter_jax.core.accounting import Dimensions
from barter_jax.core.topology import Topology, spread_evenly
from barter_jax.errors import UserError
from barter_jax.reporting import paper
from barter_jax.reporting.groups import TRADING
from barter_jax.reporting.read import Run, number

# Methods whose tensors have as many units as the budget rule gives their density.
COMPACT = ("static", *TRADING)


@dataclasses.dataclass(frozen=True)
class Cost:
    """Size and cost of one model.

    Attributes:
      parameters: of the whole model.
      gflops: of one training step per image, forward and backward, in the paper's counting; of
        fine-tuning without the gradient with respect to the image.
    """

    parameters: int
    gflops: float


@dataclasses.dataclass(frozen=True)
class Costs:
    """Of a run: what it trains and the dense model beside it; None what cannot be told."""

    own: Cost | None
    dense: Cost | None


def costs(run: Run) -> Costs:
    """What a run's model costs.

    As the summary has it where there is one, else as its config says: the budgets hold at every
    step, so that neither depends on how far the run came.
    """
    dims = _dimensions(run)
    image = not paper.fine_tunes(run.config)
    dense = _cost(dims, dims.dense, image) if dims else None
    planned = _planned(run, dims, image) if dims else None
    summary = run.summary or {}
    parameters = number(summary.get("exported_parameters", summary.get("parameters")))
    gflops = number(summary.get("training_gflops_per_image"))
    if planned and not image:
        gflops = planned.gflops  # summaries count the image's gradient
    if parameters is None or gflops is None:
        return Costs(planned, dense)
    return Costs(Cost(int(parameters), gflops), dense)


def _dimensions(run: Run) -> Dimensions | None:
    """The dense model's, from the config and the number of classes."""
    section = (run.nested or {}).get("model")
    classes = number(run.config.get("data.num_classes"))
    if classes is None and run.card is not None:
        classes = len(run.card.labels)
    size = number(run.config.get("data.image_size"))
    if not isinstance(section, dict) or classes is None or size is None:
        return None
    fields: Mapping[str, Any] = {k: v for k, v in section.items() if k != "name"}
    try:
        return models.MODELS[section["name"]](**fields).dimensions(int(size), int(classes))
    # A model, or a field of it, that this version does not know.
    except (KeyError, TypeError, ValueError, ArithmeticError):
        return None


def _planned(run: Run, dims: Dimensions, image: bool) -> Cost | None:
    if run.method == "dense":
        return _cost(dims, dims.dense, image)
    if run.method not in COMPACT or run.density is None:
        return None
    try:
        budget = accounting.compact_budget(dims, run.density)
        return _cost(dims, spread_evenly(budget, dims.layers), image)
    except (UserError, ValueError):
        return None


def _cost(dims: Dimensions, topology: Topology, image: bool) -> Cost:
    flops = accounting.training_flops(dims, topology, gradient_of_image=image)
    return Cost(accounting.parameters(dims, topology), flops / 1e9)
