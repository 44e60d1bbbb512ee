"""What the paper reports, for the experiments that can be told to be the same. Pure.

Source: arXiv 2610.16147. Accuracies are means over three seeds; it gives their standard
deviations and macro-F1 too, which are not at hand here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

SOURCE = "arXiv 2610.16147"


@dataclasses.dataclass(frozen=True)
class Experiment:
    """One of the paper's experiments.

    Attributes:
      title: what it is, for a reader.
      fields: values of flat config fields that make a run one of it.
      steps: optimizer steps; what `train.steps`, where it is set, must be.
      fine_tuning: whether it starts from a trained model.
      matched: whether it trains for the FLOPs of a full-size method instead, as
        `train.match_flops_of` has it.
      accuracy: test accuracy in percent, by method and density (1 for dense).
      parameters: of the exported model, by density, of compact models and the dense one.
      gflops: training GFLOPs per image, likewise.
      pflops: training PFLOPs of a whole run, by density.
      seconds_per_epoch: on one NVIDIA L40, by method and density.
    """

    title: str
    fields: Mapping[str, Any]
    steps: int
    fine_tuning: bool
    matched: bool
    accuracy: Mapping[str, Mapping[float, float]]
    parameters: Mapping[float, float]
    gflops: Mapping[float, float]
    pflops: Mapping[float, float]
    seconds_per_epoch: Mapping[str, Mapping[float, float]]


CCT = Experiment(
    title="CCT on CIFAR-100, 200 epochs",
    fields={
        "model.name": "cct",
        "model.layers": 7,
        "model.width": 256,
        "model.heads": 16,
        "model.head_width": 16,
        "model.channels": 512,
        "data.name": "cifar100",
        "data.image_size": 32,
        "train.epochs": 200,
        "train.batch_size": 128,
    },
    steps=200 * 351,
    fine_tuning=False,
    matched=False,
    accuracy={
        "dense": {1.0: 73.49},
        "set": {0.1: 63.21, 0.3: 70.26, 0.5: 72.25, 0.7: 73.21},
        "snfs": {0.1: 63.29, 0.3: 69.45, 0.5: 70.92, 0.7: 72.17},
        "rigl": {0.1: 67.01, 0.3: 71.74, 0.5: 72.62, 0.7: 73.29},
        "static": {0.1: 63.16, 0.3: 70.43, 0.5: 71.80, 0.7: 72.99},
        "barter": {0.1: 66.13, 0.3: 71.38, 0.5: 72.85, 0.7: 73.26},
        "random_receiver": {0.5: 72.49},
        "random_donor": {0.5: 71.54},
        "random_pair": {0.5: 71.20},
    },
    parameters={0.1: 0.4802e6, 0.3: 1.2141e6, 0.5: 1.9480e6, 0.7: 2.6824e6, 1.0: 3_783_269},
    gflops={0.1: 0.750, 0.3: 2.166, 0.5: 3.569, 0.7: 4.973, 1.0: 7.08984},
    pflops={},
    seconds_per_epoch={
        "dense": {1.0: 68.45},
        "static": {0.1: 11.53, 0.3: 25.18, 0.5: 36.90},
        "barter": {0.1: 11.90, 0.3: 25.48},
    },
)

VIT_FINE_TUNING = Experiment(
    title="fine-tuning a dense ViT on CIFAR-100, 100 epochs",
    fields={
        "model.name": "vit",
        "model.layers": 9,
        "model.width": 192,
        "model.heads": 12,
        "model.head_width": 16,
        "model.channels": 384,
        "data.name": "cifar100",
        "train.epochs": 100,
        "train.batch_size": 256,
    },
    steps=100 * 527,
    fine_tuning=True,
    matched=False,
    accuracy={
        "dense": {1.0: 72.23},
        "set": {0.1: 58.81},
        "snfs": {0.1: 58.89},
        "rigl": {0.1: 63.19, 0.3: 68.38},
        "srigl": {0.1: 60.70},
        "s2vite": {0.1: 59.66},
        "barter": {0.1: 61.21, 0.3: 69.02},
    },
    parameters={},
    gflops={},
    pflops={0.1: 1.6858, 0.3: 4.7107, 1.0: 15.276},
    seconds_per_epoch={},
)

# RigL's compute, which is the dense model's.
VIT_FINE_TUNING_MATCHED = dataclasses.replace(
    VIT_FINE_TUNING,
    title="fine-tuning a dense ViT on CIFAR-100, at RigL's compute",
    matched=True,
    accuracy={"barter": {0.1: 65.65, 0.3: 70.39}},
    pflops={},
)

EXPERIMENTS = (CCT, VIT_FINE_TUNING, VIT_FINE_TUNING_MATCHED)
# Methods that train tensors of the dense model's size.
FULL_SIZE = ("dense", "set", "snfs", "rigl", "srigl", "s2vite")
# The methods that the sizes and costs of compact models, or the dense one, are those of.
COMPACT = ("barter", "static", "random_receiver", "random_donor", "random_pair", "dense")


def match(config: Mapping[str, Any]) -> Experiment | None:
    """The paper's experiment that a run repeats; None where it is not one of them.

    Args:
      config: flat config fields, as in `{"train.epochs": 200}`.
    """
    steps, other = config.get("train.steps"), config.get("train.match_flops_of")
    if other and other not in FULL_SIZE:
        return None
    for experiment in EXPERIMENTS:
        if (
            all(config.get(key) == value for key, value in experiment.fields.items())
            and steps in (None, experiment.steps)
            and fine_tunes(config) == experiment.fine_tuning
            and bool(other) == experiment.matched
        ):
            return experiment
    return None


def fine_tunes(config: Mapping[str, Any]) -> bool:
    """Whether a run starts from a trained model: it names one in `init.from`."""
    return bool(config.get("init.from"))


def values(experiment: Experiment, method: str, density: float) -> dict[str, float | None]:
    """The paper's figures for a method at a density (1 for dense); None what it does not tell."""
    compact = method in COMPACT
    return {
        "accuracy_percent": experiment.accuracy.get(method, {}).get(density),
        "parameters": experiment.parameters.get(density) if compact else None,
        "training_gflops_per_image": experiment.gflops.get(density) if compact else None,
        "training_pflops": experiment.pflops.get(density) if compact else None,
        "seconds_per_epoch_on_l40": experiment.seconds_per_epoch.get(method, {}).get(density),
    }
