"""The JSON document of a report: what follows from the runs. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from barter_jax import __version__
from barter_jax.core.topology import UNITS
from barter_jax.reporting import paper
from barter_jax.reporting.cost import costs
from barter_jax.reporting.groups import Experiment, Group, Grouping, reference
from barter_jax.reporting.read import Run, number
from barter_jax.reporting.statistics import difference, ranks, spread

# Parts of the wall-clock, as the loop's own clock has them.
KINDS = ("step", "data", "update", "start", "compile", "evaluation", "checkpoint")
# Those that training itself takes: compiling is done once and then comes from disk.
TRAINING = ("step", "data", "update")
# What groups are compared with.
BASELINES = ("static", "barter")

DEFINITIONS = {
    "group": (
        "runs whose configs agree in everything but the seed and fields that change no result; "
        "groups are never averaged together"
    ),
    "accuracy_percent": (
        "of the best model (by validation accuracy) on the test images; mean, sample standard "
        "deviation (n - 1) and number of finished runs, one a seed"
    ),
    "macro_f1_percent": "the plain mean of the classes' F1, likewise",
    "rank": "1 and 2: the highest and second highest mean of the density in the experiment",
    "minus": (
        "percentage points above the group of that method at the same density whose other fields "
        "agree: the mean over the pairs of equal seed and its sample standard deviation; with "
        "pairs = 0 the difference of the means, as no seed is in both"
    ),
    "parameters": "of the exported model",
    "training_gflops_per_image": (
        "forward and backward of one training step, in the paper's counting: 6 per "
        "multiply-accumulate; of fine-tuning without the gradient of the image"
    ),
    "training_pflops": "training_gflops_per_image x images per step x steps done",
    "seconds": (
        "wall-clock by the loop's own clock: step is what is in no other part; data is waiting for "
        "batches; update is deciding and resizing; start is what comes before a process's first "
        "step; training = step + data + update"
    ),
    "ms_per_step": "seconds of step / steps, in milliseconds",
    "paper": f"the value in {paper.SOURCE} for the same experiment, method and density",
}


def document(grouping: Grouping, again: Sequence[tuple[Path, Path]]) -> dict[str, Any]:
    """The document that `--json` prints.

    Args:
      grouping: the runs.
      again: pairs of names of one directory that was given twice.
    """
    places = _places(grouping)
    runs = [run for e in grouping.experiments for g in e.groups for run in g.runs]
    left_out = {id(run): first for run, first in grouping.duplicates}
    runs += [run for run, _ in grouping.duplicates] + list(grouping.ungrouped)
    return finite(
        {
            "barter_jax": __version__,
            "definitions": DEFINITIONS,
            "experiments": [_experiment(e) for e in grouping.experiments],
            "runs": [
                {
                    **_run(run),
                    **places.get(id(run), {"experiment": None, "group": None}),
                    "duplicate_of": (
                        str(left_out[id(run)].directory) if id(run) in left_out else None
                    ),
                }
                for run in runs
            ],
            "given_twice": [
                {"directory": str(second), "is": str(first)} for second, first in again
            ],
        }
    )


def finite(value: Any) -> Any:
    """The same without NaN and infinities, which JSON has no way to write: None instead."""
    if isinstance(value, Mapping):
        return {key: finite(x) for key, x in value.items()}
    if isinstance(value, list | tuple):
        return [finite(x) for x in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _places(grouping: Grouping) -> dict[int, dict[str, str]]:
    """Where each run stands, by its identity as an object."""
    return {
        id(run): {"experiment": e.name, "group": g.label}
        for e in grouping.experiments
        for g in e.groups
        for run in g.runs
    }


# --- runs --------------------------------------------------------------------------------------


def _run(run: Run) -> dict[str, Any]:
    cost = costs(run)
    best = run.best_validation
    return {
        "directory": str(run.directory),
        "status": run.status,
        "progress": run.progress,
        "problems": list(run.problems),
        "method": run.method,
        "density": run.density,
        "seed": run.seed,
        "step": run.step,
        "total_steps": run.total_steps,
        "test": {name: tested(run, name) for name in ("accuracy", "macro_f1")}
        | {"loss": number(run.test.get("loss"))},
        "best_validation": {
            "step": best.get("step"),
            "accuracy": percent(best.get("accuracy")),
            "macro_f1": percent(best.get("macro_f1")),
        },
        "parameters": cost.own.parameters if cost.own else None,
        "training_gflops_per_image": cost.own.gflops if cost.own else None,
        "training_pflops": training_pflops(run),
        "seconds": run.seconds or None,
        "moved": {unit: moved(run, unit) for unit in UNITS},
        "planned": (run.summary or {}).get("planned"),
        "versions": run.versions,
        "host": run.host,
    }


def moved(run: Run, unit: str) -> int:
    """Units of one type moved so far."""
    return sum(len(row["donors"]) for row in run.updates if row["unit"] == unit)


def percent(fraction: Any) -> float | None:
    value = number(fraction)
    return None if value is None else 100 * value


def tested(run: Run, name: str) -> float | None:
    """A test metric of a finished run in percent."""
    return percent(run.test.get(name))


def training_pflops(run: Run) -> float | None:
    """FLOPs of the steps done so far, in units of 1e15."""
    own, batch = costs(run).own, number(run.config.get("train.batch_size"))
    if own is None or batch is None:
        return None
    return own.gflops * batch * run.step / 1e6


def training_seconds(run: Run) -> float | None:
    """Seconds of step, data and update of a finished run."""
    parts = [run.seconds.get(kind) for kind in TRAINING]
    return None if None in parts else sum(parts)


# --- groups ------------------------------------------------------------------------------------


def _experiment(experiment: Experiment) -> dict[str, Any]:
    groups = [_group(g, experiment.groups) for g in experiment.groups]
    for density in {g["density"] for g in groups}:
        column = [g for g in groups if g["density"] == density]
        for name in ("accuracy_percent", "macro_f1_percent"):
            means = [g[name]["mean"] if g[name] else None for g in column]
            for g, rank in zip(column, ranks(means), strict=True):
                g["rank"][name] = rank
    return {
        "name": experiment.name,
        "model": experiment.model,
        "data": experiment.data,
        "groups": groups,
    }


def _group(g: Group, groups: Sequence[Group]) -> dict[str, Any]:
    first = g.runs[0]
    cost = costs(first)
    known = paper.match(first.config)
    seconds = {
        kind: _spread(run.seconds.get(kind) for run in g.finished) for kind in (*KINDS, "total")
    }
    seconds["training"] = _spread(map(training_seconds, g.finished))
    return {
        "label": g.label,
        "row": g.row,
        "method": g.method,
        "variant": g.variant,
        "density": g.density,
        "runs": [str(run.directory) for run in g.runs],
        "seeds": [run.seed for run in g.runs],
        "finished": len(g.finished),
        "accuracy_percent": _spread(tested(run, "accuracy") for run in g.finished),
        "macro_f1_percent": _spread(tested(run, "macro_f1") for run in g.finished),
        "rank": {},
        "minus": {
            baseline: {
                name: _minus(g, reference(g, baseline, groups), name)
                for name in ("accuracy", "macro_f1")
            }
            for baseline in BASELINES
        },
        "parameters": cost.own.parameters if cost.own else None,
        "training_gflops_per_image": cost.own.gflops if cost.own else None,
        "dense": {
            "parameters": cost.dense.parameters if cost.dense else None,
            "training_gflops_per_image": cost.dense.gflops if cost.dense else None,
        },
        "training_pflops": _spread(map(training_pflops, g.finished)),
        "seconds": seconds,
        "ms_per_step": _spread(map(_ms_per_step, g.finished)),
        "seconds_per_epoch": _spread(map(_seconds_per_epoch, g.finished)),
        "versions_differ": len({str(run.versions) for run in g.runs}) > 1,
        "paper": None
        if known is None or g.density is None
        else {
            "experiment": known.title,
            "source": paper.SOURCE,
            **paper.values(known, g.method, g.density),
        },
    }


def _spread(values) -> dict[str, Any] | None:
    found = spread(values)
    return found.to_json() if found else None


def _minus(g: Group, other: Group | None, name: str) -> dict[str, Any] | None:
    if other is None:
        return None
    ours, theirs = (
        {run.seed: tested(run, name) for run in x.finished} for x in (g, other)
    )  # fmt: skip
    found = difference(ours, theirs)
    return {"group": other.label, **found.to_json()} if found else None


def _ms_per_step(run: Run) -> float | None:
    seconds = run.seconds.get("step")
    return None if seconds is None or not run.step else 1e3 * seconds / run.step


def _seconds_per_epoch(run: Run) -> float | None:
    """Training seconds by epochs, where the run's length was given in epochs."""
    seconds, epochs = training_seconds(run), number(run.config.get("train.epochs"))
    otherwise = run.config.get("train.steps"), run.config.get("train.match_flops_of")
    if seconds is None or not epochs or any(otherwise):
        return None
    return seconds / epochs
