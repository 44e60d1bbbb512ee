"""The fields of a config, their defaults and their ranges.

A config file's `get_config()` starts from `default_config(model)` and sets what differs. Lists and
bare None cannot be overridden on the command line, so tuples and placeholders stand instead.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Callable, Iterator
from typing import Any

from ml_collections import config_dict

from barter_jax.core import policy, scores
from barter_jax.errors import UserError
from barter_jax.models import MODELS

METHODS = ("barter", "static", "random_receiver", "random_donor", "random_pair", "dense")
# Methods of the comparison that other modules will bring.
PLANNED_METHODS = ("set", "snfs", "rigl", "srigl", "s2vite")
OPTIMIZERS = ("adamw", "sgd", "lion")
# Known so that the reason can be told: its state cannot follow a change of topology.
REFUSED_OPTIMIZERS = ("adafactor",)

# What may differ when a run is resumed: none of it changes what the run computes (a bucket only
# changes the order of floating-point sums).
RESUMABLE = (
    "bucket",
    "checkpoint",
    "compile_cache",
    "executables",
    "log",
    "data.cache_mb",
    "data.threads",
)


def default_config(model: str = "vit") -> config_dict.ConfigDict:
    """All fields with their defaults; `config.model` holds the fields of the named model."""
    c = config_dict.ConfigDict()
    c.seed = 0
    # Share of the Transformer weights an unstructured masked model of equal size would keep.
    c.density = 0.3
    # barter, static, random_receiver, random_donor, random_pair or dense.
    c.method = "barter"

    c.data = config_dict.ConfigDict()
    c.data.name = "digits"  # digits, or folder with data.dir
    c.data.dir = ""  # a directory or a zip, for the sources that need one
    c.data.image_size = 32
    c.data.resize = False  # scale and crop images of another size instead of refusing them
    c.data.validation_fraction = 0.1  # held out of the training images, by seed
    # Known sizes of a data set, for describing a run where the data is not at hand.
    c.data.num_classes = config_dict.placeholder(int)
    c.data.num_train = config_dict.placeholder(int)
    c.data.cache_mb = 2048  # decode once and keep, if the set takes at most so many MiB
    c.data.threads = 2
    c.data.mean = (0.5, 0.5, 0.5)
    c.data.std = (0.25, 0.25, 0.25)
    c.data.flip = True
    c.data.crop_padding = 4
    c.data.label_smoothing = 0.1

    c.model = config_dict.ConfigDict({"name": model, **dataclasses.asdict(MODELS[model]())})

    c.train = config_dict.ConfigDict()
    c.train.epochs = 30
    c.train.steps = config_dict.placeholder(int)  # wins over epochs
    c.train.batch_size = 64
    c.train.passes_per_epoch = 1.0  # passes over the training images that count as one epoch
    c.train.eval_every_steps = config_dict.placeholder(int)  # default: once an epoch
    c.train.eval_batch_size = 256

    c.optimizer = config_dict.ConfigDict()
    c.optimizer.name = "adamw"  # adamw, sgd (with momentum) or lion
    c.optimizer.learning_rate = 1e-3  # the peak
    c.optimizer.start_learning_rate = 1e-6
    c.optimizer.end_learning_rate = 1e-6
    c.optimizer.warmup_fraction = 0.1  # of the optimizer steps; cosine decay after it
    c.optimizer.weight_decay = 0.05
    c.optimizer.decay_mask = "all"  # all, or kernels: no decay on biases and norms
    c.optimizer.clip_norm = 0.0  # clip the gradient's global norm; 0 does not
    c.optimizer.beta1 = 0.9  # also the momentum of sgd
    c.optimizer.beta2 = 0.999
    c.optimizer.epsilon = 1e-8

    c.topology = config_dict.ConfigDict()
    c.topology.updates = 10
    c.topology.start_fraction = 0.1  # of the run: the first update
    c.topology.end_fraction = 0.75  # and the last
    c.topology.total_heads = config_dict.placeholder(int)  # to move; default 6% of the budget
    c.topology.total_channels = config_dict.placeholder(int)  # default 5.62% of the budget
    c.topology.transfer_multiplier = 1.0  # on the two defaults
    c.topology.extra = "last"  # last or first: the layers that get a unit more at the start
    c.topology.min_units = 1
    c.topology.max_heads = config_dict.placeholder(int)  # per layer; default: the dense count
    c.topology.max_channels = config_dict.placeholder(int)
    c.topology.min_age = 1  # updates before a clone may give or be cloned
    c.topology.share = 0.5  # of its parent's output weights that a clone takes over
    c.topology.noise = 0.1  # breaks the symmetry of clone and parent; 0 clones exactly
    c.topology.moments = "scaled"  # scaled, copy or reset
    c.topology.warmup_steps = 100  # of a clone's learning rate, with moments=reset

    c.scores = config_dict.ConfigDict()
    c.scores.decay = 0.99  # beta of the running averages
    c.scores.pruning = "gate_squared"  # gate_squared, gate_abs or magnitude
    c.scores.growth = "input_gradient"  # input_gradient, all_gradient or gate_abs
    c.scores.priority = "mean"  # mean, max or top4_mean: of a layer's growth scores

    # Physical counts are multiples of these; larger buckets mean fewer compiled shapes and more
    # work on units that are not there. The defaults cost about 3% in the paper's settings.
    c.bucket = config_dict.ConfigDict()
    c.bucket.heads = 1
    c.bucket.channels = 8
    # A layer that shrinks keeps its physical count while at most this share of it is without use.
    c.bucket.waste = 0.15

    c.executables = config_dict.ConfigDict()
    c.executables.capacity = 8  # compiled shapes kept at once
    c.executables.ahead = True  # compile the next update's likely shape in the background

    # Compiled code is kept on disk, so that a second start compiles next to nothing. A cache that
    # JAX has been given already, by JAX_COMPILATION_CACHE_DIR, is used instead.
    c.compile_cache = config_dict.ConfigDict()
    c.compile_cache.enabled = True
    c.compile_cache.dir = ""  # default: barter_jax/xla in XDG_CACHE_HOME or ~/.cache
    c.compile_cache.max_mb = 2048  # the least recently used goes beyond so many MiB

    c.checkpoint = config_dict.ConfigDict()
    c.checkpoint.every_steps = config_dict.placeholder(int)  # default: at each evaluation
    c.checkpoint.keep = 1  # latest ones; the best is always kept besides

    c.log = config_dict.ConfigDict()
    c.log.every_steps = 20
    c.log.tensorboard = True
    return c


def flatten(config: config_dict.ConfigDict) -> dict[str, Any]:
    """`{"train.batch_size": 64, ...}`, in the order of the config."""

    def walk(node, prefix) -> Iterator[tuple[str, Any]]:
        for key in node:
            value = node[key]
            if isinstance(value, config_dict.ConfigDict):
                yield from walk(value, f"{prefix}{key}.")
            else:
                yield prefix + key, value

    return dict(walk(config, ""))


def unknown_key_message(key: str, known: list[str]) -> str:
    """One line that names an unknown config key and the nearest valid one."""
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    if not near:
        last = key.rpartition(".")[2]
        tails = {name.rpartition(".")[2]: name for name in known}
        near = [tails[t] for t in difflib.get_close_matches(last, list(tails), n=1, cutoff=0.6)]
    hint = f"; did you mean config.{near[0]}?" if near else ""
    return f"unknown config key config.{key}{hint}"


def _choice(*values: str) -> tuple[Callable[[Any], bool], str]:
    return (lambda v: v in values), "one of " + ", ".join(values)


_POSITIVE_INT = (lambda v: v >= 1, "at least 1")
_NOT_NEGATIVE = (lambda v: math.isfinite(v) and v >= 0, "at least 0")
_POSITIVE = (lambda v: math.isfinite(v) and v > 0, "above 0")
_FRACTION = (lambda v: 0 <= v <= 1, "in [0, 1]")
_BELOW_ONE = (lambda v: 0 <= v < 1, "in [0, 1)")

# The range of each field; placeholders are checked only where they are set.
RANGES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "seed": (lambda v: 0 <= v < 2**32, "in [0, 2**32)"),
    "density": (lambda v: 0 < v <= 1, "above 0 and at most 1"),
    "method": _choice(*METHODS),
    "data.image_size": _POSITIVE_INT,
    "data.validation_fraction": (lambda v: 0 < v < 1, "between 0 and 1"),
    "data.num_classes": (lambda v: v >= 2, "at least 2"),
    "data.num_train": _POSITIVE_INT,
    "data.cache_mb": _NOT_NEGATIVE,
    "data.threads": _NOT_NEGATIVE,
    "data.mean": (lambda v: all(math.isfinite(x) for x in v), "finite in every channel"),
    "data.std": (lambda v: all(math.isfinite(x) and x > 0 for x in v), "above 0 in every channel"),
    "data.crop_padding": _NOT_NEGATIVE,
    "data.label_smoothing": _BELOW_ONE,
    "model.name": _choice(*MODELS),
    "train.epochs": _POSITIVE_INT,
    "train.steps": _POSITIVE_INT,
    "train.batch_size": _POSITIVE_INT,
    "train.passes_per_epoch": _POSITIVE,
    "train.eval_every_steps": _POSITIVE_INT,
    "train.eval_batch_size": _POSITIVE_INT,
    "optimizer.name": (
        lambda v: v in OPTIMIZERS + REFUSED_OPTIMIZERS,
        "one of " + ", ".join(OPTIMIZERS),
    ),
    "optimizer.learning_rate": _POSITIVE,
    "optimizer.start_learning_rate": _NOT_NEGATIVE,
    "optimizer.end_learning_rate": _NOT_NEGATIVE,
    "optimizer.warmup_fraction": _BELOW_ONE,
    "optimizer.weight_decay": _NOT_NEGATIVE,
    "optimizer.decay_mask": _choice("all", "kernels"),
    "optimizer.clip_norm": _NOT_NEGATIVE,
    "optimizer.beta1": _BELOW_ONE,
    "optimizer.beta2": _BELOW_ONE,
    "optimizer.epsilon": _POSITIVE,
    "topology.updates": _NOT_NEGATIVE,
    "topology.start_fraction": _FRACTION,
    "topology.end_fraction": _FRACTION,
    "topology.total_heads": _NOT_NEGATIVE,
    "topology.total_channels": _NOT_NEGATIVE,
    "topology.transfer_multiplier": _NOT_NEGATIVE,
    "topology.extra": _choice("last", "first"),
    "topology.min_units": _POSITIVE_INT,
    "topology.max_heads": _POSITIVE_INT,
    "topology.max_channels": _POSITIVE_INT,
    "topology.min_age": _NOT_NEGATIVE,
    "topology.share": (lambda v: 0 < v < 1, "between 0 and 1"),
    "topology.noise": _NOT_NEGATIVE,
    "topology.moments": _choice("scaled", "copy", "reset"),
    "topology.warmup_steps": _POSITIVE_INT,
    "scores.decay": _BELOW_ONE,
    "scores.pruning": _choice(*scores.PRUNING_SAMPLES),
    "scores.growth": _choice(*scores.GROWTH_SAMPLES),
    "scores.priority": _choice(*policy.PRIORITIES),
    "bucket.heads": _POSITIVE_INT,
    "bucket.channels": _POSITIVE_INT,
    "bucket.waste": _BELOW_ONE,
    "executables.capacity": _POSITIVE_INT,
    "compile_cache.max_mb": _POSITIVE,
    "checkpoint.every_steps": _POSITIVE_INT,
    "checkpoint.keep": _POSITIVE_INT,
    "log.every_steps": _POSITIVE_INT,
}


def validate(config: config_dict.ConfigDict) -> None:
    """Checks a parsed config: no key missing or unknown, tuples well typed, values in range.

    Raises:
      UserError: one line that names the field and what it must be.
    """
    values = flatten(config)
    name = values.get("model.name")
    if name not in MODELS:
        raise UserError(f"config.model.name must be one of {', '.join(MODELS)}, got {name!r}")
    defaults = flatten(default_config(name))
    for key in values:
        if key not in defaults:
            raise UserError(
                f"{name} has no field {key}: start the config from default_config({name!r})"
                if key.startswith("model.")
                else unknown_key_message(key, list(defaults))
            )
    for key in defaults:
        if key not in values:
            raise UserError(f"config.{key} is missing: start the config from default_config()")
    for key, default in defaults.items():
        if isinstance(default, tuple):
            _check_tuple(key, values[key], default)
    if values["method"] in PLANNED_METHODS:
        raise UserError(
            f"config.method={values['method']} is not available in this version: "
            f"use one of {', '.join(METHODS)}"
        )
    for key, (fine, text) in RANGES.items():
        value = values[key]
        if value is not None and not fine(value):
            raise UserError(f"config.{key} must be {text}, got {value!r}")
    if values["topology.start_fraction"] > values["topology.end_fraction"]:
        raise UserError(
            "config.topology.start_fraction must not be above config.topology.end_fraction, got "
            f"{values['topology.start_fraction']} and {values['topology.end_fraction']}"
        )


def _check_tuple(key: str, value: Any, default: tuple) -> None:
    kind = type(default[0])
    numbers = (int, float) if kind is float else (kind,)
    if len(value) != len(default) or any(
        not isinstance(x, numbers) or isinstance(x, bool) for x in value
    ):
        raise UserError(
            f"config.{key} must be {len(default)} values of type {kind.__name__}, as "
            f"'--config.{key}={default}', got {value!r}"
        )
