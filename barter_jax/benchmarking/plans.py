"""A case worked out before anything is compiled: its config, shapes, optimizer and placement."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence

import optax
from ml_collections import config_dict

from barter_jax import blueprint as blueprint_lib
from barter_jax import config as config_lib
from barter_jax.benchmarking.cases import Case
from barter_jax.blueprint import Blueprint
from barter_jax.core.barter import Barter
from barter_jax.core.topology import Topology
from barter_jax.errors import UserError
from barter_jax.training import optimizer
from barter_jax.training import state as state_lib
from barter_jax.training.distributed import Placement


@dataclasses.dataclass(frozen=True)
class Plan:
    """All that a case's runner needs.

    Attributes:
      case: what it is.
      config: the user's config with the case's method, density and batch size, the last for
        evaluation too.
      blueprint, barter, tx, placement: as the training loop would make them of `config`.
    """

    case: Case
    config: config_dict.ConfigDict
    blueprint: Blueprint
    barter: Barter
    tx: optax.GradientTransformation
    placement: Placement

    @property
    def physical(self) -> Topology:
        """The counts that the tensors have at the start."""
        return self.barter.physical(self.blueprint.initial)

    @property
    def masks(self) -> str:
        """Whose masks the case trains under; empty for none."""
        return self.case.label if self.blueprint.masked or self.case.method == "masked" else ""

    @property
    def program(self) -> tuple[str, bool, Topology, int]:
        """Cases with the same key have the same compiled steps.

        Masks, with statistics of the units or not, shapes, batch. Fixed masks are no part of the
        program, and those of all densities share it.
        """
        masks = "masked" if self.case.method == "masked" else self.masks
        return masks, bool(self.barter.schedule), self.physical, self.case.batch_size


def case_config(config: config_dict.ConfigDict, case: Case) -> config_dict.ConfigDict:
    """The user's config as the case has it."""
    own = copy.deepcopy(config)
    own.method = case.config_method
    if case.density is not None:
        own.density = case.density
    own.train.batch_size = own.train.eval_batch_size = case.batch_size
    return own


def make_all(
    config: config_dict.ConfigDict, cases: Sequence[Case], num_classes: int, num_train: int
) -> list[Plan]:
    """Works out cases; those with a run of the same length share their optimizer.

    Args:
      config: the user's validated config.
      cases: what to make of it.
      num_classes: classes of the data.
      num_train: its training images, which the length of a run follows from.

    Raises:
      UserError: a case cannot be run: a density too low for the layers, a batch size that is
        above the number of training images or does not split over the devices, an optimizer whose
        state cannot be resized.
    """
    optimizers: dict[int, optax.GradientTransformation] = {}
    plans = []
    for case in cases:
        own = case_config(config, case)
        try:
            config_lib.validate(own)
            blueprint = blueprint_lib.make(own, num_classes, num_train)
            placement = Placement({"train.batch_size": case.batch_size})
        except UserError as error:
            raise UserError(f"{case.name}: {error}") from error
        barter = blueprint_lib.make_barter(own, blueprint)
        if blueprint.total_steps not in optimizers:
            optimizers[blueprint.total_steps] = _checked_optimizer(own, blueprint, barter)
        tx = optimizers[blueprint.total_steps]
        plans.append(Plan(case, own, blueprint, barter, tx, placement))
    return plans


def _checked_optimizer(
    config: config_dict.ConfigDict, blueprint: Blueprint, barter: Barter
) -> optax.GradientTransformation:
    """The optimizer, refused where the training loop refuses it.

    The check fills a cache of what is known of the optimizer, from which topology updates read: in
    a run too the first update finds it filled.
    """
    return optimizer.make_checked(
        config.optimizer,
        blueprint.total_steps,
        state_lib.abstract_params(blueprint, blueprint.initial),
        barter,
    )
