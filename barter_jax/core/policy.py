"""The decision of a topology update: who receives, who gives, who is cloned.

For one unit type, as the paper has it: take the eligible layer with the highest
growth priority as the receiver; prune the eligible units with the lowest running pruning scores
outside it; clone as many parents, those with the highest running growth scores inside it. The
budget is kept exactly. The ablations replace the choice of the receiver, of the donors or of both
by a uniform one.

Pure numpy on the host, on logical units only. Ties break by (layer, index), so every host and
every rerun decides alike.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np


@dataclasses.dataclass(frozen=True)
class Plan:
    """One exchange of units of one type.

    Attributes:
      unit: `"heads"` or `"channels"`.
      receiver: the layer that grows.
      donors: `(layer, index)` of each unit to prune; none of them in the receiver.
      parents: index in the receiver of each unit to clone, one per donor. A unit that stands here
        more than once gets several clones.
    """

    unit: str
    receiver: int
    donors: tuple[tuple[int, int], ...]
    parents: tuple[int, ...]

    def __post_init__(self):
        if len(self.donors) != len(self.parents):
            raise ValueError(f"{len(self.donors)} donors for {len(self.parents)} parents")
        if any(layer == self.receiver for layer, _ in self.donors):
            raise ValueError("a donor lies in the receiving layer")
        if len(set(self.donors)) != len(self.donors):
            raise ValueError("a unit is pruned twice")

    @property
    def amount(self) -> int:
        """How many units move."""
        return len(self.donors)


@dataclasses.dataclass(frozen=True)
class Rule:
    """Which of the two choices of an update are left to chance; `moves` is off for Static."""

    random_receiver: bool = False
    random_donors: bool = False
    moves: bool = True


RULES: dict[str, Rule] = {
    "barter": Rule(),
    "static": Rule(moves=False),
    "random_receiver": Rule(random_receiver=True),
    "random_donor": Rule(random_donors=True),
    "random_pair": Rule(random_receiver=True, random_donors=True),
}

# A layer's growth priority from the growth scores of its active units.
PRIORITIES: dict[str, Callable[[np.ndarray], float]] = {
    "mean": lambda s: float(np.mean(s)),
    "max": lambda s: float(np.max(s)),
    "top4_mean": lambda s: float(np.mean(np.sort(s)[-4:])),
}


def decide(
    rule: Rule,
    unit: str,
    amount: int,
    *,
    pruning: Sequence[np.ndarray],
    growth: Sequence[np.ndarray],
    ages: Sequence[np.ndarray],
    caps: Sequence[int],
    min_units: int,
    min_age: int,
    priority: str,
    rng: np.random.Generator,
    passed_over: int | None = None,
) -> Plan | None:
    """Plans one exchange.

    Args:
      rule: an entry of `RULES`.
      unit: the unit type the arrays below describe.
      amount: units to move, if so many are eligible.
      pruning: running pruning scores D, one float array `[n_l]` a layer.
      growth: running growth scores S, likewise.
      ages: updates since each unit was cloned, likewise; a unit younger than `min_age` neither
        gives nor is cloned.
      caps: the most units each layer may have.
      min_units: the fewest units each layer may have.
      min_age: see `ages`.
      priority: a key of `PRIORITIES`: how a layer's growth scores become its priority.
      rng: consulted by the random rules only.
      passed_over: a layer that must not receive, to ask what would be done without it.

    Returns:
      The plan, which moves fewer than `amount` units where fewer are eligible, or None where
      none can move.

    Raises:
      FloatingPointError: a score is not finite: training has diverged.
    """
    if not rule.moves or amount <= 0:
        return None
    for name, scores in (("pruning", pruning), ("growth", growth)):
        for layer, values in enumerate(scores):
            if not np.all(np.isfinite(values)):
                raise FloatingPointError(f"{name} scores of the {unit} of layer {layer}")

    candidates = {}
    for layer in range(len(growth)):
        room = caps[layer] - len(growth[layer])
        parents = _parents(growth[layer], ages[layer], min_age)
        donors = _donors(layer, pruning, ages, min_units, min_age)
        moved = min(amount, room, len(parents), len(donors))
        if moved > 0 and layer != passed_over:
            candidates[layer] = (moved, parents)
    if not candidates:
        return None

    if rule.random_receiver:
        receiver = int(rng.choice(sorted(candidates)))
    else:
        # Ties break to the lower layer: max() keeps the first of equals.
        receiver = max(sorted(candidates), key=lambda layer: PRIORITIES[priority](growth[layer]))
    moved, parents = candidates[receiver]
    order = rng if rule.random_donors else None
    donors = _donors(receiver, pruning, ages, min_units, min_age, order)
    return Plan(unit, receiver, tuple(donors[:moved]), tuple(parents[:moved]))


def _parents(growth: np.ndarray, ages: np.ndarray, min_age: int) -> list[int]:
    """Eligible parents of a layer, the highest growth score first."""
    eligible = [i for i in range(len(growth)) if ages[i] >= min_age]
    return sorted(eligible, key=lambda i: (-growth[i], i))


def _donors(
    receiver: int,
    pruning: Sequence[np.ndarray],
    ages: Sequence[np.ndarray],
    min_units: int,
    min_age: int,
    rng: np.random.Generator | None = None,
) -> list[tuple[int, int]]:
    """Eligible donors outside the receiver, the lowest pruning score first (or in random order).

    The list may be cut anywhere: no prefix of it takes a layer below `min_units`.
    """
    units = [
        (layer, i)
        for layer, scores in enumerate(pruning)
        if layer != receiver
        for i in range(len(scores))
        if ages[layer][i] >= min_age
    ]
    if rng is None:
        units.sort(key=lambda unit: (pruning[unit[0]][unit[1]], unit))
    else:
        units = [units[i] for i in rng.permutation(len(units))]
    spare = [len(scores) - min_units for scores in pruning]
    chosen = []
    for layer, i in units:
        if spare[layer] > 0:
            spare[layer] -= 1
            chosen.append((layer, i))
    return chosen
