"""Means, deviations, pairs, ranks and Pareto fronts, by hand."""

import math

import pytest

from barter_jax.reporting.statistics import Difference, Spread, difference, pareto, ranks, spread


def test_spread():
    found = spread([1.0, 2.0, 6.0])
    # Deviations -2, -1 and 3: 14 / 2.
    assert found == Spread(3.0, pytest.approx(math.sqrt(7)), 3)
    assert spread([4.0]) == Spread(4.0, None, 1)
    assert spread([]) is None


def test_what_is_not_finite_does_not_count():
    assert spread([1.0, None, math.nan, 3.0, math.inf]) == Spread(2.0, pytest.approx(2**0.5), 2)
    assert spread([math.nan]) is None
    assert difference({0: math.nan}, {0: 1.0}) is None


def test_pairs_of_equal_seeds():
    found = difference({0: 5.0, 1: 7.0, 2: 100.0}, {1: 4.0, 0: 4.0, 3: -100.0})
    # 1 and 3: seeds 2 and 3 have no partner.
    assert found == Difference(2.0, pytest.approx(2**0.5), 2)
    assert difference({7: 5.0}, {7: 4.0}) == Difference(1.0, None, 1)


def test_means_where_no_seed_is_shared():
    assert difference({0: 5.0, 1: 7.0}, {2: 1.0, 3: 4.0}) == Difference(3.5, None, 0)
    assert difference({}, {0: 1.0}) is None


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([3.0, 1.0, 2.0], [1, None, 2]),
        ([3.0, 3.0, 2.0, 1.0], [1, 1, None, None]),  # two are best, none is second
        ([3.0, 2.0, 2.0], [1, 2, 2]),
        ([3.0, None, 2.0], [1, None, 2]),
        ([3.0], [None]),
        ([None, 3.0], [None, None]),
    ],
)
def test_ranks(values, expected):
    assert ranks(values) == expected


def test_pareto():
    points = [(2.0, 50.0), (1.0, 40.0), (3.0, 45.0), (2.0, 49.0), (4.0, 60.0), (5.0, 60.0)]
    assert pareto(points) == [1, 0, 4]
    assert pareto([(1.0, 1.0), (1.0, 1.0)]) == [0, 1]
    assert pareto([]) == []
