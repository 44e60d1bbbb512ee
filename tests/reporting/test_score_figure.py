"""Strokes of score quantiles, by hand."""

import re

from barter_jax.reporting import score_figure
from barter_jax.reporting.read import read
from barter_jax.reporting.score_figure import BOTTOM, LEFT, PANEL_HEIGHT, RIGHT, TOP, evenly
from tests.reporting import made


def figure_of(tmp_path, updates):
    run = read(made.write(tmp_path / "run", made.small(), 0.5, updates=updates))
    return score_figure.of_run(run)


def lines(svg):
    """`(x1, y1, x2, y2, width)` of the upright strokes that are no axes."""
    found = re.findall(
        r'<line x1="(.*?)" y1="(.*?)" x2="(.*?)" y2="(.*?)" stroke="(.*?)" stroke-width="(.*?)"',
        svg,
    )
    return [
        tuple(map(float, (a, b, c, d, w)))
        for a, b, c, d, colour, w in found
        if a == c and colour != "#000000"
    ]


def test_a_stroke_by_hand():
    """One update of one layer, whose quantiles are whole decades: the scale is theirs."""
    svg = score_figure._panel("t", [[[1e-4, 1e-3, 1e-2, 1e-1, 1.0]]])
    thin, thick = lines(svg)
    top, bottom = TOP, PANEL_HEIGHT - BOTTOM
    assert (thin[1], thin[3], thin[4]) == (bottom, top, 1)
    quarter = (bottom - top) / 4
    assert (thick[1], thick[3], thick[4]) == (bottom - quarter, bottom - 3 * quarter, 4)
    middle = (LEFT + score_figure.PANEL_WIDTH - RIGHT) / 2
    assert thin[0] == thick[0] == middle
    assert f'cx="{middle:.1f}" cy="{bottom - 2 * quarter:.1f}"' in svg
    assert all(f">1e{decade}<" in svg for decade in range(-4, 1))


def test_zeros_stand_at_the_bottom():
    svg = score_figure._panel("t", [[[0.0, 0.0, 0.0, 0.1, 1.0]]])
    thin, thick = lines(svg)
    bottom = PANEL_HEIGHT - BOTTOM
    assert (thin[1], thick[1], thick[3]) == (bottom, bottom, bottom)
    assert "<circle" not in svg
    assert "<circle" not in score_figure._panel("t", [[[0.0] * 5]])


def test_all_units_and_kinds(tmp_path):
    figure = figure_of(tmp_path, made.topology(scores=True))
    for title in ("pruning scores of heads", "growth scores of channels"):
        assert title in figure.svg
    # Heads were traded once, channels twice; two layers, two kinds, two strokes each.
    assert len(lines(figure.svg)) == (1 + 2) * 2 * 2 * 2
    assert "channels at the updates of steps 4, 8" in figure.alt


def test_runs_without_scores(tmp_path):
    assert figure_of(tmp_path / "a", made.topology()) is None
    assert figure_of(tmp_path / "b", []) is None


def test_rows_that_cannot_be_drawn_are_left_out(tmp_path):
    rows = made.topology(scores=True)
    rows[0]["scores"] = {"pruning": 3}
    rows[1]["scores"]["growth"] = [[1.0, 2.0]]
    figure = figure_of(tmp_path, rows)
    assert "heads" not in figure.svg and figure.alt.endswith("channels at the updates of steps 8")
    rows[2]["scores"]["pruning"][0][3] = float("nan")
    assert figure_of(tmp_path / "none", rows) is None


def test_evenly():
    assert evenly([1, 2, 3], 5) == [1, 2, 3]
    assert evenly(list(range(11)), 6) == [0, 2, 4, 6, 8, 10]
