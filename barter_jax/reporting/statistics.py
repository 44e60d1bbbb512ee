"""The arithmetic of a report. Pure; numbers in, numbers out."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence


@dataclasses.dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation of n values.

    Attributes:
      mean: their mean.
      sd: with n - 1 in the denominator; None for a single value.
      n: how many.
    """

    mean: float
    sd: float | None
    n: int

    def to_json(self) -> dict[str, float | int | None]:
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True)
class Difference:
    """How much higher one group's values are than another's.

    Attributes:
      mean: the mean difference.
      sd: sample standard deviation of the differences of pairs; None without two pairs.
      pairs: how many seeds both have; 0 where they share none and the means are compared.
    """

    mean: float
    sd: float | None
    pairs: int

    def to_json(self) -> dict[str, float | int | None]:
        return dataclasses.asdict(self)


def spread(values: Iterable[float | None]) -> Spread | None:
    """Mean and sample standard deviation of the finite values; None where there are none."""
    finite = [float(v) for v in values if v is not None and math.isfinite(v)]
    if not finite:
        return None
    mean = math.fsum(finite) / len(finite)
    if len(finite) < 2:
        return Spread(mean, None, 1)
    square = math.fsum((v - mean) ** 2 for v in finite)
    return Spread(mean, math.sqrt(square / (len(finite) - 1)), len(finite))


def difference(
    ours: Mapping[int, float | None], theirs: Mapping[int, float | None]
) -> Difference | None:
    """Ours minus theirs, seed by seed where they share seeds, else mean minus mean.

    A seed decides the split, the order of the data and the initial parameters, so that the
    difference of a pair varies less than that of two means.

    Args:
      ours: values by seed; those that are None or not finite do not count.
      theirs: likewise.

    Returns:
      The difference, or None where either has no value.
    """
    ours, theirs = _finite(ours), _finite(theirs)
    if not ours or not theirs:
        return None
    shared = [seed for seed in ours if seed in theirs]
    if shared:
        found = spread(ours[seed] - theirs[seed] for seed in shared)
        return Difference(found.mean, found.sd, found.n)
    return Difference(spread(ours.values()).mean - spread(theirs.values()).mean, None, 0)


def ranks(values: Sequence[float | None]) -> list[int | None]:
    """1 for the highest, 2 for the second highest; ties share a rank; None for all others.

    Nothing is ranked where fewer than two values are there to compare.
    """
    present = [v for v in values if v is not None]
    if len(present) < 2:
        return [None] * len(values)

    def rank(value: float | None) -> int | None:
        higher = sum(v > value for v in present) if value is not None else 2
        return higher + 1 if higher < 2 else None

    return [rank(v) for v in values]


def pareto(points: Sequence[tuple[float, float]]) -> list[int]:
    """The points of (cost, value) that no other one beats, cheapest first.

    A point is beaten by one that costs no more and is worth no less, and is better in one of both.

    Returns:
      Their indices; of equal points all.
    """

    def beaten(point):
        cost, value = point
        return any(c <= cost and v >= value and (c, v) != point for c, v in points)

    return sorted((i for i, p in enumerate(points) if not beaten(p)), key=lambda i: (points[i], i))


def _finite(values: Mapping[int, float | None]) -> dict[int, float]:
    return {k: v for k, v in values.items() if v is not None and math.isfinite(v)}
