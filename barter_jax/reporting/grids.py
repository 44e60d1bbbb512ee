"""Grids of numbers as coloured HTML tables: heat maps that can be read, copied and read out."""

from __future__ import annotations

import html

from barter_jax.reporting import style
from barter_jax.reporting.trades import Grid

WHITE, HIGH, LOW = "#ffffff", "#08519c", "#b35806"
# More columns than this do not fit a page: evenly chosen ones stand for all.
MOST_COLUMNS = 24


def render(grid: Grid) -> str:
    """The grid as an HTML table with a caption."""
    chosen = _chosen(len(grid.columns))
    head = "".join(f'<th scope="col">{html.escape(grid.columns[i])}</th>' for i in chosen)
    if grid.sums:
        head += '<th scope="col">sum</th>'
    values = [v for row in grid.values for v in row if v is not None]
    span = max(map(abs, values), default=0) if grid.signed else None
    low = min(values, default=0) if grid.low is None else grid.low
    high = max(values, default=0)
    rows = []
    for name, row in zip(grid.rows, grid.values, strict=True):
        cells = [
            _cell(row[i], _colour(row[i], low, high, span), grid.signed) for i in chosen
        ]  # fmt: skip
        if grid.sums:
            cells.append(_cell(sum(v or 0 for v in row), None, grid.signed))
        rows.append(f'<tr><th scope="row">{html.escape(name)}</th>{"".join(cells)}</tr>')
    title = grid.title
    if len(chosen) < len(grid.columns):
        title += f" ({len(chosen)} of {len(grid.columns)} columns)"
    return (
        f'<div class="wide"><table class="grid"><caption>{html.escape(title)}</caption>'
        f'<thead><tr><th scope="col">{html.escape(grid.corner)}</th>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _chosen(columns: int) -> list[int]:
    if columns <= MOST_COLUMNS:
        return list(range(columns))
    return [round(i * (columns - 1) / (MOST_COLUMNS - 1)) for i in range(MOST_COLUMNS)]


def _colour(value: float | None, low: float, high: float, span: float | None) -> str | None:
    """Of a cell; None for one without."""
    if value is None:
        return None
    if span is not None:
        return style.blend(WHITE, HIGH if value > 0 else LOW, abs(value) / span if span else 0)
    return style.blend(WHITE, HIGH, (value - low) / (high - low) if high > low else 0)


def _cell(value: float | None, colour: str | None, signed: bool) -> str:
    if value is None:
        return "<td></td>"
    text = (f"{value:+g}" if value else "0") if signed else f"{value:g}"
    if colour is None:
        return f"<td>{text}</td>"
    return f'<td style="background:{colour};color:{style.ink(colour)}">{text}</td>'
