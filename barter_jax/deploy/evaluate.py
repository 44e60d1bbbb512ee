"""Evaluation of a compact model as it is deployed."""

from __future__ import annotations

import jax
import numpy as np

from barter_jax.data import pipeline
from barter_jax.data.sources import ImageSource
from barter_jax.deploy.model import CHUNK, CompactModel
from barter_jax.training import metrics


def evaluate(model: CompactModel, source: ImageSource, num_threads: int = 0) -> dict[str, float]:
    """Loss, accuracy and macro-F1 of a model on labelled images.

    Args:
      model: a loaded model.
      source: images of the model's size with labels among its own.
      num_threads: threads that read ahead.
    """
    count = jax.jit(metrics.count)
    found = []
    size = min(CHUNK, max(len(source), 1))
    for batch in pipeline.eval_batches(source, size, num_threads=num_threads):
        logits = model.logits(batch["image"])
        found.append(jax.device_get(count(logits, batch["label"], batch["mask"])))
    return metrics.summarise(found) if found else {"images": 0}


def accuracy(model: CompactModel, images: np.ndarray, labels: np.ndarray) -> float:
    """Share of images whose likeliest class is their label."""
    return float(np.mean(np.argmax(model(images), axis=-1) == np.asarray(labels)))
