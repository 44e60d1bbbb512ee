"""Compares any number of runs: tables, figures and how to repeat them.

    python -m barter_jax.report runs/vit_tiny runs/second
    python -m barter_jax.report runs --output=comparison

Each DIR is a work directory, finished or not, or a directory that holds some. The report goes to
--output as report.md, report.csv and report.html, one self-contained page; files of an earlier
report are replaced, everything else there is left alone. Runs that differ in their seed alone are
averaged. --json prints the numbers as one document besides.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from absl import flags

from barter_jax import cli
from barter_jax.errors import UserError
from barter_jax.reporting import figures, find, groups, markdown, page, spreadsheet, write
from barter_jax.reporting.document import document
from barter_jax.reporting.read import read

flags.declare_key_flag("json")
OUTPUT = flags.DEFINE_string(
    "output", "report", "Directory for the report, created if absent; not inside a run."
)

log = logging.getLogger("barter_jax")


def main(paths: Sequence[str]) -> None:
    if not paths:
        raise UserError("no directory is given: name work directories, or one that holds some")
    if not OUTPUT.value:
        raise UserError("--output is empty: give a directory")
    output = Path(OUTPUT.value)
    figures.check()
    directories, again = find.find(paths)
    write.check(output, directories)
    grouping = groups.group([read(directory) for directory in directories])
    doc = document(grouping, again)
    command = ["python", "-m", "barter_jax.report", *paths, f"--output={output}"]
    write.write(
        output,
        {
            "report.md": markdown.render(grouping, doc, command),
            "report.csv": spreadsheet.render(doc),
            "report.html": page.render(grouping, doc, command),
        },
    )
    log.info("%s: %s", output / "report.html", _counted(doc["runs"]))
    if cli.JSON.value:
        cli.print_json(doc)


def _counted(runs: Sequence[Mapping[str, Any]]) -> str:
    """`3 runs`, or `3 runs, 1 of them broken`."""
    broken = sum(run["status"] == "broken" for run in runs)
    text = f"{len(runs)} run{'' if len(runs) == 1 else 's'}"
    return f"{text}, {broken} of them broken" if broken else text


if __name__ == "__main__":
    cli.run_plain(main)
