"""Classification metrics from counts that add up over batches."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


class Counts(NamedTuple):
    """Sums over images.

    Attributes:
      loss: float32 scalar, summed cross-entropy.
      correct: int32 `[classes]`, images of a class that were recognised.
      predicted: int32 `[classes]`, images that were taken for the class.
      actual: int32 `[classes]`, images of the class.
    """

    loss: jax.Array
    correct: jax.Array
    predicted: jax.Array
    actual: jax.Array


def count(logits: jax.Array, labels: jax.Array, mask: jax.Array) -> Counts:
    """Counts one batch; runs inside jit.

    Args:
      logits: float32 `[batch, classes]`.
      labels: int32 `[batch]`.
      mask: `[batch]`, 1 for an image and 0 for padding.
    """
    classes = logits.shape[-1]
    real = mask.astype(jnp.int32)
    guess = jnp.argmax(logits, axis=-1)
    log_probabilities = jax.nn.log_softmax(logits)
    losses = -jnp.take_along_axis(log_probabilities, labels[:, None], axis=-1)[:, 0]

    def per_class(which, weight):
        return jnp.zeros(classes, jnp.int32).at[which].add(weight)

    return Counts(
        loss=jnp.sum(jnp.where(mask > 0, losses, 0.0)),
        correct=per_class(labels, real * (guess == labels)),
        predicted=per_class(guess, real),
        actual=per_class(labels, real),
    )


def summarise(counts: list[Counts]) -> dict[str, float]:
    """Loss, accuracy and macro-F1 over all batches.

    Macro-F1 is the plain mean of the classes' F1; a class that neither occurs nor is predicted
    counts as 0, as in scikit-learn with all labels given.
    """
    loss = float(np.sum([np.asarray(c.loss, np.float64) for c in counts]))
    correct, predicted, actual = (
        np.sum([np.asarray(getattr(c, name), np.int64) for c in counts], axis=0)
        for name in ("correct", "predicted", "actual")
    )
    total = max(int(actual.sum()), 1)
    f1 = 2 * correct / np.maximum(predicted + actual, 1)
    return {
        "loss": loss / total,
        "accuracy": float(correct.sum() / total),
        "macro_f1": float(f1.mean()),
        "images": int(actual.sum()),
    }
