"""The arithmetic, on numbers worked out by hand."""

import numpy as np
import pytest

from barter_jax.benchmarking import statistics
from barter_jax.benchmarking.rounds import interleave
from barter_jax.benchmarking.statistics import Blocks


def test_spread():
    # Of 0, 10, ... 100 the percentiles are the values themselves.
    assert statistics.spread(range(0, 101, 10)) == {"median": 50, "p10": 10, "p90": 90}
    assert statistics.spread([7.0]) == {"median": 7, "p10": 7, "p90": 7}
    found = statistics.spread([1.0, 2.0])
    assert found == pytest.approx({"median": 1.5, "p10": 1.1, "p90": 1.9})


def test_milliseconds_of_a_step():
    np.testing.assert_allclose(Blocks(4, (0.1, 0.2)).step_ms, [25, 50])


@pytest.mark.parametrize(
    "function, arguments, result",
    [
        (statistics.images_per_second, (128, 64.0), 2000),
        (statistics.reduction_percent, (2.197, 11.75), 81.302),
        (statistics.reduction_percent, (3, 2), -50),
        # The paper's Table 17: 1.989 s of updates in 100 epochs of 1,054 steps.
        (statistics.schedule_weighted_ms, (1989.0, 105_400, 33.0), 33.01887),
        (statistics.schedule_weighted_ms, (0.0, 10, 5.0), 5),
        (statistics.schedule_share, (100.0, 10, 90.0), 0.1),
        (statistics.block_steps, (0.02,), 3),
        (statistics.block_steps, (0.05,), 1),
        (statistics.block_steps, (5.0,), 1),
        (statistics.block_steps, (1e-9,), 1000),
        (statistics.block_steps, (0.0,), 1000),
    ],
)
def test_figures(function, arguments, result):
    assert function(*arguments) == pytest.approx(result, rel=1e-5)


def test_interleaving_times_each_task_by_its_own_steps():
    """A clock that only the tasks advance: 2 ms and 5 ms a step, the second slower in round 1."""
    now, ran, began = [0.0], [], []

    def task(name, ms):
        def run(steps):
            ran.append((name, steps))
            now[0] += steps * (ms + (name == "b" and len(began) == 2)) / 1e3

        return run

    blocks = interleave(
        [(task("a", 2), 10), (task("b", 5), 4)], 3, started=began.append, clock=lambda: now[0]
    )
    assert began == [0, 1, 2]
    assert [name for name, _ in ran] == ["a", "b", "b", "a", "b", "a"]
    assert set(ran) == {("a", 10), ("b", 4)}
    np.testing.assert_allclose(blocks[0].step_ms, [2, 2, 2])
    np.testing.assert_allclose(blocks[1].step_ms, [5, 6, 5])
