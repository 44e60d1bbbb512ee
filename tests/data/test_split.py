"""The validation split."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from barter_jax.data.split import stratified_split
from barter_jax.errors import UserError

LABELS = st.lists(st.integers(0, 5), min_size=2, max_size=80).map(np.array)
FRACTIONS = st.floats(0.01, 0.99)


def split_or_none(labels, fraction, seed):
    try:
        return stratified_split(labels, fraction, seed)
    except UserError as error:
        assert "leaves no validation image" in str(error)
        return None


@given(LABELS, FRACTIONS, st.integers(0, 2**40))
def test_disjoint_exhaustive_sorted_and_stratified(labels, fraction, seed):
    split = split_or_none(labels, fraction, seed)
    if split is None:
        return
    train, validation = split
    assert sorted([*train, *validation]) == list(range(len(labels)))
    assert list(train) == sorted(train) and list(validation) == sorted(validation)
    for label in np.unique(labels):
        total = np.sum(labels == label)
        held = np.sum(labels[validation] == label)
        assert held <= total - 1
        assert held == total - 1 or abs(held - fraction * total) < 1


@given(LABELS, FRACTIONS, st.integers(0, 100))
def test_a_function_of_the_seed(labels, fraction, seed):
    first, again = split_or_none(labels, fraction, seed), split_or_none(labels, fraction, seed)
    if first is not None:
        np.testing.assert_array_equal(first[0], again[0])
        np.testing.assert_array_equal(first[1], again[1])


def test_another_seed_holds_out_other_images():
    labels = np.repeat(np.arange(4), 25)
    splits = [stratified_split(labels, 0.2, seed)[1] for seed in range(10)]
    assert len({tuple(split) for split in splits}) == 10


def test_counts_by_hand():
    # Shares of 0.1: 1.4, 1.4, 0.2. Three in all: one, one, and the largest remainder, class 0.
    labels = np.repeat([0, 1, 2], [14, 14, 2])
    validation = stratified_split(labels, 0.1, 0)[1]
    assert list(np.bincount(labels[validation], minlength=3)) == [2, 1, 0]


def test_every_class_keeps_an_image_to_train_on():
    labels = np.array([0, 0, 1, 2, 2, 2])
    train, validation = stratified_split(labels, 0.95, 0)
    assert list(np.bincount(labels[train])) == [1, 1, 1]
    assert list(np.bincount(labels[validation])) == [1, 0, 2]


def test_labels_without_images_are_no_obstacle():
    labels = np.array([1] * 5 + [4] * 5)
    validation = stratified_split(labels, 0.4, 0)[1]
    assert list(np.bincount(labels[validation])) == [0, 2, 0, 0, 2]


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.1, 1.5, float("nan")])
def test_fraction_out_of_range(fraction):
    with pytest.raises(UserError, match=r"data\.validation_fraction=.* is not between 0 and 1"):
        stratified_split(np.zeros(10, int), fraction, 0)


@pytest.mark.parametrize(
    ("labels", "fraction"), [([0, 1, 2], 0.5), ([0, 0, 0, 0], 0.1), ([0], 0.9)]
)
def test_no_validation_image(labels, fraction):
    with pytest.raises(UserError, match=r"data\.validation_fraction=.* leaves no validation image"):
        stratified_split(np.array(labels), fraction, 0)


def test_no_training_image():
    with pytest.raises(UserError, match="no (validation|training) image of the 0"):
        stratified_split(np.zeros(0, int), 0.5, 0)
