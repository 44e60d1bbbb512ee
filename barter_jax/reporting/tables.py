"""The document as tables, the same ones in Markdown and in HTML. Pure."""

from __future__ import annotations

import dataclasses
import html
from collections.abc import Sequence
from typing import Any

from barter_jax.reporting.document import KINDS

NONE = "-"


@dataclasses.dataclass(frozen=True)
class Cell:
    """A cell; `mark` is 1 for the best value of its column, 2 for the second best."""

    text: str
    mark: int | None = None


@dataclasses.dataclass(frozen=True)
class Table:
    """A table with its title and what a reader has to know of it."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""


def markdown(table: Table) -> str:
    """The table in GitHub's Markdown: the best value bold, the second best in italics."""
    marks = {None: "{}", 1: "**{}**", 2: "*{}*"}

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    lines = [f"### {table.title}", ""]
    if table.note:
        lines += [table.note, ""]
    lines += [line(table.head), "|" + " --- |" * len(table.head)]
    lines += [line([marks[c.mark].format(c.text) for c in row]) for row in table.rows]
    return "\n".join(lines) + "\n"


def as_html(table: Table) -> str:
    """The table in HTML: the best value bold, the second best underlined."""
    marks = {None: "{}", 1: "<strong>{}</strong>", 2: "<u>{}</u>"}
    head = "".join(f'<th scope="col">{html.escape(x)}</th>' for x in table.head)
    rows = []
    for first, *rest in table.rows:
        cells = "".join(f"<td>{marks[c.mark].format(html.escape(c.text))}</td>" for c in rest)
        rows.append(f'<tr><th scope="row">{html.escape(first.text)}</th>{cells}</tr>')
    note = f"<p>{html.escape(table.note)}</p>" if table.note else ""
    return (
        f"<h3>{html.escape(table.title)}</h3>{note}"
        f'<div class="wide"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


# --- the tables of an experiment ---------------------------------------------------------------


def of_experiment(experiment: dict[str, Any]) -> list[Table]:
    """The tables of an entry of the document's `experiments` that have a value to show."""
    groups = experiment["groups"]
    tables = []
    if any(g["accuracy_percent"] for g in groups):
        tables += [
            _by_density(groups, "accuracy_percent", "Test accuracy, %"),
            _by_density(groups, "macro_f1_percent", "Test macro-F1, %"),
        ]
    if any(g["minus"][b]["accuracy"] for g in groups for b in g["minus"]):
        tables.append(_differences(groups))
    tables.append(_costs(groups))
    if any(g["paper"] for g in groups):
        tables.append(_costs_beside_the_papers(groups))
    if any(g["seconds"]["total"] for g in groups):
        tables.append(_wall_clock(groups))
    return tables


def _by_density(groups: Sequence[dict[str, Any]], name: str, title: str) -> Table:
    """Methods by densities. Where the paper has a value, it stands in a row below ours."""
    densities = sorted({g["density"] for g in groups if g["density"] is not None})
    rows = []
    for row in dict.fromkeys(g["row"] for g in groups):
        own = {g["density"]: g for g in groups if g["row"] == row}
        cells = [
            Cell(mean_sd(own[d][name], 2), own[d]["rank"].get(name)) if d in own else Cell(NONE)
            for d in densities
        ]
        rows.append((Cell(row), *cells))
        reported = {d: (g["paper"] or {}).get(name) for d, g in own.items()}
        if any(v is not None for v in reported.values()):
            rows.append(
                (
                    Cell(f"{row}, paper"),
                    *(Cell(fixed(reported.get(d), 2)) for d in densities),
                )
            )
    note = (
        "Mean ± sample standard deviation over seeds, and the number of seeds in brackets; the "
        "best mean of a density is bold, the second best set apart."
    )
    known = next((g["paper"] for g in groups if g["paper"]), None)
    if known and name == "accuracy_percent":
        note += f" Paper: {known['source']}, {known['experiment']}, three seeds."
    head = ("method", *(f"density {d:g}" for d in densities))
    return Table(title, head, tuple(rows), note)


def _differences(groups: Sequence[dict[str, Any]]) -> Table:
    rows = []
    for g in groups:
        found = [g["minus"][b][m] for b in g["minus"] for m in ("accuracy", "macro_f1")]
        if any(found):
            rows.append((Cell(g["label"]), *(Cell(_signed(x)) for x in found)))
    return Table(
        "Differences, percentage points",
        (
            "method",
            "accuracy - static",
            "macro-F1 - static",
            "accuracy - barter",
            "macro-F1 - barter",
        ),  # fmt: skip
        tuple(rows),
        "Against the run of the same seed, density and other fields where there is one: mean ± "
        "sample standard deviation over pairs, and their number; 'unpaired' where no seed is in "
        "both, and the means are compared.",
    )


def _costs(groups: Sequence[dict[str, Any]]) -> Table:
    head = ("method", "parameters", "of dense", "GFLOPs per image", "less than dense",
            "training PFLOPs", "ms per step", "s per epoch")  # fmt: skip
    rows = []
    for g in groups:
        dense = g["dense"]
        cells = (
            f"{g['parameters']:,}" if g["parameters"] is not None else NONE,
            _ratio(g["parameters"], dense["parameters"], "{:.1%}"),
            short(g["training_gflops_per_image"]),
            _ratio(dense["training_gflops_per_image"], g["training_gflops_per_image"], "{:.2f}x"),
            short((g["training_pflops"] or {}).get("mean")),
            mean_sd(g["ms_per_step"], 2),
            mean_sd(g["seconds_per_epoch"], 2),
        )
        rows.append((Cell(g["label"]), *map(Cell, cells)))
    return Table(
        "Size and cost",
        head,
        tuple(rows),
        "Parameters of the exported model; GFLOPs of a training step (forward and backward); "
        "PFLOPs of all steps of a finished run. Seconds of an epoch have steps, data and updates.",
    )


def _costs_beside_the_papers(groups: Sequence[dict[str, Any]]) -> Table:
    head = ("method", "parameters, M", "paper", "GFLOPs per image", "paper", "training PFLOPs",
            "paper", "s per epoch", "paper, L40")  # fmt: skip
    rows = []
    for g in groups:
        if not g["paper"]:
            continue
        theirs = g["paper"]
        cells = (
            _millions(g["parameters"]),
            _millions(theirs["parameters"]),
            short(g["training_gflops_per_image"]),
            short(theirs["training_gflops_per_image"]),
            short((g["training_pflops"] or {}).get("mean")),
            short(theirs["training_pflops"]),
            fixed((g["seconds_per_epoch"] or {}).get("mean"), 2),
            fixed(theirs["seconds_per_epoch_on_l40"], 2),
        )
        rows.append((Cell(g["label"]), *map(Cell, cells)))
    source = next(g["paper"] for g in groups if g["paper"])
    return Table(
        "Size and cost beside the paper's",
        head,
        tuple(rows),
        f"Paper: {source['source']}, {source['experiment']}; seconds on one NVIDIA L40.",
    )


def _wall_clock(groups: Sequence[dict[str, Any]]) -> Table:
    kinds = (*KINDS, "total")
    rows = [
        (
            Cell(g["label"]),
            *(Cell(_seconds(g["seconds"][kind])) for kind in kinds),
            Cell(str(g["seconds"]["total"]["n"])),
        )
        for g in groups
        if g["seconds"]["total"]
    ]
    return Table(
        "Wall-clock, seconds",
        ("method", *kinds, "runs"),
        tuple(rows),
        "Mean ± sample standard deviation over finished runs, by the loop's own clock. Runs on "
        "different machines, or beside other work, do not compare.",
    )


def of_runs(runs: Sequence[dict[str, Any]]) -> Table:
    """Every directory that was read, and its state."""
    rows = []
    for run in runs:
        remarks = list(run["problems"])
        if run["duplicate_of"]:
            remarks.insert(0, f"same config and seed as {run['duplicate_of']}, not counted")
        best = run["best_validation"]
        rows.append(
            tuple(
                map(
                    Cell,
                    (
                        run["directory"],
                        run["status"],
                        run["progress"],
                        run["group"] or NONE,
                        NONE if run["seed"] is None else str(run["seed"]),
                        fixed(best["accuracy"], 2),
                        fixed(run["test"]["accuracy"], 2),
                        fixed(run["test"]["macro_f1"], 2),
                        "; ".join(remarks) or NONE,
                    ),
                )
            )
        )
    return Table(
        "Directories that were read",
        (
            "directory",
            "state",
            "progress",
            "group",
            "seed",
            "best validation accuracy, %",
            "test accuracy, %",
            "test macro-F1, %",
            "remarks",
        ),  # fmt: skip
        tuple(rows),
    )


# --- numbers -----------------------------------------------------------------------------------


def mean_sd(found: dict[str, Any] | None, digits: int) -> str:
    """`72.85 ± 0.31 (3)`, or `72.85 (1)`, or `-`."""
    if found is None:
        return NONE
    sd = "" if found["sd"] is None else f" ± {found['sd']:.{digits}f}"
    return f"{found['mean']:.{digits}f}{sd} ({found['n']})"


def fixed(value: float | None, digits: int) -> str:
    return NONE if value is None else f"{value:.{digits}f}"


def short(value: float | None) -> str:
    """Four significant digits."""
    return NONE if value is None else f"{value:.4g}"


def _seconds(found: dict[str, Any] | None) -> str:
    if found is None:
        return NONE
    digits = 0 if found["mean"] >= 1000 else 1
    sd = "" if found["sd"] is None else f" ± {found['sd']:.{digits}f}"
    return f"{found['mean']:.{digits}f}{sd}"


def _millions(value: float | None) -> str:
    return fixed(None if value is None else value / 1e6, 4)


def _signed(found: dict[str, Any] | None) -> str:
    if found is None:
        return NONE
    sd = "" if found["sd"] is None else f" ± {found['sd']:.2f}"
    return f"{found['mean']:+.2f}{sd} ({found['pairs'] or 'unpaired'})"


def _ratio(value: float | None, of: float | None, form: str) -> str:
    return form.format(value / of) if value is not None and of else NONE
