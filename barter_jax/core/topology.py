"""Topology: how many heads and FFN channels each layer has, and how those counts are padded.

A topology is host-side, frozen and hashable: it is the key of the compiled-step table, and every
host can compare a hash of it. Layers are numbered from 0, the layer nearest the input.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence

UNITS = ("heads", "channels")


@dataclasses.dataclass(frozen=True)
class Budget:
    """A number of heads and a number of channels: a global budget, a bucket size, or an amount."""

    heads: int
    channels: int

    def of(self, unit: str) -> int:
        """The number for one unit type (`"heads"` or `"channels"`)."""
        return getattr(self, _known(unit))


@dataclasses.dataclass(frozen=True)
class Topology:
    """Units per layer.

    Attributes:
      heads: attention heads of each layer, `L` ints.
      channels: FFN channels of each layer, `L` ints. Either tuple may be empty in a model that
        has no units of that type.
    """

    heads: tuple[int, ...]
    channels: tuple[int, ...]

    def __post_init__(self):
        for unit in UNITS:
            counts = tuple(int(n) for n in getattr(self, unit))
            if any(n < 0 for n in counts):
                raise ValueError(f"{unit} per layer must not be negative, got {counts}")
            object.__setattr__(self, unit, counts)

    def of(self, unit: str) -> tuple[int, ...]:
        """Counts per layer of one unit type."""
        return getattr(self, _known(unit))

    def with_counts(self, unit: str, counts: Sequence[int]) -> Topology:
        """The same topology with other counts of one unit type."""
        return dataclasses.replace(self, **{_known(unit): tuple(counts)})

    @property
    def budget(self) -> Budget:
        """The units in use over all layers."""
        return Budget(sum(self.heads), sum(self.channels))

    def to_json(self) -> dict[str, list[int]]:
        return {unit: list(self.of(unit)) for unit in UNITS}

    @classmethod
    def from_json(cls, data: Mapping[str, Sequence[int]]) -> Topology:
        return cls(**{unit: tuple(data[unit]) for unit in UNITS})

    def digest(self) -> str:
        """A short hash, equal on every host that holds the same topology."""
        return hashlib.sha256(json.dumps(self.to_json()).encode()).hexdigest()[:16]


def _known(unit: str) -> str:
    if unit not in UNITS:
        raise ValueError(f"unknown unit type {unit!r}: it is one of {', '.join(UNITS)}")
    return unit


def spread_evenly(budget: Budget, layers: int, extra: str = "last") -> Topology:
    """The starting topology: each budget spread evenly over the layers.

    Layers differ by at most one. Which layers get the units that are left over is not stated by
    the paper; `extra` is this project's choice: `"last"` gives them to the layers nearest the
    output, `"first"` to those nearest the input.

    Raises:
      ValueError: `extra` is unknown or `layers` is not positive.
    """
    if extra not in ("last", "first"):
        raise ValueError(f"extra units go to the 'last' or the 'first' layers, not {extra!r}")
    if layers < 1:
        raise ValueError(f"a topology needs at least one layer, got {layers}")

    def counts(total: int) -> tuple[int, ...]:
        base, left = divmod(total, layers)
        with_extra = range(layers - left, layers) if extra == "last" else range(left)
        return tuple(base + (layer in with_extra) for layer in range(layers))

    return Topology(counts(budget.heads), counts(budget.channels))


def pad(
    topology: Topology, bucket: Budget, previous: Topology | None = None, waste: float = 0.0
) -> Topology:
    """Physical counts: each layer's logical count rounded up to a multiple of the bucket.

    Nearby topologies then share their tensor shapes, and with them a compiled step. Padded units
    hold all-zero parameters, so they change nothing (see `core.surgery`).

    Args:
      topology: the logical counts.
      bucket: multiples of what to round up to.
      previous: physical counts so far. A layer that needs less now keeps them while it has use
        for most of them, so that giving a few units away makes no new shape.
      waste: the share of kept physical units that may be without use, in [0, 1).

    Raises:
      ValueError: a bucket is empty.
    """

    def padded(n: int, size: int, before: int) -> int:
        needed = -(-n // size) * size
        # Only a multiple of this bucket: the counts of another bucket are not gone on with.
        keeps = before > needed and before % size == 0 and before - n <= waste * before
        return before if keeps else needed

    physical = {}
    for unit in UNITS:
        size = bucket.of(unit)
        if size < 1:
            raise ValueError(f"a bucket holds at least one unit, got {size}")
        counts = zip(topology.of(unit), (previous or topology).of(unit), strict=True)
        physical[unit] = tuple(padded(n, size, before) for n, before in counts)
    return Topology(**physical)


def violations(topology: Topology, budget: Budget, caps: Topology, min_units: int) -> list[str]:
    """What breaks the method's invariants in a topology; empty where all is well.

    Args:
      topology: counts to check.
      budget: what each unit type must add up to, exactly.
      caps: the most units a layer may have.
      min_units: the fewest units a layer may have.
    """
    found = []
    for unit in UNITS:
        counts, cap = topology.of(unit), caps.of(unit)
        if not counts:
            continue
        if sum(counts) != budget.of(unit):
            found.append(f"{sum(counts)} {unit} in use, the budget is {budget.of(unit)}")
        for layer, (n, most) in enumerate(zip(counts, cap, strict=True)):
            if n < min_units:
                found.append(f"layer {layer} has {n} {unit}, fewer than min_units={min_units}")
            if n > most:
                found.append(f"layer {layer} has {n} {unit}, more than its cap of {most}")
    return found
