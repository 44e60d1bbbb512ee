"""Everything that follows from a config and the size of its data, before the first step.

`describe` prints it and the training loop runs it, so what is printed is what is run.
"""

from __future__ import annotations

import dataclasses

from ml_collections import config_dict

from barter_jax import models
from barter_jax.config import MASKED_METHODS
from barter_jax.core import accounting, shapes
from barter_jax.core.accounting import Dimensions
from barter_jax.core.barter import Barter
from barter_jax.core.schedule import PlannedUpdate, default_transfers, plan_updates
from barter_jax.core.topology import UNITS, Budget, Topology, pad, spread_evenly
from barter_jax.data import pipeline, sources
from barter_jax.data.crops import CentreCropped
from barter_jax.errors import UserError
from barter_jax.masked.masked import S2VITE, SRIGL, SRIGL_OF_VIT, Masked

# Methods that never change the topology.
FIXED = ("static", "dense", *MASKED_METHODS)
# Methods that train tensors of full size.
FULL_SIZE = ("dense", *MASKED_METHODS)


@dataclasses.dataclass(frozen=True)
class Blueprint:
    """A run before its first step.

    Attributes:
      model: the dense model's sizes.
      image_size: side of the images in pixels.
      num_classes: classes.
      num_train: training images, without those held out.
      dims: the numbers that costs depend on.
      initial: the starting topology.
      caps: the most units each layer may have.
      transfers: units to move over the whole run.
      schedule: the planned updates.
      steps_per_epoch: optimizer steps that count as one epoch.
      total_steps: optimizer steps of the run.
      eval_every_steps: steps between evaluations.
      checkpoint_every_steps: steps between checkpoints.
      bucket: physical counts are multiples of this.
      waste: the share of a layer's physical units that it may keep without use.
      shapes_at_most: how many different padded topologies the run can come to.
      ema_decay: of the running average of parameters; 0 without one.
      masked: the masked method, if it is one.
    """

    model: models.TransformerConfig
    image_size: int
    num_classes: int
    num_train: int
    dims: Dimensions
    initial: Topology
    caps: Topology
    transfers: Budget
    schedule: tuple[PlannedUpdate, ...]
    steps_per_epoch: int
    total_steps: int
    eval_every_steps: int
    checkpoint_every_steps: int
    bucket: Budget
    waste: float
    shapes_at_most: int
    ema_decay: float
    masked: Masked | None

    @property
    def physical(self) -> Topology:
        """The padded counts of the starting topology."""
        return pad(self.initial, self.bucket)

    def stuck_units(self) -> list[str]:
        """Unit types that are to move, but never can: nobody has room, or there is one layer."""
        return [
            unit
            for unit in UNITS
            if self.transfers.of(unit)
            and (self.dims.layers < 2 or self.initial.of(unit) == self.caps.of(unit))
        ]


def data_sizes(config: config_dict.ConfigDict) -> tuple[int, int]:
    """Classes and training images: as the config states them, else as the data has them.

    Raises:
      UserError: they are not stated and the data cannot be read.
    """
    data = config.data
    if data.num_classes is not None and data.num_train is not None:
        return data.num_classes, data.num_train
    dataset = load_data(config)
    check_data(config, dataset)
    return len(dataset.class_names), len(dataset.train)


def load_data(config: config_dict.ConfigDict) -> sources.ImageDataset:
    """The data set a config names, none of its images decoded ahead (`data.cache` does that).

    Training images have `data.load_size` pixels, as the augmentation takes them; those to evaluate
    on are cut to `data.image_size`.
    """
    dataset = sources.load(
        config.data.name,
        dir=config.data.dir or None,
        image_size=load_size(config),
        validation_fraction=config.data.validation_fraction,
        seed=config.seed,
        resize=config.data.resize,
        cache_mb=0,
    )
    size = config.data.image_size
    if load_size(config) == size:
        return dataset
    return dataclasses.replace(
        dataset,
        validation=CentreCropped(dataset.validation, size),
        test=CentreCropped(dataset.test, size),
    )


def load_size(config: config_dict.ConfigDict) -> int:
    """The side in pixels at which images are read.

    Raises:
      UserError: it is smaller than what the model takes.
    """
    size, load = config.data.image_size, config.data.load_size or config.data.image_size
    if load < size:
        raise UserError(
            f"config.data.load_size={load} is smaller than config.data.image_size={size}: raise "
            "it, or leave it out"
        )
    return load


def check_data(config: config_dict.ConfigDict, dataset: sources.ImageDataset) -> None:
    """Checks that the data has the sizes that the config states, where it does.

    Raises:
      UserError: `data.num_classes` or `data.num_train` state other sizes.
    """
    found = {"num_classes": len(dataset.class_names), "num_train": len(dataset.train)}
    for field, value in found.items():
        if config.data[field] not in (None, value):
            raise UserError(
                f"config.data.{field} is {config.data[field]}, but the data has {value}: if it is "
                f"the data you want, set --config.data.{field}={value}"
            )


def make(config: config_dict.ConfigDict, num_classes: int, num_train: int) -> Blueprint:
    """Works out a run from a validated config.

    Args:
      config: see `barter_jax.config`.
      num_classes: classes of the data.
      num_train: its training images.

    Raises:
      UserError: fields do not go together; the line names them.
    """
    model = model_config(config)
    image_size = config.data.image_size
    model.check(image_size)
    dims = model.dimensions(image_size, num_classes)
    initial = _initial_topology(config, dims, config.method)
    caps = _caps(config, dims, initial)
    transfers = _transfers(config, initial.budget)
    steps_per_epoch = pipeline.steps_per_epoch(
        num_train, config.train.batch_size, config.train.passes_per_epoch
    )
    if config.train.batch_size > num_train:
        raise UserError(
            f"config.train.batch_size={config.train.batch_size} is larger than the {num_train} "
            "training images: lower it"
        )
    if config.train.batch_size % config.train.micro_batches:
        raise UserError(
            f"config.train.batch_size={config.train.batch_size} does not split evenly into "
            f"config.train.micro_batches={config.train.micro_batches}: use a divisor of it"
        )
    if steps_per_epoch < 1:
        raise UserError(
            f"config.train.passes_per_epoch={config.train.passes_per_epoch:g} makes an epoch of "
            f"less than one batch of {config.train.batch_size}: raise it"
        )
    total_steps = config.train.steps or config.train.epochs * steps_per_epoch
    if config.train.match_flops_of:
        other = _initial_topology(config, dims, config.train.match_flops_of)
        total_steps = matching_steps(total_steps, dims, initial, other)
    every = config.train.eval_every_steps or steps_per_epoch
    schedule = plan_updates(
        total_steps,
        config.topology.updates,
        config.topology.start_fraction,
        config.topology.end_fraction,
        transfers,
    )
    bucket = Budget(config.bucket.heads, config.bucket.channels)
    if config.method in FULL_SIZE:
        bucket = Budget(1, 1)  # one shape, of which nothing can be shared
    return Blueprint(
        model=model,
        image_size=image_size,
        num_classes=num_classes,
        num_train=num_train,
        dims=dims,
        initial=initial,
        caps=caps,
        transfers=transfers,
        schedule=schedule,
        steps_per_epoch=steps_per_epoch,
        total_steps=total_steps,
        eval_every_steps=every,
        checkpoint_every_steps=config.checkpoint.every_steps or every,
        bucket=bucket,
        waste=config.bucket.waste,
        shapes_at_most=shapes.shapes_at_most(
            initial,
            schedule,
            caps=caps,
            min_units=config.topology.min_units,
            bucket=bucket,
            waste=config.bucket.waste,
        ),
        ema_decay=config.train.ema_decay,
        masked=_masked(config, model, dims, total_steps, steps_per_epoch),
    )


def make_barter(config: config_dict.ConfigDict, blueprint: Blueprint) -> Barter:
    """The method as the config wants it."""
    return Barter(
        units=blueprint.model.units(),
        schedule=blueprint.schedule,
        caps=blueprint.caps,
        rule="static" if config.method in FIXED else config.method,
        decay=config.scores.decay,
        pruning=config.scores.pruning,
        growth=config.scores.growth,
        priority=config.scores.priority,
        min_units=config.topology.min_units,
        min_age=config.topology.min_age,
        share=config.topology.share,
        noise=config.topology.noise,
        moments=config.topology.moments,
        warmup_steps=config.topology.warmup_steps,
        bucket=blueprint.bucket,
        waste=blueprint.waste,
        seed=config.seed,
    )


def model_config(config: config_dict.ConfigDict) -> models.TransformerConfig:
    """The model section as the dataclass of its model."""
    fields = config.model.to_dict()
    return models.MODELS[fields.pop("name")](**fields)


def _masked(config, model, dims, total_steps, steps_per_epoch) -> Masked | None:
    """The masked method of a config, with what the config sets of it."""
    if config.method not in MASKED_METHODS:
        return None
    own = config.masked
    fields = {
        name: own[name]
        for name in ("every_steps", "drop_fraction", "drop_end", "stop_fraction", "gamma")
        if own[name] is not None
    }
    if config.method == SRIGL and config.model.name == "vit":
        fields = {**SRIGL_OF_VIT, **fields}
    if config.method == S2VITE:
        # As many units as a compact model has, so that what is exported is of one size.
        fields["counts"] = _initial_topology(config, dims, "static")
    return Masked.for_method(
        config.method,
        units=model.units(),
        density=config.density,
        total_steps=total_steps,
        steps_per_epoch=steps_per_epoch,
        allocation=own.allocation,
        ema_decay=own.ema_decay,
        variant=own.variant,
        **fields,
    )


def matching_steps(steps: int, dims: Dimensions, own: Topology, other: Topology) -> int:
    """Steps at one topology that take the training FLOPs of `steps` steps at another.

    In the paper's counting of fine-tuning, without the gradient with respect to the image. Updates
    keep the budgets, and so very nearly the FLOPs, of the topology that a run starts with.
    """
    own_flops, other_flops = (
        accounting.training_flops(dims, topology, gradient_of_image=False)
        for topology in (own, other)
    )
    return max(round(steps * other_flops / own_flops), 1)


def _initial_topology(config: config_dict.ConfigDict, dims: Dimensions, method: str) -> Topology:
    if method in FULL_SIZE:
        return dims.dense
    budget = accounting.compact_budget(dims, config.density)
    need = dims.layers * config.topology.min_units
    for unit in UNITS:
        if getattr(dims, unit) < config.topology.min_units:
            raise UserError(
                f"config.topology.min_units={config.topology.min_units} is more than the "
                f"{getattr(dims, unit)} {unit} of a dense layer: lower it"
            )
    for unit in UNITS:
        if budget.of(unit) < need:
            lowest = accounting.lowest_density(dims, config.topology.min_units)
            raise UserError(
                f"config.density={config.density:g} leaves {budget.of(unit)} {unit} for "
                f"{dims.layers} layers that need {config.topology.min_units} each: "
                f"use at least {lowest:g}"
            )
    return spread_evenly(budget, dims.layers, config.topology.extra)


def _caps(config: config_dict.ConfigDict, dims: Dimensions, initial: Topology) -> Topology:
    caps = {}
    for unit in UNITS:
        cap = config.topology[f"max_{unit}"] or getattr(dims, unit)
        if cap < max(initial.of(unit)):
            raise UserError(
                f"config.topology.max_{unit}={cap} is below the {max(initial.of(unit))} {unit} "
                "that a layer starts with: raise it or lower config.density"
            )
        caps[unit] = (cap,) * dims.layers
    return Topology(**caps)


def _transfers(config: config_dict.ConfigDict, budget: Budget) -> Budget:
    if config.method in FIXED or not config.topology.updates:
        return Budget(0, 0)
    default = default_transfers(budget, config.topology.transfer_multiplier)
    given = {unit: config.topology[f"total_{unit}"] for unit in UNITS}
    for unit, total in given.items():
        most = config.topology.updates * budget.of(unit)
        if total is not None and total > most:
            raise UserError(
                f"config.topology.total_{unit}={total} is more than {config.topology.updates} "
                f"updates can move of {budget.of(unit)} {unit}: lower it to {most} at most"
            )
    return Budget(
        **{unit: default.of(unit) if given[unit] is None else given[unit] for unit in UNITS}
    )
