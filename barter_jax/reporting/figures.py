"""The figures of an experiment, as SVG text. Needs matplotlib."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import io
import re
from collections.abc import Callable, Sequence

import numpy as np

from barter_jax.errors import UserError
from barter_jax.reporting import style
from barter_jax.reporting.cost import costs
from barter_jax.reporting.document import KINDS, tested, training_pflops, training_seconds
from barter_jax.reporting.groups import Experiment, Group
from barter_jax.reporting.read import Row, Run, number
from barter_jax.reporting.statistics import pareto, spread

# Legible on paper: an A4 page is some seven inches wide between its margins.
SETTINGS = {
    "svg.fonttype": "none",  # text stays text: small, sharp and searchable
    "font.size": 9,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "lines.linewidth": 1.2,
}
WIDTH = 9.0
MOST_IN_LEGEND = 40
# Characters of a group's name; the tables have it in full.
LONGEST = 60


@dataclasses.dataclass(frozen=True)
class Figure:
    """A figure with what is to be said about it.

    Attributes:
      title: its heading.
      text: what it shows and how to read it, for everyone.
      alt: what is seen in it, for those who cannot see it.
      svg: the figure itself.
    """

    title: str
    text: str
    alt: str
    svg: str


def check() -> None:
    """Refuses to begin without matplotlib.

    Raises:
      UserError: it is not installed.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise UserError("the figures of a report need matplotlib: pip install matplotlib")


def of_experiment(experiment: Experiment, name: str) -> list[Figure]:
    """The figures of an experiment that have something to show.

    Args:
      experiment: the runs.
      name: begins the ids inside the SVG, which must not meet those of another figure of a page.
    """
    makers = (_pareto, _losses, _learning_rate, _wall_clock)
    found = (make(experiment, f"{name}{i}") for i, make in enumerate(makers))
    return [figure for figure in found if figure]


# --- accuracy against cost ---------------------------------------------------------------------


def _pareto(experiment: Experiment, name: str) -> Figure | None:
    panels: tuple[tuple[str, Callable[[Run], float | None]], ...] = (
        ("training time", training_seconds),
        ("training compute", training_pflops),
        ("exported parameters", _parameters),
    )
    look = style.styles(experiment.groups)
    points = [
        (label, [p for p in (_point(g, cost) for g in experiment.groups) if p])
        for label, cost in panels
    ]
    if not any(found for _, found in points):
        return None
    fronts = []
    with _drawing(len(points), 3.6) as (figure, axes):
        for axis, (label, found) in zip(axes, points, strict=True):
            scale, unit = _unit(max((x.mean for _, x, _ in found), default=0), label)
            for group, x, y in found:
                x = dataclasses.replace(x, mean=scale * x.mean, sd=x.sd and scale * x.sd)
                mark = look[group.label]
                axis.errorbar(
                    x.mean, y.mean, xerr=x.sd, yerr=y.sd, color=mark.colour, marker=mark.marker,
                    markersize=6, capsize=2, linestyle="none", linewidth=0.8,
                )  # fmt: skip
                if group.density is not None and group.method != "dense":
                    axis.annotate(
                        f"{group.density:g}", (x.mean, y.mean), (4, 4),
                        textcoords="offset points", fontsize=7,
                    )  # fmt: skip
            front = pareto([(x.mean, y.mean) for _, x, y in found])
            if len(front) > 1:
                axis.step(
                    [scale * found[i][1].mean for i in front], [found[i][2].mean for i in front],
                    where="post", color="#888888", linewidth=0.9, linestyle="dashed", zorder=0,
                )  # fmt: skip
            fronts.append(f"{label}: {', '.join(found[i][0].label for i in front) or 'no value'}")
            axis.set_xlabel(f"{label} in {unit}")
            axis.locator_params(axis="x", nbins=5)
        axes[0].set_ylabel("test accuracy in %")
        _method_legend(figure, experiment.groups)
        svg = _svg(figure, name)
    return Figure(
        "Accuracy against cost",
        "A point is the mean of a group over its seeds, with bars of one sample standard "
        "deviation; the number beside it is the density. The dashed line is the Pareto front: "
        "nothing else measured here is at least as accurate for less. Up and to the left is "
        "better. Training time has steps, data and updates; compute is FLOPs by the paper's "
        "counting times images times steps.",
        "Three scatter plots of test accuracy over training time, compute and exported "
        f"parameters. On the Pareto front: {'; '.join(fronts)}.",
        svg,
    )


def _point(group: Group, cost: Callable[[Run], float | None]):
    runs = [r for r in group.finished if cost(r) is not None and tested(r, "accuracy") is not None]
    x, y = spread(map(cost, runs)), spread(tested(run, "accuracy") for run in runs)
    return (group, x, y) if x and y else None


def _parameters(run: Run) -> float | None:
    own = costs(run).own
    return own.parameters if own else None


# Units of each cost, the largest first: name, in terms of the base unit, least value shown in it.
UNITS_OF = {
    "training time": (("h", 1 / 3600, 7200), ("min", 1 / 60, 600), ("s", 1, 0)),
    "training compute": (("PFLOPs", 1, 0.1), ("TFLOPs", 1e3, 0)),
    "exported parameters": (("millions", 1e-6, 1e5), ("thousands", 1e-3, 0)),
}


def _unit(largest: float, cost: str) -> tuple[float, str]:
    """The unit that makes short numbers of a cost: `(factor, name)`."""
    return next((scale, name) for name, scale, least in UNITS_OF[cost] if largest >= least)


# --- over the run ------------------------------------------------------------------------------


def _losses(experiment: Experiment, name: str) -> Figure | None:
    panels = (
        ("training loss", "train", "loss", 1),
        ("validation loss", "validation", "loss", 1),
        ("validation accuracy in %", "validation", "accuracy", 100),
    )
    runs = [run for g in experiment.groups for run in g.runs if any(run.rows.values())]
    if not runs:
        return None
    look = style.styles(experiment.groups)
    with _drawing(3, 3.2) as (figure, axes):
        for axis, (label, split, key, scale) in zip(axes, panels, strict=True):
            for g in experiment.groups:
                mark = look[g.label]
                for run in g.runs:
                    steps, values = _series(run.rows[split], key)
                    axis.plot(
                        steps, scale * values, color=mark.colour, linestyle=mark.line,
                        alpha=0.85, marker="." if len(steps) == 1 else None,
                    )  # fmt: skip
            axis.set_xlabel("optimizer step")
            axis.set_title(label, fontsize=9)
        _group_legend(figure, experiment.groups, look)
        svg = _svg(figure, name)
    best = {
        g.label: max(run.best_validation["accuracy"] for run in g.runs if run.best_validation)
        for g in experiment.groups
        if any(run.best_validation for run in g.runs)
    }
    reached = ", ".join(f"{label} {100 * value:.1f} %" for label, value in best.items())
    return Figure(
        "Loss and validation accuracy",
        "A line is a run; the colour is that of its method, the line style tells its groups "
        "apart. The training loss is that of the augmented images, with label smoothing where the "
        "config has it, so that it may lie above the validation loss.",
        "Three line plots over the optimizer steps: training loss, validation loss and validation "
        f"accuracy. Highest validation accuracy: {reached or 'none yet'}.",
        svg,
    )


def _learning_rate(experiment: Experiment, name: str) -> Figure | None:
    look = style.styles(experiment.groups)
    lines: dict[tuple, list[Group]] = {}
    for g in experiment.groups:
        longest = max(g.runs, key=lambda run: len(run.rows["train"]))
        steps, values = _series(longest.rows["train"], "learning_rate")
        if len(steps):
            # Rates that print alike are one line.
            key = (tuple(steps), tuple(f"{v:.4g}" for v in values))
            lines.setdefault(key, []).append(g)
    if not lines:
        return None
    with _drawing(1, 2.6) as (figure, (axis,)):
        for (steps, values), groups in lines.items():
            mark = look[groups[0].label]
            axis.plot(
                steps, [float(v) for v in values], color=mark.colour, linestyle=mark.line,
                label=_shortened(", ".join(g.label for g in groups)) if len(lines) > 1 else None,
            )  # fmt: skip
        axis.set_xlabel("optimizer step")
        axis.set_ylabel("learning rate")
        if len(lines) > 1:
            axis.legend(fontsize=7)
        svg = _svg(figure, name)
    peak = max(float(v) for _, values in lines for v in values)
    return Figure(
        "Learning rate",
        "As it was logged. "
        + ("Groups with the same rates share a line." if len(lines) > 1 else "All groups had it."),
        f"A line plot of the learning rate over the steps; its highest logged value is {peak:.3g}.",
        svg,
    )


# --- wall-clock --------------------------------------------------------------------------------


def _wall_clock(experiment: Experiment, name: str) -> Figure | None:
    groups = [g for g in experiment.groups if any(run.seconds for run in g.finished)]
    if not groups:
        return None

    def mean(kind, group):
        found = spread(run.seconds.get(kind) for run in group.finished)
        return found.mean if found else 0.0

    means = {kind: [mean(kind, g) for g in groups] for kind in KINDS}
    with _drawing(1, 1.1 + 0.27 * len(groups)) as (figure, (axis,)):
        left, places = np.zeros(len(groups)), np.arange(len(groups))
        for kind, values in means.items():
            axis.barh(
                places, values, left=left, color=style.KINDS[kind],
                hatch=style.HATCHES.get(kind), edgecolor="white", linewidth=0.4, label=kind,
            )  # fmt: skip
            left += values
        axis.set_yticks(places, [_shortened(g.label) for g in groups])
        axis.invert_yaxis()  # the first group on top, as in the tables
        axis.grid(axis="y", visible=False)
        axis.set_xlabel("wall-clock in s, mean over finished runs")
        axis.legend(ncols=len(KINDS), fontsize=7, loc="lower left", bbox_to_anchor=(0, 1))
        svg = _svg(figure, name)
    totals = ", ".join(f"{g.label} {t:.0f} s" for g, t in zip(groups, left, strict=True))
    return Figure(
        "Where the time went",
        "By the training loop's own clock. 'step' is what is in no other part; 'compile' is "
        "waiting for new shapes to be compiled, and mostly goes where the cache on disk has them.",
        f"A stacked bar a group. Totals: {totals}.",
        svg,
    )


# --- drawing -----------------------------------------------------------------------------------


@contextlib.contextmanager
def _drawing(panels: int, height: float):
    """A figure and its panels, side by side, under this module's settings."""
    import matplotlib
    from matplotlib.figure import Figure as Canvas

    with matplotlib.rc_context(SETTINGS):
        figure = Canvas(figsize=(WIDTH, height), layout="constrained")
        yield figure, figure.subplots(1, panels, squeeze=False).ravel()


def _method_legend(figure, groups: Sequence[Group]) -> None:
    from matplotlib.lines import Line2D

    found = dict.fromkeys(g.method for g in groups)
    handles = [
        Line2D([], [], color=colour, marker=marker, linestyle="none", label=method)
        for method in found
        for colour, marker in [style.METHODS.get(method, style.OTHER)]
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=6, fontsize=8)


def _group_legend(figure, groups: Sequence[Group], look: dict[str, style.Style]) -> None:
    """A legend of the groups below the panels; the figure becomes as much higher."""
    from matplotlib.lines import Line2D

    shown = groups[:MOST_IN_LEGEND]
    handles = [
        Line2D(
            [],
            [],
            color=look[g.label].colour,
            linestyle=look[g.label].line,
            label=_shortened(g.label),
        )  # fmt: skip
        for g in shown
    ]
    if len(shown) < len(groups):
        more = f"and {len(groups) - len(shown)} more groups"
        handles.append(Line2D([], [], linestyle="none", label=more))
    # In inches: a character of the legend, its line, and the height of a row.
    width = max(len(h.get_label()) for h in handles) * 0.06 + 0.55
    columns = max(1, min(int(WIDTH / width), 6, len(handles)))
    rows = -(-len(handles) // columns)
    figure.set_figheight(figure.get_figheight() + 0.16 * rows)
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, fontsize=7)


def _shortened(text: str) -> str:
    return text if len(text) <= LONGEST else text[: LONGEST - 3] + "..."


def _series(rows: Sequence[Row], key: str) -> tuple[np.ndarray, np.ndarray]:
    """Steps and finite values of a metric."""
    found = [(row["step"], row[key]) for row in rows if number(row.get(key)) is not None]
    return np.array([s for s, _ in found], int), np.array([v for _, v in found], float)


def _svg(figure, name: str) -> str:
    """The figure as an `<svg>` element that stands in a page by itself.

    The ids inside follow from `name` alone, so that equal reports are equal files.
    """
    import matplotlib

    out = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": name}):
        figure.savefig(out, format="svg", metadata={"Date": None})
    text = out.getvalue().decode()
    text = text[text.index("<svg") :]
    # What it says about itself names addresses; a page needs neither it nor the name spaces.
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", text)
    return re.sub(r'\b(id="|href="#|url\(#)', lambda m: f"{m[1]}{name}-", text)
