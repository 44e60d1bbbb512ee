"""The tables of a report as Markdown. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from barter_jax.reporting import tables
from barter_jax.reporting.groups import Grouping
from barter_jax.reporting.text import INTRODUCTION, settings, states

MARK = "<!-- barter_jax.report -->"


def render(grouping: Grouping, doc: dict[str, Any], command: Sequence[str]) -> str:
    """The document's tables; the figures are in the HTML page beside it.

    Args:
      grouping: the runs.
      doc: their document.
      command: the words that the report was made with, to be shown.
    """
    n = len(doc["runs"])
    parts = [
        MARK,
        f"# Report of {n} run{'' if n == 1 else 's'}",
        INTRODUCTION,
        f"Made by `{shlex.join(command)}`, barter_jax {doc['barter_jax']}. Figures, and how to "
        "repeat the runs, are in `report.html`; the same numbers are in `report.csv`.",
        states(doc["runs"]),
    ]
    for experiment, entry in zip(grouping.experiments, doc["experiments"], strict=True):
        parts.append(f"## {experiment.name}")
        parts += [tables.markdown(table) for table in tables.of_experiment(entry)]
        parts.append(tables.markdown(settings(experiment)))
    parts += ["## All runs", tables.markdown(tables.of_runs(doc["runs"]))]
    parts += [f"`{x['directory']}` is `{x['is']}`: read once." for x in doc["given_twice"]]
    return "\n\n".join(part.rstrip("\n") for part in parts) + "\n"
