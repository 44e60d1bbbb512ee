"""What a run's updates did to its layers, as grids of numbers. Pure."""

from __future__ import annotations

import dataclasses

from barter_jax.core.topology import UNITS
from barter_jax.reporting.read import Row, Run, number


@dataclasses.dataclass(frozen=True)
class Grid:
    """Numbers with a name for each row and column.

    Attributes:
      title: its heading.
      corner: what the names of the rows and columns are.
      columns: names.
      rows: names.
      values: `[rows][columns]`; None where there is nothing to show.
      signed: whether 0 is the middle of the scale, and not its low end.
      sums: whether the rows' sums are to be shown.
      low: the low end of the scale; None for the lowest value.
    """

    title: str
    corner: str
    columns: tuple[str, ...]
    rows: tuple[str, ...]
    values: tuple[tuple[float | None, ...], ...]
    signed: bool = False
    sums: bool = False
    low: float | None = None


def of_run(run: Run) -> list[Grid]:
    """The grids of a run whose updates moved something; empty for any other."""
    grids = []
    for unit in UNITS:
        rows = _consistent([row for row in run.updates if row["unit"] == unit])
        if any(row["donors"] for row in rows):
            grids += [_counts(unit, rows), _changes(unit, rows), _flow(unit, rows)]
        priorities = [row for row in rows if _priority(row)]
        if priorities:
            grids.append(_priorities(unit, priorities))
    return grids


def change(row: Row) -> list[int]:
    """What an update's row gave to each layer, less what it took."""
    delta = [0] * len(row["counts"][row["unit"]])
    for layer, *_ in row["donors"]:
        delta[layer] -= 1
    if row["receiver"] is not None:
        delta[row["receiver"]] += len(row["donors"])
    return delta


def _consistent(rows: list[Row]) -> list[Row]:
    """The rows that speak of the layers that the last row has."""
    layers = len(rows[-1]["counts"][rows[-1]["unit"]]) if rows else 0

    def fits(row):
        named = [layer for layer, *_ in row["donors"]]
        named += [] if row["receiver"] is None else [row["receiver"]]
        return len(row["counts"][row["unit"]]) == layers and all(0 <= x < layers for x in named)

    return [row for row in rows if fits(row)]


def _names(rows: list[Row]) -> tuple[str, ...]:
    return tuple(f"layer {i}" for i in range(len(rows[0]["counts"][rows[0]["unit"]])))


def _steps(rows: list[Row]) -> tuple[str, ...]:
    return tuple(f"{row['step']:,}" for row in rows)


def _transposed(columns) -> tuple[tuple, ...]:
    return tuple(zip(*columns, strict=True))


def _counts(unit: str, rows: list[Row]) -> Grid:
    first = rows[0]["counts"][unit]
    start = [n - d for n, d in zip(first, change(rows[0]), strict=True)]
    columns = [start, *(row["counts"][unit] for row in rows)]
    return Grid(
        f"{unit.capitalize()} of each layer",
        "after the update at step",
        ("start", *_steps(rows)),
        _names(rows),
        _transposed(columns),
    )


def _changes(unit: str, rows: list[Row]) -> Grid:
    return Grid(
        f"Who received and who gave {unit}",
        "update at step",
        _steps(rows),
        _names(rows),
        _transposed([change(row) for row in rows]),
        signed=True,
        sums=True,
    )


def _flow(unit: str, rows: list[Row]) -> Grid:
    layers = len(rows[0]["counts"][unit])
    flow = [[0] * layers for _ in range(layers)]
    for row in rows:
        for layer, *_ in row["donors"]:
            if row["receiver"] is not None:
                flow[layer][row["receiver"]] += 1
    return Grid(
        f"{unit.capitalize()} from layer to layer, over the run",
        "from / to",
        _names(rows),
        _names(rows),
        tuple(tuple(n or None for n in row) for row in flow),
        sums=True,
        low=0,
    )


def _priority(row: Row) -> bool:
    scores = row.get("scores")
    found = scores.get("priority") if isinstance(scores, dict) else None
    layers = len(row["counts"][row["unit"]])
    return (
        isinstance(found, list) and len(found) == layers and None not in [number(p) for p in found]
    )


def _priorities(unit: str, rows: list[Row]) -> Grid:
    """Each layer's share of an update's priorities: they shrink with the gradients over a run."""

    def shares(row):
        values = row["scores"]["priority"]
        total = sum(values)
        return [round(100 * v / total, 1) if total > 0 else None for v in values]

    return Grid(
        f"Growth priority of each layer for {unit}, % of the sum over layers",
        "update at step",
        _steps(rows),
        _names(rows),
        _transposed([shares(row) for row in rows]),
    )
