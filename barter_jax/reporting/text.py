"""What a report says in words, and the settings of an experiment. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from barter_jax.reporting.groups import Experiment
from barter_jax.reporting.read import BROKEN, STATES
from barter_jax.reporting.tables import NONE, Cell, Table

INTRODUCTION = (
    "Each run trains a Transformer for image classification. A compact run holds a share of the "
    "dense model's attention heads and FFN channels from its first step; barter lets its layers "
    "trade them while it trains, static does not, the random methods leave the choice of receiver "
    "or donors to chance, and dense trains the whole model. The model that is kept is the one of "
    "the highest validation accuracy; the test images are looked at once, at the end, so that "
    "only finished runs have test values and enter the means."
)

GRIDS = (
    "For each run whose updates moved units: how many each layer had after every update (darker is "
    "more); what each update gave to a layer (blue, +) or took from it (orange, -); and how many "
    "went from which layer to which over the run. Layer 0 is nearest to the image. At an update "
    "one layer receives clones of its best units, and the least useful units elsewhere go: the "
    "sum over the layers never changes."
)

# What one wants to know of a config first; the rest stands in the file that repeats it.
FIELDS = (
    "data.name",
    "data.image_size",
    "data.validation_fraction",
    "model.layers",
    "model.width",
    "model.heads",
    "model.channels",
    "model.patch_size",
    "model.dtype",
    "init.from",
    "train.epochs",
    "train.steps",
    "train.match_flops_of",
    "train.batch_size",
    "train.ema_decay",
    "optimizer.name",
    "optimizer.learning_rate",
    "optimizer.warmup_fraction",
    "optimizer.weight_decay",
    "optimizer.clip_norm",
    "augment.crop",
    "augment.flip",
    "augment.policy",
    "augment.mixup_alpha",
    "augment.cutmix_alpha",
    "augment.label_smoothing",
    "topology.updates",
    "topology.total_heads",
    "topology.total_channels",
    "topology.noise",
    "topology.moments",
    "scores.decay",
    "scores.pruning",
    "scores.growth",
)

UNSET = "not set"


def states(runs: Sequence[dict[str, Any]]) -> str:
    """How many of the document's runs are in which state, and which ones are broken."""
    counted = {state: [r for r in runs if r["status"] == state] for state in STATES}
    text = ", ".join(f"{len(found)} {state}" for state, found in counted.items() if found)
    broken = "; ".join(
        f"{r['directory']} ({r['problems'][0]})" for r in counted[BROKEN] if r["problems"]
    )
    return f"{text[:1].upper()}{text[1:]}.{f' Broken: {broken}.' if broken else ''}"


def settings(experiment: Experiment) -> Table:
    """The fields that matter and, after them, all others in which the groups differ."""
    own = [g.fields for g in experiment.groups]
    keys = [key for key in FIELDS if any(key in fields for fields in own)]
    every = dict.fromkeys(key for fields in own for key in fields)
    keys += [k for k in every if k not in keys and len({_shown(f, k) for f in own}) > 1]
    rows = []
    for key in keys:
        values = {}
        for group, fields in zip(experiment.groups, own, strict=True):
            values.setdefault(_shown(fields, key), []).append(group.label)
        if len(values) == 1:
            text = next(iter(values))
            if text in (UNSET, NONE):
                continue
        else:
            text = "; ".join(f"{value} ({', '.join(names)})" for value, names in values.items())
        rows.append((Cell(key), Cell(text)))
    return Table(
        "Settings",
        ("config field", "value"),
        tuple(rows),
        "The fields that tell most, as far as they are set, and those in which groups differ, with "
        "the groups in brackets.",
    )


def _shown(fields: Any, key: str) -> str:
    value = fields.get(key, NONE)
    if value is None or value == "":
        return UNSET
    return f"{value:g}" if isinstance(value, float) else str(value)
