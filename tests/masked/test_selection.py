"""The k largest, exactly, whatever ties."""

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from barter_jax.masked.batching import over_layers
from barter_jax.masked.selection import drop_and_grow, top_k, top_k_of_each

choose = jax.jit(top_k)
exchange = jax.jit(drop_and_grow)
SIZE = 12
# Few values, so that many tie; both zeros, infinities and NaN among them.
values = st.sampled_from([0.0, -0.0, 1.0, -1.0, 1e-40, -1e-40, 3.5, np.inf, -np.inf, np.nan])
arrays = st.lists(values, min_size=SIZE, max_size=SIZE).map(lambda v: np.array(v, np.float32))
masks = st.lists(st.booleans(), min_size=SIZE, max_size=SIZE).map(np.array)


def by_sorting(scores, k, eligible):
    """NaN first, then descending, then by index."""
    # XLA on CPUs takes numbers too small to be normal for zero.
    scores = np.where(np.abs(scores) < 1e-37, 0, scores)
    order = sorted(np.flatnonzero(eligible), key=lambda i: (not np.isnan(scores[i]), -scores[i], i))
    chosen = np.zeros(len(scores), bool)
    chosen[order[: max(k, 0)]] = True
    return chosen


@given(arrays, masks, st.integers(-2, SIZE + 2))
def test_as_by_sorting(scores, eligible, k):
    found = choose(scores, k, eligible)
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(found, by_sorting(scores, k, eligible))


def test_ties_go_to_the_first_in_row_major_order():
    scores = np.array([[1.0, 2.0], [1.0, 1.0]], np.float32)
    np.testing.assert_array_equal(choose(scores, 3), [[True, True], [True, False]])
    zeros = np.zeros((3, 4), np.float32)
    np.testing.assert_array_equal(np.flatnonzero(choose(zeros, 5)), range(5))


def test_a_large_array_of_distinct_values():
    scores = np.random.default_rng(0).permutation(50_000).astype(np.float32) - 25_000
    for k in (1, 777, 49_999):
        np.testing.assert_array_equal(choose(scores, k), scores >= np.sort(scores)[-k])


def test_each_column_by_itself():
    scores = np.array([[1, 5, 0], [2, 4, 0], [3, 6, 0]], np.float32)
    found = top_k_of_each(scores, np.array([1, 2, 2]))
    np.testing.assert_array_equal(found, [[0, 1, 1], [0, 0, 1], [1, 1, 0]])
    found = top_k_of_each(scores, 1, scores < 5)
    np.testing.assert_array_equal(found, [[0, 0, 1], [0, 1, 0], [1, 0, 0]])


@given(arrays, arrays, masks, st.integers(0, SIZE))
def test_the_count_stays_whatever_the_scores(keep, growth, active, amount):
    amount = min(amount, active.sum())
    assert np.sum(exchange(active, keep, growth, amount)) == active.sum()


def test_many_exact_zeros_enable_no_more_than_planned():
    active = np.arange(12) < 6
    zeros = np.zeros(12, np.float32)
    found = np.asarray(exchange(active, zeros, zeros, 4))
    # Kept are 0 and 1; of all others, equal too, the first four.
    np.testing.assert_array_equal(np.flatnonzero(found), range(6))


def test_what_was_dropped_may_be_grown_again():
    active = np.array([True, True, False])
    found = exchange(active, np.float32([1, 2, 9]), np.float32([5, 9, 3]), 1)
    np.testing.assert_array_equal(found, [True, True, False])


@pytest.mark.parametrize("shapes", [[(2, 3), (4, 2), (2, 3)], [(5,)]])
def test_over_layers_is_a_loop(shapes):
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    factors = list(range(2, 2 + len(shapes)))
    found = over_layers(lambda a, f: {"scaled": a * f, "total": a.sum()}, arrays, factors)
    for one, array, factor in zip(found, arrays, factors, strict=True):
        np.testing.assert_allclose(one["scaled"], array * factor, rtol=1e-6)
        np.testing.assert_allclose(one["total"], array.sum(), rtol=1e-5)
