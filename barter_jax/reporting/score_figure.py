"""Distributions of a run's scores at its updates, as SVG text. Pure.

Drawn by hand: a report may have one for each of dozens of runs, and a plotting library would take
longer for them than for all the rest.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Sequence

from barter_jax.core.topology import UNITS
from barter_jax.reporting import style
from barter_jax.reporting.figures import Figure
from barter_jax.reporting.read import Row, Run, number

KINDS = ("pruning", "growth")
# Updates that are drawn; of more, evenly chosen ones.
SHOWN = 10
# In SVG units, of which a page is some 860 wide.
PANEL_WIDTH, PANEL_HEIGHT, GAP = 430, 250, 8
LEFT, RIGHT, TOP, BOTTOM = 52, 8, 26, 36

Quantiles = Sequence[Sequence[Sequence[float]]]  # [updates][layers][5]


def of_run(run: Run) -> Figure | None:
    """The figure of a run whose rows of `topology.jsonl` have scores; None for any other."""
    rows = {unit: [r for r in run.updates if r["unit"] == unit and has_scores(r)] for unit in UNITS}
    rows = {unit: evenly(_consistent(found), SHOWN) for unit, found in rows.items() if found}
    if not rows:
        return None
    panels = []
    for i, (unit, found) in enumerate(rows.items()):
        for j, kind in enumerate(KINDS):
            x, y = j * (PANEL_WIDTH + GAP), i * (PANEL_HEIGHT + GAP)
            panel = _panel(f"{kind} scores of {unit}", [row["scores"][kind] for row in found])
            panels.append(f'<g transform="translate({x} {y})">{panel}</g>')
    width = 2 * PANEL_WIDTH + GAP
    height = len(rows) * (PANEL_HEIGHT + GAP)
    steps = {unit: ", ".join(str(row["step"]) for row in found) for unit, found in rows.items()}
    return Figure(
        "Scores that the updates went by",
        "Each layer has a stroke for every update shown, the earlier ones lighter: the thin line "
        "goes from the lowest to the highest score of the layer's units, the thick one from the "
        "first to the third quartile, and the dot is the median. Donors are the units of the "
        "lowest pruning scores outside the receiver, parents those of the highest growth scores "
        "in it. The scale is logarithmic; scores of zero are not on it.",
        "Strokes of score quantiles by layer, on a logarithmic scale; "
        + "; ".join(f"{unit} at the updates of steps {found}" for unit, found in steps.items()),
        f'<svg viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="11">'
        f"{''.join(panels)}</svg>",
    )


def has_scores(row: Row) -> bool:
    """Whether a row of `topology.jsonl` has quantiles of every layer that can be drawn."""
    found = row.get("scores")
    if not isinstance(found, dict):
        return False
    layers = len(row["counts"][row["unit"]])
    return all(
        isinstance(found.get(kind), list)
        and len(found[kind]) == layers
        and all(isinstance(q, list) and len(q) == 5 and None not in map(number, q) for q in values)
        for kind in KINDS
        for values in [found.get(kind)]
    )


def evenly(items: Sequence, most: int) -> list:
    """At most so many of them, the first and the last included."""
    if len(items) <= most:
        return list(items)
    return [items[round(i * (len(items) - 1) / (most - 1))] for i in range(most)]


def _consistent(rows: Sequence[Row]) -> list[Row]:
    layers = len(rows[-1]["scores"][KINDS[0]])
    return [row for row in rows if len(row["scores"][KINDS[0]]) == layers]


def _panel(title: str, updates: Quantiles) -> str:
    """One panel, its upper left corner at the origin."""
    positive = [v for layers in updates for q in layers for v in q if v > 0]
    low = math.floor(math.log10(min(positive))) if positive else 0
    high = max(math.ceil(math.log10(max(positive))), low + 1) if positive else 1
    bottom, right = PANEL_HEIGHT - BOTTOM, PANEL_WIDTH - RIGHT

    def y(value: float) -> float:
        return bottom - (math.log10(value) - low) / (high - low) * (bottom - TOP)

    parts = [_text((LEFT + right) / 2, 16, title)]
    every = max(1, (high - low) // 6)
    for decade in range(low, high + 1, every):
        at = y(10.0**decade)
        parts.append(_line(LEFT, at, right, at, "#dddddd", 1))
        parts.append(_text(LEFT - 5, at + 4, f"1e{decade}", "end"))
    layers = len(updates[0])
    step = (right - LEFT) / layers
    for layer in range(layers):
        left = LEFT + layer * step
        parts.append(_text(left + step / 2, bottom + 15, str(layer)))
        for i, quantiles in enumerate(update[layer] for update in updates):
            x = left + step * (0.12 + 0.76 * (i + 0.5) / len(updates))
            colour = style.blend("#a6cee3", "#08306b", (i + 1) / len(updates))
            parts += _stroke(x, [y(v) if v > 0 else None for v in quantiles], colour, bottom)
    parts.append(_line(LEFT, TOP, LEFT, bottom, "#000000", 1))
    parts.append(_line(LEFT, bottom, right, bottom, "#000000", 1))
    parts.append(_text((LEFT + right) / 2, PANEL_HEIGHT - 4, "layer"))
    return "".join(parts)


def _stroke(x: float, at: Sequence[float | None], colour: str, bottom: float) -> Iterator[str]:
    """A layer's quantiles at heights `at`; None is below the scale."""
    q0, q25, q50, q75, q100 = (bottom if value is None else value for value in at)
    yield _line(x, q0, x, q100, colour, 1)
    yield _line(x, q25, x, q75, colour, 4)
    if at[2] is not None:
        yield f'<circle cx="{x:.1f}" cy="{q50:.1f}" r="1.8" fill="#D55E00"/>'


def _line(x1: float, y1: float, x2: float, y2: float, colour: str, width: float) -> str:
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" '
        f'stroke="{colour}" stroke-width="{width}"/>'
    )


def _text(x: float, y: float, words: str, anchor: str = "middle") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{html.escape(words)}</text>'
