"""Quantiles of the running scores, by hand."""

import json

import numpy as np
import pytest

from barter_jax.core.score_summary import score_quantiles
from barter_jax.core.scores import init_unit_state
from barter_jax.core.topology import Topology

LOGICAL = Topology((2, 1), (5, 3))
PHYSICAL = Topology((2, 2), (8, 4))
# After one sample the averages are a (1 - decay) part of it.
DECAY = 0.75


def state_of(pruning, growth):
    """A unit state whose bias-corrected scores are the given ones, padded with zeros."""

    def padded(per_unit):
        return {
            unit: tuple(
                np.pad(np.asarray(x, np.float32) * (1 - DECAY), (0, n - len(x)))
                for x, n in zip(per_unit[unit], PHYSICAL.of(unit), strict=True)
            )
            for unit in per_unit
        }

    state = init_unit_state(PHYSICAL)
    return state._replace(
        pruning=padded(pruning), growth=padded(growth), observed=np.ones((), np.int32)
    )


PRUNING = {"heads": [[4, 8], [2]], "channels": [[5, 1, 3, 2, 4], [10, 30, 20]]}
GROWTH = {"heads": [[1, 3], [7]], "channels": [[1, 2, 3, 4, 10], [6, 6, 6]]}


def test_by_hand():
    found = score_quantiles(state_of(PRUNING, GROWTH), LOGICAL, decay=DECAY, priority="mean")
    assert found == {
        "heads": {
            "pruning": [[4, 5, 6, 7, 8], [2] * 5],
            "growth": [[1, 1.5, 2, 2.5, 3], [7] * 5],
            "priority": [2, 7],
        },
        "channels": {
            "pruning": [[1, 2, 3, 4, 5], [10, 15, 20, 25, 30]],
            "growth": [[1, 2, 3, 4, 10], [6] * 5],
            "priority": [4, 6],
        },
    }
    assert json.loads(json.dumps(found)) == found


def test_the_priority_is_the_policys():
    found = score_quantiles(state_of(PRUNING, GROWTH), LOGICAL, decay=DECAY, priority="top4_mean")
    assert found["channels"]["priority"] == [4.75, 6]


def test_six_digits_are_kept():
    growth = {**GROWTH, "heads": [[1 / 3, 1 / 3], [2e-9 / 3]]}
    found = score_quantiles(state_of(PRUNING, growth), LOGICAL, decay=DECAY, priority="max")
    assert found["heads"]["priority"] == [0.333333, 6.66667e-10]


def test_a_score_that_is_not_finite():
    growth = {**GROWTH, "channels": [[1, 2, np.nan, 4, 10], [6, 6, 6]]}
    with pytest.raises(FloatingPointError, match="growth scores of the channels of layer 0"):
        score_quantiles(state_of(PRUNING, growth), LOGICAL, decay=DECAY, priority="mean")


def test_padding_is_not_looked_at():
    state = state_of(PRUNING, GROWTH)
    state.growth["channels"][1][3] = np.nan
    assert score_quantiles(state, LOGICAL, decay=DECAY, priority="mean")
