"""Step time and memory of each case, as a figure."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from barter_jax.benchmarking import table
from barter_jax.errors import UserError

SUFFIXES = (".png", ".svg", ".pdf")


def check(path: Path) -> None:
    """Refuses what cannot be plotted, before anything is measured.

    Raises:
      UserError: the suffix is unknown, or matplotlib is not installed.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise UserError(
            f"--plot={path}: the name must end in one of {', '.join(SUFFIXES)}, "
            f"got {path.suffix or 'no suffix'!r}"
        )
    if importlib.util.find_spec("matplotlib") is None:
        raise UserError("--plot needs matplotlib: pip install matplotlib")


def write(doc: dict[str, Any], path: Path) -> None:
    """Draws the document; the suffix of `path` decides the format.

    Step times are medians, with bars from the 10th to the 90th percentile. Memory is the device's
    peak where every case has one, else what the compiler planned; PyTorch's is shown only where
    the device tells it.
    """
    from matplotlib.figure import Figure

    cases = doc["cases"]
    several = len(doc["reference"]) > 1
    labels = [table.label(case, several) for case in cases]
    figure = Figure(figsize=(10, 1.5 + 0.35 * len(cases)), layout="constrained")
    times, memory = figure.subplots(1, 2, sharey=True)

    medians = [case["step_ms"]["median"] for case in cases]
    below = [case["step_ms"]["median"] - case["step_ms"]["p10"] for case in cases]
    above = [case["step_ms"]["p90"] - case["step_ms"]["median"] for case in cases]
    times.barh(labels, medians, xerr=[below, above], color="tab:blue", capsize=3)
    times.set_xlabel("step time in ms (median, p10 to p90)")
    times.invert_yaxis()  # the first case on top

    source = "device" if all(case["memory"]["device"] for case in cases) else "compiler"
    found = [case["memory"][source] for case in cases]
    bytes_ = [x["peak_bytes"] if x else 0 for x in found]
    unit, scale = ("GiB", table.GIB) if max(bytes_) >= table.GIB else ("MiB", table.MIB)
    memory.barh(labels, [b / scale for b in bytes_], color="tab:orange")
    memory.set_xlabel(f"peak memory of a step in {unit} ({source})")

    environment = doc["environment"]
    figure.suptitle(
        f"{doc['settings']['model']}, {environment['dtype']}, {environment['device_kind']}"
    )
    figure.savefig(path)
