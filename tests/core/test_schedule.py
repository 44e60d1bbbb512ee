import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from barter_jax.core.schedule import PlannedUpdate, largest_remainder, plan_updates
from barter_jax.core.topology import Budget


@pytest.mark.parametrize(
    ("total", "weights", "expected"),
    [
        (10, [3.0, 3.0, 4.0], [3, 3, 4]),
        (7, [5.0, 3.0, 2.0], [4, 2, 1]),  # shares 3.5, 2.1, 1.4
        (8, [5.0, 3.0, 2.0], [4, 2, 2]),  # shares 4.0, 2.4, 1.6
        (2, [1.0, 1.0, 1.0], [1, 1, 0]),  # ties go to the earlier
        (0, [1.0, 2.0], [0, 0]),
        (5, [0.3], [5]),
    ],
)
def test_largest_remainder_by_hand(total, weights, expected):
    assert largest_remainder(total, weights) == expected


@given(
    total=st.integers(0, 5000),
    weights=st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=60),
)
@settings(max_examples=200)
def test_largest_remainder_is_exact_and_close(total, weights):
    parts = largest_remainder(total, weights)
    assert sum(parts) == total
    for part, weight in zip(parts, weights, strict=True):
        assert abs(part - total * weight / sum(weights)) < 1 + 1e-6


def test_plan_by_hand():
    # Weights 1, 0.854, 0.5, 0.146 (sum 2.5): 10 heads are shares 4, 3.41, 2, 0.59.
    # 3 channels are shares 1.2, 1.02, 0.6, 0.18.
    assert plan_updates(100, 4, 0.1, 0.7, Budget(10, 3)) == (
        PlannedUpdate(10, 4, 1),
        PlannedUpdate(30, 3, 1),
        PlannedUpdate(50, 2, 1),
        PlannedUpdate(70, 1, 0),
    )


fractions = st.tuples(st.floats(0, 1), st.floats(0, 1)).map(sorted)


@given(
    total_steps=st.integers(2, 100_000),
    updates=st.integers(1, 80),
    window=fractions,
    heads=st.integers(0, 300),
    channels=st.integers(0, 3000),
)
@settings(max_examples=300)
def test_plans_add_up_within_the_run(total_steps, updates, window, heads, channels):
    plan = plan_updates(total_steps, updates, *window, Budget(heads, channels))
    assert sum(update.heads for update in plan) == heads
    assert sum(update.channels for update in plan) == channels
    steps = [update.step for update in plan]
    assert steps == sorted(set(steps))
    assert all(1 <= step <= total_steps - 1 for step in steps)
    assert len(plan) <= updates
    if plan:
        assert steps[0] >= min(round(window[0] * total_steps), total_steps - 1)
        assert steps[-1] <= max(round(window[1] * total_steps), 1)


def test_amounts_decay_and_steps_are_even():
    plan = plan_updates(10_000, 20, 0.1, 0.8, Budget(1000, 2000))
    assert len(plan) == 20
    for unit in ("heads", "channels"):
        amounts = [update.amount(unit) for update in plan]
        assert amounts == sorted(amounts, reverse=True)
        assert amounts[0] > 10 * amounts[-1] > 0
    gaps = [b.step - a.step for a, b in zip(plan, plan[1:], strict=False)]
    assert max(gaps) - min(gaps) <= 1
    assert (plan[0].step, plan[-1].step) == (1000, 8000)


def test_a_short_run_merges_updates():
    plan = plan_updates(4, 10, 0.0, 1.0, Budget(7, 40))
    assert [update.step for update in plan] == [1, 2, 3]
    assert sum(update.heads for update in plan) == 7
    assert sum(update.channels for update in plan) == 40


@pytest.mark.parametrize(
    ("total_steps", "updates", "transfers"),
    [(100, 0, Budget(3, 3)), (100, 5, Budget(0, 0)), (1, 5, Budget(3, 3)), (0, 5, Budget(3, 3))],
)
def test_nothing_to_plan(total_steps, updates, transfers):
    assert plan_updates(total_steps, updates, 0.1, 0.8, transfers) == ()


@pytest.mark.parametrize(
    ("updates", "start", "end", "transfers", "message"),
    [
        (5, 0.8, 0.1, Budget(1, 1), "start_fraction"),
        (5, -0.1, 0.5, Budget(1, 1), "start_fraction"),
        (5, 0.1, 1.1, Budget(1, 1), "end_fraction"),
        (5, float("nan"), 0.5, Budget(1, 1), "start_fraction"),
        (-1, 0.1, 0.5, Budget(1, 1), "topology.updates"),
        (5, 0.1, 0.5, Budget(-1, 1), "must not be negative"),
        (5, 0.1, 0.5, Budget(1, -1), "must not be negative"),
    ],
)
def test_plan_refuses_nonsense(updates, start, end, transfers, message):
    with pytest.raises(ValueError, match=message):
        plan_updates(100, updates, start, end, transfers)
