"""The running scores of a topology update in a few numbers a layer, to be kept for later.

A run cannot keep every unit's score at every update; five quantiles a layer and the layer's growth
priority tell how the decision came about. Which numbers to keep is this project's choice.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from barter_jax.core import policy, scores
from barter_jax.core.scores import UnitState
from barter_jax.core.topology import UNITS, Topology

QUANTILES = (0.0, 0.25, 0.5, 0.75, 1.0)
# Significant digits that are kept: more than can be seen, fewer than a float has.
DIGITS = 6


def score_quantiles(
    state: UnitState, topology: Topology, *, decay: float, priority: str
) -> dict[str, dict[str, list[Any]]]:
    """What the policy goes by at an update, layer by layer. Pure, on the host.

    Args:
      state: the unit state before the update; arrays may be padded beyond the logical counts.
      topology: the logical counts before the update.
      decay: beta of the running averages, for the bias correction.
      priority: a key of `policy.PRIORITIES`.

    Returns:
      For each unit type `{"pruning": [[q0, q25, q50, q75, q100], ...], "growth": the same,
      "priority": [p, ...]}`, an entry a layer: quantiles of the bias-corrected scores over the
      layer's units, interpolated linearly, and the layer's growth priority. Python floats of six
      significant digits, ready for JSON.

    Raises:
      FloatingPointError: a score is not finite: training has diverged.
    """
    host = jax.tree.map(np.asarray, state)
    corrected = {
        name: scores.corrected(getattr(host, name), host.observed, decay)
        for name in ("pruning", "growth")
    }
    found: dict[str, dict[str, list[Any]]] = {}
    for unit in UNITS:
        layers = {
            name: [x[:n] for x, n in zip(values[unit], topology.of(unit), strict=True)]
            for name, values in corrected.items()
        }
        for name, values in layers.items():
            for layer, of_layer in enumerate(values):
                if not np.all(np.isfinite(of_layer)):
                    raise FloatingPointError(f"{name} scores of the {unit} of layer {layer}")
        found[unit] = {
            **{name: [_quantiles(x) for x in values] for name, values in layers.items()},
            "priority": [_short(policy.PRIORITIES[priority](x)) for x in layers["growth"]],
        }
    return found


def _quantiles(values: np.ndarray) -> list[float]:
    return [_short(q) for q in np.quantile(values, QUANTILES)]


def _short(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")
