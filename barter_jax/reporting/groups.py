"""Which runs are repetitions of each other. Pure.

Runs form a group where everything in their configs agrees but the seed and the fields that a
resumed run may change. Nothing is averaged over groups.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from barter_jax.config import RESUMABLE
from barter_jax.reporting.read import BROKEN, FINISHED, Run

# Methods whose layers trade; the topology of all others stays what it is.
TRADING = ("random_pair", "random_donor", "random_receiver", "barter")
# Of the rows of tables; methods that are not known here come last.
ORDER = ("dense", "set", "snfs", "rigl", "srigl", "s2vite", "static", *TRADING)
# What a run of a fixed topology never reads, in comparisons: it is the baseline of all of them.
ONLY_OF_UPDATES = (
    "topology.updates",
    "topology.start_fraction",
    "topology.end_fraction",
    "topology.total_heads",
    "topology.total_channels",
    "topology.transfer_multiplier",
    "topology.max_heads",
    "topology.max_channels",
    "topology.min_age",
    "topology.share",
    "topology.noise",
    "topology.moments",
    "topology.warmup_steps",
    "scores",
)
# At most so many differing fields stand in a name.
NAMED = 3
# And at most so many characters of a value.
LONGEST = 24
ABSENT = "(absent)"


@dataclasses.dataclass(frozen=True)
class Group:
    """Runs that differ in their seeds alone.

    Attributes:
      runs: one of each seed.
      variant: names the fields in which it differs from other groups of its experiment, method
        and density apart; empty where no field does.
      fields: the config that its runs share, without method, density and seed.
    """

    runs: tuple[Run, ...]
    variant: str
    fields: Mapping[str, Any]

    @property
    def method(self) -> str:
        return self.runs[0].method or "unknown"

    @property
    def density(self) -> float | None:
        return self.runs[0].density

    @property
    def finished(self) -> tuple[Run, ...]:
        return tuple(run for run in self.runs if run.status == FINISHED)

    @property
    def row(self) -> str:
        """Its row in a table of methods by densities."""
        return f"{self.method}, {self.variant}" if self.variant else self.method

    @property
    def label(self) -> str:
        if self.method == "dense" or self.density is None:
            return self.row
        name = f"{self.method} {self.density:g}"
        return f"{name}, {self.variant}" if self.variant else name


@dataclasses.dataclass(frozen=True)
class Experiment:
    """Groups of one model on one data set."""

    model: str
    data: str
    groups: tuple[Group, ...]

    @property
    def name(self) -> str:
        return f"{self.model} on {self.data}"


@dataclasses.dataclass(frozen=True)
class Grouping:
    """All the runs that are compared.

    Attributes:
      experiments: in the order in which their first run was given.
      duplicates: `(run, the run that counts)`: of the same config and seed.
      ungrouped: runs whose config cannot be read.
    """

    experiments: tuple[Experiment, ...]
    duplicates: tuple[tuple[Run, Run], ...]
    ungrouped: tuple[Run, ...]


def group(runs: Sequence[Run]) -> Grouping:
    """Sorts runs into experiments and groups.

    Of two runs with the same config and seed the first that is finished counts, else the first
    that is not broken, else the first.
    """
    ungrouped = tuple(run for run in runs if not run.config)
    experiments: dict[tuple[str, str], dict[str, list[Run]]] = {}
    for run in runs:
        if run.config:
            key = (str(run.config.get("model.name")), str(run.config.get("data.name")))
            experiments.setdefault(key, {}).setdefault(identity(run), []).append(run)
    duplicates: list[tuple[Run, Run]] = []
    made = []
    for (model, data), by_identity in experiments.items():
        members = [_one_of_each_seed(same, duplicates) for same in by_identity.values()]
        made.append(Experiment(model, data, _named(members)))
    return Grouping(tuple(made), tuple(duplicates), ungrouped)


def identity(run: Run) -> str:
    """Equal for runs that are repetitions of each other."""
    return json.dumps([run.method, run.density, shared_fields(run)], sort_keys=True, default=str)


def shared_fields(run: Run) -> dict[str, Any]:
    """The config but for seed, method, density and what a resumed run may change."""
    own = ("seed", "method", "density")
    return {k: v for k, v in run.config.items() if not _within(k, (*own, *RESUMABLE))}


def reference(of: Group, method: str, groups: Iterable[Group]) -> Group | None:
    """The group of another method that a group is compared with, at the same density.

    All other fields must agree, those aside that only updates read where one of the two makes
    none; a group that agrees in those too comes first.
    """
    candidates = [
        g for g in groups if g.method == method and g is not of and g.density == of.density
    ]
    exact = [g for g in candidates if _key(g.fields) == _key(of.fields)]
    if exact:
        return exact[0]
    if method not in TRADING or of.method not in TRADING:
        alike = [g for g in candidates if _baseline(g) == _baseline(of)]
        return alike[0] if alike else None
    return None


def _one_of_each_seed(same: list[Run], duplicates: list[tuple[Run, Run]]) -> tuple[Run, ...]:
    chosen: dict[int | None, Run] = {}
    for run in sorted(same, key=lambda r: (r.status != FINISHED, r.status == BROKEN)):
        if run.seed in chosen:
            duplicates.append((run, chosen[run.seed]))
        else:
            chosen[run.seed] = run
    return tuple(sorted(chosen.values(), key=lambda run: (run.seed is None, run.seed or 0)))


def _named(members: Sequence[tuple[Run, ...]]) -> tuple[Group, ...]:
    """Groups in the order of their tables, each with a name of its own."""
    fields = [shared_fields(runs[0]) for runs in members]
    keys = dict.fromkeys(key for f in fields for key in f)
    differing = [k for k in keys if len({_key(f.get(k, ABSENT)) for f in fields}) > 1]
    # Fields that some have not, being of another version, are only counted.
    everywhere = [k for k in differing if all(k in f for f in fields)]
    named = _telling(everywhere, fields)
    groups = []
    for runs, own in zip(members, fields, strict=True):
        absent = sum(k not in own for k in differing)
        groups.append(Group(runs, _variant(own, everywhere, named, absent), own))
    return tuple(sorted(_distinct(groups), key=_order))


def _variant(
    own: Mapping[str, Any], differing: Sequence[str], named: Sequence[str], absent: int
) -> str:
    """`a.b=1, c.d=2` of the named fields, and how many others differ."""
    parts = [f"{key}={_short(own[key])}" for key in named]
    if more := len(differing) - len(named):
        parts.append(f"{more} more field{'s' * (more > 1)}")
    if absent:
        parts.append(f"config without {absent} field{'s' * (absent > 1)} of the others")
    return ", ".join(parts)


def _telling(differing: Sequence[str], fields: Sequence[Mapping[str, Any]]) -> list[str]:
    """The few fields that tell most of the configs apart, each adding the most to those before."""
    chosen: list[str] = []

    def told_apart(key):
        return len({tuple(_key(f[k]) for k in (*chosen, key)) for f in fields})

    for _ in range(min(NAMED, len(differing))):
        # max() keeps the first of equals: the order of the config.
        chosen.append(max((k for k in differing if k not in chosen), key=told_apart))
    return sorted(chosen, key=differing.index)


def _distinct(groups: Sequence[Group]) -> list[Group]:
    """Numbers the names that several groups would have."""
    found, seen = [], {}
    labels = [g.label for g in groups]
    for g, label in zip(groups, labels, strict=True):
        seen[label] = seen.get(label, 0) + 1
        if labels.count(label) > 1:
            variant = f"{g.variant}, " if g.variant else ""
            g = dataclasses.replace(g, variant=f"{variant}config {seen[label]}")
        found.append(g)
    return found


def _order(g: Group) -> tuple:
    rank = ORDER.index(g.method) if g.method in ORDER else len(ORDER)
    return rank, g.method, g.variant, g.density is None, g.density or 0.0


def _baseline(g: Group) -> str:
    return _key({k: v for k, v in g.fields.items() if not _within(k, ONLY_OF_UPDATES)})


def _within(key: str, names: Iterable[str]) -> bool:
    return any(key == name or key.startswith(name + ".") for name in names)


def _key(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list):
        return "(" + ",".join(map(_short, value)) + ")"
    # The end of a path tells more than its beginning.
    text = str(value)
    return text if len(text) <= LONGEST else "..." + text[3 - LONGEST :]
