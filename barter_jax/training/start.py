"""What a run starts from: a model that was trained before, cut to the size of the run's."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.experimental import multihost_utils
from ml_collections import config_dict

from barter_jax import pretrained
from barter_jax.blueprint import Blueprint
from barter_jax.core import selection
from barter_jax.core.topology import UNITS, Topology
from barter_jax.errors import UserError
from barter_jax.pretrained import Fitted
from barter_jax.training.inputs import Inputs

log = logging.getLogger("barter_jax")

PyTree = Any
_DIVIDED_OTHERWISE = (
    "these weights seem to come from the same data, divided otherwise: some of the images held out "
    "here were trained on there, and what is measured on them is flattered; the same config.seed "
    "and config.data.validation_fraction hold out the same images"
)
# Folded into the run's key for a fresh classifier.
_CLASSIFIER = 4


def read(
    config: config_dict.ConfigDict,
    plan: Blueprint,
    labels: Sequence[str],
    identity: Mapping[str, Any],
) -> Fitted | None:
    """The weights that a run starts from, fitted to its model; None where it starts from scratch.

    Args:
      config: the validated config; `init` says where from.
      plan: the run.
      labels: its class names.
      identity: `ImageDataset.identity` of its data.

    Raises:
      UserError: the file cannot be used for this model, or is smaller than it.
    """
    if not config.init["from"]:
        return None
    dense = pretrained.read(config.init["from"], plan.model.head_width)
    key = jax.random.fold_in(jax.random.key(config.seed), _CLASSIFIER)
    fitted = pretrained.fit(
        dense, plan.model, plan.image_size, plan.num_classes, key, labels=labels
    )
    _check_size(config, fitted.topology, plan.initial)
    if divided_otherwise(dense.dataset, identity):
        fitted = dataclasses.replace(fitted, notes=(*fitted.notes, _DIVIDED_OTHERWISE))
    return fitted


def divided_otherwise(theirs: Mapping[str, Any] | None, ours: Mapping[str, Any]) -> bool:
    """Whether two data sets look like the same images with others of them held out.

    Args:
      theirs: `ImageDataset.identity` of one, if it is known.
      ours: that of the other.
    """
    if theirs is None or theirs["hash"] == ours["hash"]:
        return False

    def sizes(identity):
        images = sum(identity[split] for split in ("train", "validation", "test"))
        return identity["classes"], images

    return sizes(theirs) == sizes(ours)


def parameters(
    config: config_dict.ConfigDict, plan: Blueprint, inputs: Inputs, fitted: Fitted
) -> PyTree:
    """Unpadded parameters at the run's first topology.

    Of a larger model the most important units of each layer are taken over as they are
    (`core.selection`); for `taylor` they are those of the first training batches, augmented, whose
    position in the data is left as it was.

    Args:
      config: the validated config; `init` says what to do.
      plan: the run.
      inputs: its batches.
      fitted: from `read`.
    """
    where = config.init["from"]
    for note in fitted.notes:
        log.info("%s", note)
    if fitted.topology == plan.initial:
        log.info("starting from %s", where)
        return fitted.params
    table = plan.model.units()
    importance = selection.importances(
        jax.jit(jax.value_and_grad(_loss(plan, fitted.topology))),
        table,
        fitted.params,
        _batches(config, inputs) if config.init.selection == "taylor" else (),
        config.init.selection,
        config.seed,
    )
    kept = selection.choose(importance, fitted.topology, plan.initial)
    counts = ", ".join(
        f"{sum(plan.initial.of(unit))} of {sum(fitted.topology.of(unit))} {unit}" for unit in UNITS
    )
    log.info("starting from %s: %s by %s", where, counts, config.init.selection)
    return selection.select(fitted.params, table, kept)


def mask_selection(config: config_dict.ConfigDict) -> str:
    """How a masked method chooses its first weights or units: `"random"` or `"magnitude"`.

    At random where it starts from scratch. Taylor's importance is one of units, not of weights.
    """
    random = not config.init["from"] or config.init.selection == "random"
    return "random" if random else "magnitude"


def _check_size(config: config_dict.ConfigDict, have: Topology, want: Topology) -> None:
    for unit in UNITS:
        for layer, (n, m) in enumerate(zip(have.of(unit), want.of(unit), strict=True)):
            if n < m:
                raise UserError(
                    f"config.init.from={config.init['from']}: layer {layer} has {n} {unit}, and "
                    f"this run begins with {m}: start from a dense model or lower config.density"
                )


def _loss(plan: Blueprint, topology: Topology):
    """The loss of a batch without dropout."""
    module = plan.model.module(topology, plan.num_classes)

    def loss(params, batch):
        images, targets = batch
        logits = module.apply({"params": params}, images, train=False)
        return jnp.mean(optax.softmax_cross_entropy(logits, targets))

    return loss


def _whole(x: jax.Array) -> np.ndarray:
    """An array on the host, the parts of other processes included."""
    if x.is_fully_addressable:
        return np.asarray(x)
    return np.asarray(multihost_utils.process_allgather(x, tiled=True))


def _batches(config: config_dict.ConfigDict, inputs: Inputs) -> Iterator[tuple[Any, Any]]:
    """`init.batches` batches of at most `init.batch_images` images, from the start of the data."""
    position, left, step = inputs.get_state(), config.init.batches, 0
    try:
        while left:
            images, targets = map(_whole, inputs.prepare(step, inputs.next()))
            size = min(config.init.batch_images, len(images))
            for start in range(0, len(images) - size + 1, size)[:left]:
                left -= 1
                yield images[start : start + size], targets[start : start + size]
            step += 1
    finally:
        inputs.set_state(position)
