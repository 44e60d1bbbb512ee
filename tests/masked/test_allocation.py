"""Densities of layers by hand, and counts that add up exactly."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from barter_jax.errors import UserError
from barter_jax.masked.allocation import active_counts, densities


def test_erdos_renyi_by_hand():
    # 4x4: 8/16 = 1/2; 2x16: 18/32. Sum of size * raw = 8 + 18 = 26; a quarter of 48 weights is 12.
    found = densities([(4, 4), (2, 16)], 0.25)
    np.testing.assert_allclose(found, [0.5 * 12 / 26, 18 / 32 * 12 / 26])
    # 3.69 and 8.31 weights.
    assert active_counts([(4, 4), (2, 16)], 0.25) == (4, 8)


def test_the_two_dimensional_shape_of_fused_projections_counts():
    """As three 4x4 or as one 4x12: the sums of dimensions differ, so do the densities."""
    apart = densities([(4, 4)] * 3 + [(4, 8)], 0.3)
    fused = densities([(4, 12), (4, 8)], 0.3)
    assert apart[0] / apart[3] == pytest.approx((8 / 16) / (12 / 32))
    assert fused[0] / fused[1] == pytest.approx((16 / 48) / (12 / 32))


def test_layers_above_one_become_dense_one_after_the_other():
    # Raw 2 (1x1), 1.1 (1x10), 0.2 (10x10): sums 2, 11, 20 of 111 weights, 55.5 to spread.
    # Scale 55.5 / 33 lifts the first two above 1. The largest is filled: (55.5 - 1) / 31 still
    # lifts the second; with both, (55.5 - 11) / 20 * 0.2 is left for the third.
    found = densities([(1, 1), (1, 10), (10, 10)], 0.5)
    np.testing.assert_allclose(found, [1, 1, 0.445])
    # round(55.5) = 56.
    assert active_counts([(1, 1), (1, 10), (10, 10)], 0.5) == (1, 10, 45)


def test_uniform():
    assert densities([(4, 4), (2, 16)], 0.3, "uniform") == (0.3, 0.3)
    # 4.8 and 9.6 of round(14.4) = 14: the larger remainder wins.
    assert active_counts([(4, 4), (2, 16)], 0.3, "uniform") == (5, 9)


def test_full_density():
    for allocation in ("erk", "uniform"):
        assert active_counts([(4, 4), (2, 16)], 1.0, allocation) == (16, 32)


sizes = st.integers(3, 40)


@given(
    st.lists(st.tuples(sizes, sizes), min_size=1, max_size=6),
    st.floats(0.15, 1.0),
    st.sampled_from(["erk", "uniform"]),
)
def test_counts_are_exact_and_fit(shapes, density, allocation):
    counts = active_counts(shapes, density, allocation)
    each = [math.prod(shape) for shape in shapes]
    assert sum(counts) == round(density * sum(each))
    for count, size, d in zip(counts, each, densities(shapes, density, allocation), strict=True):
        assert 1 <= count <= size
        # Rounding, and the rounded total, move a layer by little more than one weight.
        assert abs(count - d * size) < 2


@pytest.mark.parametrize(
    ("density", "allocation", "message"),
    [
        (0.0, "erk", r"density must be in \(0, 1\], got 0"),
        (1.5, "erk", r"density must be in \(0, 1\], got 1.5"),
        (0.5, "ER", "allocation must be one of erk, uniform, got 'ER'"),
        (0.01, "uniform", "density=0.01 leaves a layer of 16 weights without any: raise it"),
    ],
)
def test_mistakes_are_named(density, allocation, message):
    with pytest.raises(UserError, match=message):
        active_counts([(4, 4), (10, 100)], density, allocation)
