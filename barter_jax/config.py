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

# Small tensors from the first step on.
COMPACT_METHODS = ("barter", "static", "random_receiver", "random_donor", "random_pair")
# Full-size tensors under a mask.
MASKED_METHODS = ("set", "snfs", "rigl", "srigl", "s2vite")
METHODS = (*COMPACT_METHODS, "dense", *MASKED_METHODS)
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
    "data.workers",
)


def default_config(model: str = "vit") -> config_dict.ConfigDict:
    """All fields with their defaults; `config.model` holds the fields of the named model."""
    c = config_dict.ConfigDict()
    c.seed = 0
    # Share of the Transformer weights an unstructured masked model of equal size would keep.
    c.density = 0.3
    # barter; static (compact, no updates); random_receiver, random_donor, random_pair (ablations);
    # dense; or of the masked ones set, snfs, rigl, srigl, s2vite.
    c.method = "barter"

    c.data = config_dict.ConfigDict()
    # digits; folder with data.dir; cifar10, cifar100, tiny_imagenet, imagenet; or any image
    # classification set of TensorFlow Datasets as tfds/NAME.
    c.data.name = "digits"
    # A directory or a zip. For the sets of TensorFlow Datasets, where it keeps them, by default
    # ~/tensorflow_datasets; tiny_imagenet takes its archive as well.
    c.data.dir = ""
    c.data.image_size = 32  # what the model sees
    # Images are read at this size, and the crop to image_size is the augmentation's.
    c.data.load_size = config_dict.placeholder(int)  # default: image_size
    c.data.resize = False  # scale and crop images of another size instead of refusing them
    c.data.validation_fraction = 0.1  # held out of the training images, by seed
    # Known sizes of a data set, for describing a run where the data is not at hand.
    c.data.num_classes = config_dict.placeholder(int)
    c.data.num_train = config_dict.placeholder(int)
    c.data.cache_mb = 2048  # decode once and keep, if the set takes at most so many MiB
    c.data.threads = 2  # that read ahead, in each process that reads
    c.data.workers = 0  # processes that read; for large images that are decoded as they come
    c.data.mean = (0.5, 0.5, 0.5)
    c.data.std = (0.25, 0.25, 0.25)

    # What happens to a training batch, on the device, in this order. Evaluation sees the centre of
    # the images as they are.
    c.augment = config_dict.ConfigDict()
    c.augment.crop = "padded"  # none (the centre), padded or resized
    c.augment.crop_padding = 4  # padded: pixels added on every side before a random crop
    c.augment.crop_scale = (0.08, 1.0)  # resized: part of the area that is cut out
    c.augment.crop_ratio = (3 / 4, 4 / 3)  # resized: width over height, log-uniform
    c.augment.crop_interpolation = "bilinear"  # resized: bilinear or bicubic, antialiased
    c.augment.flip = True  # left to right, with probability 1/2
    c.augment.brightness = 0.0  # colour jitter: factors within 1 - x .. 1 + x
    c.augment.contrast = 0.0
    c.augment.saturation = 0.0
    c.augment.hue = 0.0  # colour jitter: shift within -x .. x turns of the colour circle
    # none, randaugment, autoaugment_imagenet or autoaugment_cifar.
    c.augment.policy = "none"
    c.augment.policy_ops = 2  # randaugment: operations in a row
    c.augment.policy_probability = 0.5  # randaugment: that each of them is applied
    c.augment.policy_magnitude = 9.0  # randaugment: of 10
    c.augment.policy_noise = 0.5  # randaugment: standard deviation of the magnitude
    c.augment.policy_increasing = True  # randaugment: a larger magnitude is always a larger change
    c.augment.policy_interpolation = "bilinear"  # nearest or bilinear, of rotations and the like
    c.augment.policy_fill = (128, 128, 128)  # colour of what comes in from outside
    c.augment.erase_probability = 0.0  # random erasing, after normalisation
    c.augment.erase_area = (0.02, 1 / 3)  # part of the image
    c.augment.erase_ratio = (0.3, 1 / 0.3)  # height over width
    c.augment.erase_ratio_law = "log"  # log-uniform, or uniform: tall boxes oftener than wide ones
    c.augment.erase_mode = "constant"  # constant, or pixel: standard normal noise
    c.augment.erase_value = (0.0, 0.0, 0.0)  # constant: in normalised values; 0 is the mean colour
    c.augment.mix_probability = 1.0  # that a batch is mixed, if either alpha is above 0
    c.augment.mixup_alpha = 0.0  # Beta(alpha, alpha) of the share; 0 does no mixup
    c.augment.cutmix_alpha = 0.0
    c.augment.cutmix_probability = 0.5  # of a mixed batch, where both are on
    c.augment.mix_pairs = "permutation"  # permutation, or flip: first with last
    c.augment.label_smoothing = 0.1

    c.model = config_dict.ConfigDict({"name": model, **dataclasses.asdict(MODELS[model]())})

    c.train = config_dict.ConfigDict()
    c.train.epochs = 30
    c.train.steps = config_dict.placeholder(int)  # wins over epochs
    c.train.batch_size = 64
    # A method: train for as many steps as give the training FLOPs that it would take by the fields
    # above. Empty: for as many steps as they say.
    c.train.match_flops_of = ""
    c.train.passes_per_epoch = 1.0  # passes over the training images that count as one epoch
    c.train.eval_every_steps = config_dict.placeholder(int)  # default: once an epoch
    c.train.eval_batch_size = 256
    # Parts of a batch that go through the model one after the other, to save memory.
    c.train.micro_batches = 1
    # Of a running average of the parameters, which is then what is evaluated and kept; 0: none.
    c.train.ema_decay = 0.0

    c.optimizer = config_dict.ConfigDict()
    c.optimizer.name = "adamw"  # adamw, sgd (with momentum) or lion
    c.optimizer.learning_rate = 1e-3  # the peak
    c.optimizer.start_learning_rate = 1e-6
    c.optimizer.end_learning_rate = 1e-6
    c.optimizer.warmup_fraction = 0.1  # of the optimizer steps; cosine decay after it
    c.optimizer.weight_decay = 0.05
    c.optimizer.decay_mask = "all"  # all, or kernels: no decay on biases and norms
    # Parameters without decay besides, by name: "position,cls_token,block_0/*,block_1/mlp/*".
    c.optimizer.decay_exclude = ""
    # The learning rate of each layer is that of the one above it times this; 1 treats all alike.
    c.optimizer.layer_decay = 1.0
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

    # What a run starts from instead of random parameters.
    c.init = config_dict.ConfigDict()
    # A work directory or model of this project, or a safetensors file of timm, Hugging Face or
    # SHI-Labs's CCT.
    c.init["from"] = ""
    # Which units a compact model takes over of a larger one: taylor, magnitude or random. Masked
    # methods take over the weights, or units, of largest magnitude, or random ones.
    c.init.selection = "taylor"
    c.init.batches = 16  # taylor: batches of the training data that the importances are taken on
    c.init.batch_images = 32  # and images of each; many small batches tell more than few large ones

    # The masked methods. What is not set is as in the method's own paper or code.
    c.masked = config_dict.ConfigDict()
    c.masked.allocation = "erk"  # densities of the layers: erk or uniform
    c.masked.every_steps = config_dict.placeholder(int)  # between updates of the masks
    c.masked.drop_fraction = config_dict.placeholder(float)  # of the active weights, at the start
    c.masked.drop_end = config_dict.placeholder(float)  # and at the end
    c.masked.stop_fraction = config_dict.placeholder(float)  # of the run, when updates end
    c.masked.gamma = config_dict.placeholder(
        float
    )  # srigl: least salient part of a neuron's fan-in
    c.masked.ema_decay = 0.9  # snfs: of the running average of gradients
    c.masked.variant = "repaired"  # s2vite: repaired or as_released

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
    return (lambda v: v in values), "one of " + ", ".join(v or "'' (none)" for v in values)


_POSITIVE_INT = (lambda v: v >= 1, "at least 1")
_NOT_NEGATIVE = (lambda v: math.isfinite(v) and v >= 0, "at least 0")
_POSITIVE = (lambda v: math.isfinite(v) and v > 0, "above 0")
_FRACTION = (lambda v: 0 <= v <= 1, "in [0, 1]")
_BELOW_ONE = (lambda v: 0 <= v < 1, "in [0, 1)")
_ORDERED = (lambda v: 0 < v[0] <= v[1] < math.inf, "(low, high) with 0 < low <= high")
_PART = (lambda v: 0 < v[0] <= v[1] <= 1, "(low, high) with 0 < low <= high <= 1")

# The range of each field; placeholders are checked only where they are set.
RANGES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "seed": (lambda v: 0 <= v < 2**32, "in [0, 2**32)"),
    "density": (lambda v: 0 < v <= 1, "above 0 and at most 1"),
    "method": _choice(*METHODS),
    "data.image_size": _POSITIVE_INT,
    "data.load_size": _POSITIVE_INT,
    "data.validation_fraction": (lambda v: 0 < v < 1, "between 0 and 1"),
    "data.num_classes": (lambda v: v >= 2, "at least 2"),
    "data.num_train": _POSITIVE_INT,
    "data.cache_mb": _NOT_NEGATIVE,
    "data.threads": _NOT_NEGATIVE,
    "data.workers": _NOT_NEGATIVE,
    "data.mean": (lambda v: all(math.isfinite(x) for x in v), "finite in every channel"),
    "data.std": (lambda v: all(math.isfinite(x) and x > 0 for x in v), "above 0 in every channel"),
    "augment.crop": _choice("none", "padded", "resized"),
    "augment.crop_padding": _NOT_NEGATIVE,
    "augment.crop_scale": _PART,
    "augment.crop_ratio": _ORDERED,
    "augment.crop_interpolation": _choice("bilinear", "bicubic"),
    "augment.brightness": _FRACTION,
    "augment.contrast": _FRACTION,
    "augment.saturation": _FRACTION,
    "augment.hue": (lambda v: 0 <= v <= 0.5, "in [0, 0.5]"),
    "augment.policy": _choice("none", "randaugment", "autoaugment_imagenet", "autoaugment_cifar"),
    "augment.policy_ops": _POSITIVE_INT,
    "augment.policy_probability": _FRACTION,
    "augment.policy_magnitude": (lambda v: 0 <= v <= 10, "in [0, 10]"),
    "augment.policy_noise": _NOT_NEGATIVE,
    "augment.policy_interpolation": _choice("nearest", "bilinear"),
    "augment.policy_fill": (lambda v: all(0 <= x <= 255 for x in v), "in [0, 255]"),
    "augment.erase_probability": _FRACTION,
    "augment.erase_area": _PART,
    "augment.erase_ratio": _ORDERED,
    "augment.erase_ratio_law": _choice("log", "uniform"),
    "augment.erase_mode": _choice("constant", "pixel"),
    "augment.erase_value": (lambda v: all(math.isfinite(x) for x in v), "finite in every channel"),
    "augment.mix_probability": _FRACTION,
    "augment.mixup_alpha": _NOT_NEGATIVE,
    "augment.cutmix_alpha": _NOT_NEGATIVE,
    "augment.cutmix_probability": _FRACTION,
    "augment.mix_pairs": _choice("permutation", "flip"),
    "augment.label_smoothing": _BELOW_ONE,
    "model.name": _choice(*MODELS),
    "train.epochs": _POSITIVE_INT,
    "train.steps": _POSITIVE_INT,
    "train.batch_size": _POSITIVE_INT,
    "train.match_flops_of": _choice("", *METHODS),
    "train.passes_per_epoch": _POSITIVE,
    "train.eval_every_steps": _POSITIVE_INT,
    "train.eval_batch_size": _POSITIVE_INT,
    "train.micro_batches": _POSITIVE_INT,
    "train.ema_decay": _BELOW_ONE,
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
    "optimizer.decay_exclude": (
        lambda v: not v or all(part.strip() for part in v.split(",")),
        "names of parameters with commas between them",
    ),
    "optimizer.layer_decay": (lambda v: 0 < v <= 1, "above 0 and at most 1"),
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
    "init.selection": _choice("taylor", "magnitude", "random"),
    "init.batches": _POSITIVE_INT,
    "init.batch_images": _POSITIVE_INT,
    "masked.allocation": _choice("erk", "uniform"),
    "masked.every_steps": _POSITIVE_INT,
    "masked.drop_fraction": _FRACTION,
    "masked.drop_end": _FRACTION,
    "masked.stop_fraction": _FRACTION,
    "masked.gamma": _FRACTION,
    "masked.ema_decay": _BELOW_ONE,
    "masked.variant": _choice("repaired", "as_released"),
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
