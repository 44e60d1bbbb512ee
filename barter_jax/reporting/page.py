"""The report as one HTML page: no script, no style sheet and no image from outside."""

from __future__ import annotations

import html
import shlex
from collections.abc import Iterator, Sequence
from typing import Any

from barter_jax.core.topology import UNITS
from barter_jax.reporting import figures, grids, reproduce, score_figure, tables, trades
from barter_jax.reporting.document import moved
from barter_jax.reporting.figures import Figure
from barter_jax.reporting.groups import Experiment, Group, Grouping
from barter_jax.reporting.read import FINISHED, Run
from barter_jax.reporting.text import GRIDS, INTRODUCTION, settings, states

# Sections of runs and groups are open where there are few of them.
OPEN = 4
GENERATOR = "barter_jax.report"

CSS = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, sans-serif; color: #1a1a1a; background: #fff;
  max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1, h2, h3, h4 { line-height: 1.25; }
h2 { margin-top: 2.5rem; border-bottom: 2px solid #0072B2; }
table { border-collapse: collapse; font-size: 0.85rem; font-variant-numeric: tabular-nums; }
th, td { padding: 0.25rem 0.6rem; border-bottom: 1px solid #ddd; text-align: right; }
td { white-space: nowrap; }
tbody th { min-width: 9rem; }
th:first-child, td:first-child { text-align: left; }
thead th { border-bottom: 1px solid #444; vertical-align: bottom; }
caption { text-align: left; font-weight: 600; padding: 0.4rem 0; }
.grid td { min-width: 2.2rem; text-align: center; border: 1px solid #eee;
  -webkit-print-color-adjust: exact; print-color-adjust: exact; }
.grid th { text-align: center; font-weight: normal; min-width: 0; }
.grid th:first-child { text-align: left; white-space: nowrap; }
.wide { overflow-x: auto; margin: 0.6rem 0 1.2rem; }
.words th, .words td { text-align: left; white-space: normal; }
.grids { display: flex; flex-wrap: wrap; gap: 0 2rem; }
figure { margin: 1rem 0 2rem; break-inside: avoid; }
figure svg { width: 100%; height: auto; }
figcaption { font-size: 0.85rem; color: #444; }
pre { background: #f5f5f5; padding: 0.7rem; overflow-x: auto; font-size: 0.8rem; }
details { margin: 0.6rem 0; }
summary { cursor: pointer; font-weight: 600; }
@media print { body { margin: 0; max-width: none; } .wide { overflow: visible; } }
"""


def render(grouping: Grouping, doc: dict[str, Any], command: Sequence[str]) -> str:
    """The page.

    Args:
      grouping: the runs.
      doc: their document.
      command: the words that the report was made with, to be shown.
    """
    body = "\n".join(_body(grouping, doc, command))
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="generator" content="{GENERATOR}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>Report of {len(doc['runs'])} runs</title>\n<style>{CSS}</style>\n</head>\n"
        f"<body>\n{body}\n</body>\n</html>\n"
    )


def _body(grouping: Grouping, doc: dict[str, Any], command: Sequence[str]) -> Iterator[str]:
    yield f"<h1>Report of {_many(len(doc['runs']), 'run')}</h1>"
    yield f"<p>{html.escape(INTRODUCTION)}</p>"
    yield f"<p>Made by <code>{html.escape(shlex.join(command))}</code>, barter_jax "
    yield f"{html.escape(doc['barter_jax'])}.</p>"
    yield f"<p>{html.escape(states(doc['runs']))}</p>"
    for i, (experiment, entry) in enumerate(
        zip(grouping.experiments, doc["experiments"], strict=True)
    ):
        yield f"<h2>{html.escape(experiment.name)}</h2>"
        yield from _experiment(experiment, entry, f"e{i}")
    yield "<h2>All runs</h2>"
    yield f'<div class="words">{tables.as_html(tables.of_runs(doc["runs"]))}</div>'
    for twice in doc["given_twice"]:
        yield f"<p>{html.escape(twice['directory'])} is {html.escape(twice['is'])}: read once.</p>"
    yield "<h2>What the numbers mean</h2><dl>"
    for name, meaning in doc["definitions"].items():
        yield f"<dt><code>{html.escape(name)}</code></dt><dd>{html.escape(meaning)}</dd>"
    yield "</dl>"


def _experiment(experiment: Experiment, entry: dict[str, Any], name: str) -> Iterator[str]:
    for table in tables.of_experiment(entry):
        yield tables.as_html(table)
    for figure in figures.of_experiment(experiment, name):
        yield _figure(figure)
    yield f'<div class="words">{tables.as_html(settings(experiment))}</div>'
    moving = [run for g in experiment.groups for run in g.runs if trades.of_run(run)]
    if moving:
        yield "<h3>What the layers traded</h3>"
        yield f"<p>{html.escape(GRIDS)}</p>"
    for run in moving:
        yield _trades(run, len(moving) <= OPEN)
    yield "<h3>To repeat these runs</h3>"
    for group in experiment.groups:
        yield _recipe(group, len(experiment.groups) <= OPEN)


def _figure(figure: Figure, level: int = 3) -> str:
    return (
        f"<h{level}>{html.escape(figure.title)}</h{level}>\n<figure>"
        f'<div role="img" aria-label="{html.escape(figure.alt)}">{figure.svg}</div>'
        f"<figcaption>{html.escape(figure.text)}</figcaption></figure>"
    )


def _trades(run: Run, is_open: bool) -> str:
    state = "" if run.status == FINISHED else f", {run.status}, {run.progress}"
    density = "" if run.density is None else f" at density {run.density:g}"
    title = f"{run.directory}: {run.method}{density}, seed {run.seed}{state}"
    found = "".join(map(grids.render, trades.of_run(run)))
    parts = [f"<p>{html.escape(_moved(run))}</p>", f'<div class="grids">{found}</div>']
    scores = score_figure.of_run(run)
    if scores:
        parts.append(_figure(scores, level=4))
    return (
        f"<details{' open' * is_open}><summary>{html.escape(title)}</summary>"
        f"{''.join(parts)}</details>"
    )


def _moved(run: Run) -> str:
    planned = (run.summary or {}).get("planned")
    planned = planned if isinstance(planned, dict) else {}
    parts = [
        f"{moved(run, unit)}{f' of {planned[unit]} planned' if unit in planned else ''} {unit}"
        for unit in UNITS
    ]
    stalls = {r["step"]: r.get("stall_seconds") for r in run.updates}
    known = [s for s in stalls.values() if isinstance(s, int | float)]
    stall = f"; training stood still for {sum(known):.2f} s in all" if known else ""
    return f"Moved in {_many(len(stalls), 'update')}: {' and '.join(parts)}{stall}."


def _recipe(group: Group, is_open: bool) -> str:
    recipe = reproduce.recipe(group)
    first = group.runs[0]
    versions = ", ".join(f"{k} {v}" for k, v in first.versions.items()) or "not recorded"
    host = first.host if isinstance(first.host, dict) else {}
    where = ", ".join(f"{k} {v}" for k, v in host.items() if not isinstance(v, dict))
    parts = [f"<p>Versions: {html.escape(versions)}. Host: {html.escape(where or 'not recorded')}."]
    if len({str(run.versions) for run in group.runs}) > 1:
        parts.append(" The runs of this group were made with different versions.")
    parts.append("</p>")
    if recipe.recorded:
        parts.append(_code("As it was started:", "\n".join(recipe.recorded)))
    if recipe.file is None:
        parts.append("<p>The model is not one of this version's: see its config.json.</p>")
    else:
        parts.append(_code(f"{reproduce.FILE}:", recipe.file))
        parts.append(_code("Commands:", "\n".join(recipe.commands)))
    return (
        f"<details{' open' * is_open}><summary>{html.escape(group.label)}, "
        f"{_many(len(group.runs), 'run')}</summary>{''.join(parts)}</details>"
    )


def _code(title: str, text: str) -> str:
    return f"<p>{html.escape(title)}</p><pre><code>{html.escape(text)}</code></pre>"


def _many(n: int, what: str) -> str:
    return f"{n} {what}{'' if n == 1 else 's'}"
