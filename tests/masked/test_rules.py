"""Every update rule on arrays small enough to do by hand, and counts on random ones."""

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from barter_jax.masked import rigl, s2vite, snfs, srigl
from barter_jax.masked import set as set_
from tests.masked import quick

F = np.float32


def mask(*rows):
    return np.array(rows, bool)


# --- RigL and SET --------------------------------------------------------------------------

ACTIVE = mask([1, 1, 0], [1, 1, 0])
WEIGHTS = np.array([[0.1, -0.5, 0], [0.2, 0.9, 0]], F)


def test_rigl_by_hand():
    # Half of four go: 0.1 and 0.2. The largest gradients among all but the two kept: 5, of one that
    # was just dropped, and -3.
    gradient = np.array([[5, 0, 1], [0.5, 9, -3]], F)
    found = quick.jit(rigl.update)(ACTIVE, WEIGHTS, gradient, F(0.5))
    np.testing.assert_array_equal(found, mask([1, 1, 0], [0, 1, 1]))


def test_rigl_rounds_down():
    gradient = np.array([[0, 0, 7], [0, 0, 7]], F)
    for fraction, grown in ((0.24, 0), (0.49, 1), (0.5, 2)):
        found = quick.jit(rigl.update)(ACTIVE, WEIGHTS, gradient, F(fraction))
        assert np.sum(found & ~ACTIVE) == grown and np.sum(found) == 4


def test_rigl_with_gradients_of_zero_enables_no_more():
    found = quick.jit(rigl.update)(ACTIVE, WEIGHTS, np.zeros_like(WEIGHTS), F(0.5))
    # Kept are 0.5 and 0.9; of the others, all alike, the first two in order.
    np.testing.assert_array_equal(found, mask([1, 1, 1], [0, 1, 0]))


def test_set_drops_the_smallest_and_grows_evenly_at_random():
    update = quick.jit(jax.vmap(set_.update, in_axes=(None, None, 0, None)))
    draws = np.random.default_rng(0).random((600, 2, 3)).astype(F)
    found = np.asarray(update(ACTIVE, WEIGHTS, draws, F(0.5)))
    assert np.all(found.sum((1, 2)) == 4)
    assert np.all(found[:, 0, 1]) and np.all(found[:, 1, 1])
    # Two of the four others, those just dropped among them, each half of the time.
    others = found.mean(0)[[0, 0, 1, 1], [0, 2, 0, 2]]
    np.testing.assert_allclose(others, 0.5, atol=0.08)


# --- SNFS ----------------------------------------------------------------------------------


def test_snfs_by_hand():
    active = [mask([1, 1], [0, 0]), mask([1, 1, 0], [1, 1, 0])]
    weights = [np.array([[1, -2], [0, 0]], F), np.array([[1, 2, 0], [-3, 4, 0]], F)]
    ema = [np.array([[0.2, -0.4], [-0.9, 0.1]], F), np.array([[0.1, 0.1, 2.7], [0.1, 0.1, 2.5]], F)]
    # One of two and two of four go. Means over the active are 0.3 and 0.1: three quarters of three,
    # 2.25, against 0.75; the larger remainder takes the third.
    found = quick.jit(snfs.update)(active, weights, ema, F(0.5))
    np.testing.assert_array_equal(found[0], mask([1, 1], [1, 0]))
    np.testing.assert_array_equal(found[1], mask([0, 0, 1], [1, 1, 0]))


def test_snfs_drop_rounds_up():
    active = [mask([1, 1, 1, 0])]
    found = quick.jit(snfs.update)(
        active, [np.array([[3, 2, 1, 0]], F)], [np.array([[0, 0, 0, 9]], F)], F(0.1)
    )
    np.testing.assert_array_equal(found[0], mask([1, 1, 0, 1]))


def test_a_running_average():
    ema = snfs.average(np.array([1.0, 2.0], F), np.array([3.0, 0.0], F), 0.9)
    np.testing.assert_allclose(ema, [1.2, 1.8], rtol=1e-6)


share_out = quick.jit(snfs.share_out)


@pytest.mark.parametrize(
    ("total", "weights", "capacity", "fallback", "expected"),
    [
        # 5 and 5: the first has room for 2; what it leaves is shared 1 : 4.
        (15, [5, 1, 4], [2, 20, 20], [1, 1, 1], [2, 3, 10]),
        # Full one after the other.
        (9, [8, 2, 1], [3, 3, 9], [1, 1, 1], [3, 3, 3]),
        # A part without weight takes what nobody else can.
        (6, [1, 0], [2, 9], [1, 1], [2, 4]),
        # Nothing to go by: as much as was dropped.
        (6, [0, 0], [9, 9], [4, 2], [4, 2]),
        (6, [np.nan, 1], [9, 9], [4, 2], [4, 2]),
        # Halves: the earlier part.
        (1, [1, 1], [3, 3], [1, 1], [1, 0]),
        (0, [1, 1], [3, 3], [0, 0], [0, 0]),
        (6, [1, 1], [3, 3], [3, 3], [3, 3]),
    ],
)
def test_shares_by_hand(total, weights, capacity, fallback, expected):
    found = share_out(total, np.array(weights, F), np.array(capacity), np.array(fallback))
    assert list(found) == expected


@given(
    st.lists(
        st.tuples(
            st.one_of(st.floats(0, 1e6, width=32), st.sampled_from([0.0, 1.0])),
            st.integers(0, 200_000),
        ),
        min_size=4,
        max_size=4,
    ),
    st.floats(0, 1),
)
def test_shares_add_up_and_fit(parts, part_of_all):
    weights, capacity = (np.array(x) for x in zip(*parts, strict=True))
    total = int(part_of_all * capacity.sum())
    found = np.asarray(share_out(total, weights.astype(F), capacity, capacity))
    assert found.sum() == total
    assert np.all(found >= 0) and np.all(found <= capacity)


# --- SRigL ---------------------------------------------------------------------------------

# Six inputs, four neurons with a fan-in of 2; column by column.
SRIGL_ACTIVE = mask([1] * 4, [1] * 4, [0] * 4, [0] * 4, [0] * 4, [0] * 4)
SRIGL_WEIGHTS = np.zeros((6, 4), F)
SRIGL_WEIGHTS[:2] = [[9, 7, 5, 0.3], [8, 6, 0.1, -0.2]]
SRIGL_GRADIENT = np.zeros((6, 4), F)
SRIGL_GRADIENT[5, 0], SRIGL_GRADIENT[4, 0], SRIGL_GRADIENT[3, 1] = 10, 9, -8
SRIGL_GRADIENT[2, 2], SRIGL_GRADIENT[3, 2] = 1, 0.5
SRIGL_GRADIENT[3, 3], SRIGL_GRADIENT[5, 3] = 0.1, 0.2


def srigl_update(gamma, fraction=0.375, weights=SRIGL_WEIGHTS, gradient=SRIGL_GRADIENT):
    limits = srigl.Limits.of((6, 4), 8, gamma)
    return np.asarray(quick.jit(srigl.update)(SRIGL_ACTIVE, weights, gradient, F(fraction), limits))


def test_srigl_without_ablation_keeps_the_fan_in():
    # 3 of 8 go: 0.1, 0.2, 0.3. The third column grows one, the fourth two, by their gradients.
    found = srigl_update(gamma=0)
    expected = SRIGL_ACTIVE.copy()
    expected[1, 2], expected[2, 2] = False, True
    expected[:, 3] = mask([0, 0, 0, 1, 0, 1])
    np.testing.assert_array_equal(found, expected)


def test_srigl_ablates_neurons_with_few_salient_weights():
    # Salient are the five largest weights and the three largest gradients: 4, 3, 1 and 0 of the
    # columns. Two neurons of six inputs could hold 8 weights, so three stay; k' = floor(8 / 3).
    found = srigl_update(gamma=1.0)
    assert list(found.sum(0)) == [2, 2, 2, 0]
    np.testing.assert_array_equal(found[:, :2], SRIGL_ACTIVE[:, :2])
    np.testing.assert_array_equal(found[:, 2], mask([1, 0, 1, 0, 0, 0])[0])


def test_srigl_threshold_is_a_part_of_the_fan_in():
    # With k = 2, 0.95 asks for floor(1.9) = 1, and so does any smaller gamma but 0.
    assert srigl.Limits.of((6, 4), 8, 0.95) == (8, 1, 2)
    assert srigl.Limits.of((6, 4), 8, 0.1) == (8, 1, 2)
    assert srigl.Limits.of((256, 768), 19_660, 0.95).salient == 23
    assert srigl.Limits.of((6, 4), 24, 0.3).place == 3
    assert list(srigl_update(gamma=0.3).sum(0)) == [2, 2, 2, 0]


def test_srigl_trims_a_neuron_to_the_fan_in_by_magnitude():
    active = mask([1, 1], [1, 0], [1, 0], [0, 0])
    weights = np.array([[3, 9], [5, 0], [4, 0], [0, 0]], F)
    # Four weights, two neurons, k' = 2; nothing is to go but the third of the first neuron.
    found = quick.jit(srigl.update)(
        active, weights, np.array([[0, 0], [0, 1], [0, 3], [0, 2]], F), F(0.0),
        srigl.Limits.of((4, 2), 4, 0),
    )  # fmt: skip
    np.testing.assert_array_equal(found, mask([0, 1], [1, 0], [1, 1], [0, 0]))


def test_srigl_an_ablated_neuron_comes_back_by_its_gradients():
    active = SRIGL_ACTIVE.copy()
    active[:, 3] = False
    weights = np.where(active, SRIGL_WEIGHTS, 0)
    gradient = SRIGL_GRADIENT.copy()
    gradient[2:4, 3] = 20
    limits = srigl.Limits.of((6, 4), 8, 0.5)
    found = np.asarray(quick.jit(srigl.update)(active, weights, gradient, F(0.5), limits))
    # Salient: 9, 8, 7 and the gradients 20, 20, 10; the third column has none and goes.
    np.testing.assert_array_equal(found.sum(0), [2, 2, 0, 2])
    np.testing.assert_array_equal(found[:, 3], mask([0, 0, 1, 1, 0, 0])[0])


def test_srigl_weights_of_zero_are_not_kept():
    weights = SRIGL_WEIGHTS.copy()
    weights[0, 0] = 0
    found = srigl_update(gamma=0, fraction=0.0, weights=weights)
    np.testing.assert_array_equal(found[:, 0], mask([0, 1, 0, 0, 0, 1])[0])


def test_srigl_starts_with_the_fan_in():
    found = np.asarray(srigl.initial(np.abs(SRIGL_WEIGHTS), 11))
    np.testing.assert_array_equal(found, SRIGL_ACTIVE)


# --- S2ViTE --------------------------------------------------------------------------------


def test_s2vite_by_hand():
    # ceil(0.3 * 3) = 1 goes: the second. The largest gradient among the others but those kept.
    found = quick.jit(s2vite.update)(
        mask([1, 1, 1, 0, 0])[0], F([3, 1, 2, 0, 0]), F([9, 1, 9, 2, 3]), F(0.3)
    )
    np.testing.assert_array_equal(found, mask([1, 0, 1, 0, 1])[0])


def test_s2vite_what_was_dropped_returns_where_nothing_else_has_a_gradient():
    active = mask([1, 1, 1, 0, 0])[0]
    found = quick.jit(s2vite.update)(active, F([3, 1, 2, 0, 0]), F([9, 1, 9, 0, 0]), F(0.3))
    np.testing.assert_array_equal(found, active)


# --- counts, whatever the values -----------------------------------------------------------

SHAPES = [(6, 8), (5, 4), (6, 8)]
seeds = st.integers(0, 2**31)
RULES = {
    "set": lambda a, w, g, f: [set_.update(*x, f) for x in zip(a, w, g, strict=True)],
    "rigl": lambda a, w, g, f: [rigl.update(*x, f) for x in zip(a, w, g, strict=True)],
    "snfs": snfs.update,
}
compiled = {name: quick.jit(rule) for name, rule in RULES.items()}


def drawn(seed, density):
    """Masks at about a density, weights and gradients with many zeros."""
    rng = np.random.default_rng(seed)
    active = [rng.random(s) < density for s in SHAPES]
    values = [
        [(rng.standard_normal(s) * rng.integers(0, 2, s)).astype(F) for s in SHAPES]
        for _ in range(2)
    ]
    return active, *values


@pytest.mark.parametrize("name", RULES)
@given(seed=seeds, density=st.floats(0.05, 0.95), fractions=st.lists(st.floats(0, 1), max_size=4))
def test_counts_stay_through_any_updates(name, seed, density, fractions):
    active, weights, gradients = drawn(seed, density)
    before = [a.sum() for a in active]
    for fraction in fractions:
        active = compiled[name](active, weights, gradients, F(fraction))
        weights = [np.where(a, w, 0) for a, w in zip(active, weights, strict=True)]
        weights, gradients = gradients, weights
    after = [np.sum(a) for a in active]
    assert sum(after) == sum(before)
    if name != "snfs":
        assert after == before


def some_srigl(active, weights, gradient, fraction, limits):
    return srigl.update(active, weights, gradient, fraction, srigl.Limits(*limits))


compiled_srigl = quick.jit(some_srigl)
start_srigl = quick.jit(srigl.initial)


@given(
    seed=seeds,
    density=st.floats(0.05, 0.95),
    gamma=st.sampled_from([0.0, 0.3, 0.95, 1.0]),
    fractions=st.lists(st.floats(0, 1), max_size=4),
)
def test_the_fan_in_is_constant_through_any_updates(seed, density, gamma, fractions):
    shape = (12, 8)
    budget = max(round(density * 96), 8)
    rng = np.random.default_rng(seed)
    active = np.asarray(start_srigl(rng.random(shape).astype(F), budget))
    for fraction in fractions:
        weights = np.where(active, rng.standard_normal(shape), 0).astype(F)
        gradient = (rng.standard_normal(shape) * rng.integers(0, 2, shape)).astype(F)
        limits = srigl.Limits.of(shape, budget, gamma)
        active = np.asarray(compiled_srigl(active, weights, gradient, F(fraction), tuple(limits)))
    fans = active.sum(0)
    alive = np.sum(fans > 0)
    assert alive >= min(-(-budget // 12), 8)
    assert set(fans[fans > 0]) == {budget // alive}
    assert budget - alive < active.sum() <= budget
    if gamma == 0:
        assert alive == 8
