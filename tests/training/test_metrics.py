"""Counts that add up over batches, against scikit-learn on all of them at once."""

import hypothesis.strategies as st
import jax
import numpy as np
import pytest
from hypothesis import given
from sklearn.metrics import accuracy_score, f1_score, log_loss

from barter_jax.training import metrics

count = jax.jit(metrics.count)
BATCH = 8


@given(st.integers(0, 2**32 - 1), st.integers(2, 6), st.integers(1, 30), st.integers(1, 6))
def test_they_agree_with_scikit_learn(seed, classes, images, present):
    rng = np.random.default_rng(seed)
    logits = 3 * rng.standard_normal((images, classes)).astype(np.float32)
    # Some classes may neither occur nor be predicted.
    present = min(present, classes)
    logits[:, present:] -= 50
    labels = rng.integers(0, present, images).astype(np.int32)
    found = []
    for start in range(0, images, BATCH):
        part = slice(start, start + BATCH)
        real = len(labels[part])
        # What stands in the padding is of no account, whatever it is.
        padded = np.full((BATCH, classes), np.nan, np.float32)
        padded[:real] = logits[part]
        padded_labels = np.full(BATCH, classes - 1, np.int32)
        padded_labels[:real] = labels[part]
        found.append(count(padded, padded_labels, (np.arange(BATCH) < real).astype(np.float32)))
    summary = metrics.summarise(found)

    guess = logits.argmax(-1)
    every = list(range(classes))
    exact = logits.astype(np.float64)
    probabilities = np.exp(exact - exact.max(-1, keepdims=True))
    probabilities /= probabilities.sum(-1, keepdims=True)
    assert summary["images"] == images
    assert summary["accuracy"] == pytest.approx(accuracy_score(labels, guess))
    assert summary["macro_f1"] == pytest.approx(
        f1_score(labels, guess, average="macro", labels=every, zero_division=0)
    )
    assert summary["loss"] == pytest.approx(
        log_loss(labels, probabilities, labels=every), rel=1e-4, abs=1e-5
    )


def test_by_hand():
    logits = np.log(np.array([[0.5, 0.25, 0.25], [0.5, 0.25, 0.25], [0.1, 0.8, 0.1]], np.float32))
    found = metrics.summarise([count(logits, np.array([0, 1, 1]), np.ones(3))])
    assert found["accuracy"] == pytest.approx(2 / 3)
    assert found["loss"] == pytest.approx(-(np.log(0.5) + np.log(0.25) + np.log(0.8)) / 3, rel=1e-5)
    # Class 0: precision 1/2, recall 1; class 1: precision 1, recall 1/2; class 2: never.
    assert found["macro_f1"] == pytest.approx((2 / 3 + 2 / 3 + 0) / 3)


def test_many_small_batches_are_added_exactly():
    one = metrics.Counts(np.float32(0.1), *([np.array([1, 0], np.int32)] * 3))
    found = metrics.summarise([one] * 100_000)
    assert found["images"] == 100_000
    assert found["loss"] == pytest.approx(np.float64(np.float32(0.1)), rel=1e-12)
