"""The document as one CSV: a line a group, then a line a run. Pure."""

from __future__ import annotations

import csv
import io
from typing import Any

from barter_jax.reporting.document import BASELINES, KINDS

COLUMNS = (
    "kind",
    "experiment",
    "group",
    "method",
    "variant",
    "density",
    "seed",
    "directory",
    "status",
    "step",
    "n",
    "accuracy_percent",
    "accuracy_sd",
    "accuracy_rank",
    "accuracy_paper",
    "macro_f1_percent",
    "macro_f1_sd",
    "macro_f1_rank",
    *(f"accuracy_minus_{b}{part}" for b in BASELINES for part in ("", "_sd", "_pairs")),
    "parameters",
    "training_gflops_per_image",
    "training_pflops",
    *(f"{kind}_seconds" for kind in KINDS),
    "total_seconds",
    "ms_per_step",
    "seconds_per_epoch",
    "best_validation_accuracy_percent",
    "problems",
)


def render(doc: dict[str, Any]) -> str:
    """The CSV; what is not known is empty. Percentages, seconds, and means in lines of groups."""
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    for experiment in doc["experiments"]:
        for group in experiment["groups"]:
            writer.writerow({"experiment": experiment["name"], **_group(group)})
    for run in doc["runs"]:
        writer.writerow(_run(run))
    return out.getvalue()


def _group(g: dict[str, Any]) -> dict[str, Any]:
    row = {
        "kind": "group",
        "group": g["label"],
        "n": g["finished"],
        **{
            k: g[k]
            for k in ("method", "variant", "density", "parameters", "training_gflops_per_image")
        },  # fmt: skip
        "accuracy_paper": (g["paper"] or {}).get("accuracy_percent"),
    }
    for name in ("accuracy", "macro_f1"):
        found = g[f"{name}_percent"] or {}
        row |= {
            f"{name}_percent": found.get("mean"),
            f"{name}_sd": found.get("sd"),
            f"{name}_rank": g["rank"].get(f"{name}_percent"),
        }
    for baseline in BASELINES:
        found = g["minus"][baseline]["accuracy"] or {}
        row |= {
            f"accuracy_minus_{baseline}": found.get("mean"),
            f"accuracy_minus_{baseline}_sd": found.get("sd"),
            f"accuracy_minus_{baseline}_pairs": found.get("pairs"),
        }
    for name in ("training_pflops", "ms_per_step", "seconds_per_epoch"):
        row[name] = (g[name] or {}).get("mean")
    for kind in (*KINDS, "total"):
        row[f"{kind}_seconds"] = (g["seconds"][kind] or {}).get("mean")
    return row


def _run(run: dict[str, Any]) -> dict[str, Any]:
    seconds = run["seconds"] or {}
    return {
        "kind": "duplicate" if run["duplicate_of"] else "run",
        **{
            k: run[k]
            for k in (
                "experiment",
                "group",
                "method",
                "density",
                "seed",
                "directory",
                "status",
                "step",
                "parameters",
                "training_gflops_per_image",
                "training_pflops",
            )
        },  # fmt: skip
        "accuracy_percent": run["test"]["accuracy"],
        "macro_f1_percent": run["test"]["macro_f1"],
        **{f"{kind}_seconds": seconds.get(kind) for kind in (*KINDS, "total")},
        "best_validation_accuracy_percent": run["best_validation"]["accuracy"],
        "problems": "; ".join(run["problems"]),
    }
