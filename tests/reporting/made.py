"""Work directories as runs leave them, made up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from barter_jax import config as config_lib
from barter_jax.training.workdir import as_json

VERSIONS = {"python": "3.11.7", "jax": "0.10.2"}
SECONDS = {
    "compile": 4.0,
    "update": 1.0,
    "evaluation": 2.0,
    "checkpoint": 0.5,
    "data": 1.5,
    "step": 10.0,
    "total": 19.0,
}
# Two layers with three heads and eight channels in all trade at steps 4 and 8.
UPDATES = (
    (4, "heads", 1, [[0, 1]], [1, 2], [4, 4]),
    (4, "channels", 0, [[1, 0], [1, 2]], [1, 2], [6, 2]),
    (8, "channels", 1, [[0, 5]], [1, 2], [5, 3]),
)


def config(model: str = "vit", **overrides) -> dict[str, Any]:
    """A config as `config.json` has it; `train__epochs=3` sets `train.epochs`."""
    c = config_lib.default_config(model)
    c.update_from_flattened_dict({k.replace("__", "."): v for k, v in overrides.items()})
    return as_json(c)


def small(**overrides) -> dict[str, Any]:
    """A ViT of two layers on ten classes of 8 by 8 images, 10 steps of 8 images."""
    return config(
        **{
            "data__name": "digits",
            "data__image_size": 8,
            "data__num_classes": 10,
            "model__layers": 2,
            "model__width": 16,
            "model__heads": 4,
            "model__head_width": 4,
            "model__channels": 12,
            "model__patch_size": 4,
            "train__steps": 10,
            "train__batch_size": 8,
            **overrides,
        }
    )


def rows(accuracy: float, steps: int = 10, test: bool = True) -> list[dict[str, Any]]:
    """Lines of `metrics.jsonl`, with the best validation accuracy at step 5."""
    found = []
    for step in range(1, steps + 1):
        found.append(
            {
                "step": step,
                "split": "train",
                "loss": 2 / step,
                "accuracy": 0.1,
                "learning_rate": 1e-3 / step,
                "images_per_second": 80.0,
            }
        )
        if step % 5 == 0:
            value = accuracy if step == 5 else accuracy / 2
            found.append(
                {
                    "step": step,
                    "split": "validation",
                    "loss": 3 / step,
                    "accuracy": value,
                    "macro_f1": value,
                    "images": 20,
                }
            )
    if test:
        found.append({"step": steps, "split": "test", "accuracy": accuracy, "loss": 1.0})
    return found


def topology(counts_start=(2, 1), scores: bool = False) -> list[dict[str, Any]]:
    """Lines of `topology.jsonl`."""
    found = []
    for step, unit, receiver, donors, heads, channels in UPDATES:
        row = {
            "step": step,
            "unit": unit,
            "planned": len(donors),
            "moved": len(donors),
            "carried": 0,
            "receiver": receiver,
            "donors": donors,
            "parents": list(range(len(donors))),
            "counts": {"heads": heads, "channels": channels},
            "padded": {"heads": heads, "channels": channels},
            "compile_seconds": 0.5,
            "stall_seconds": 0.75,
            "compiled_ahead": False,
        }
        if scores:
            layer = [1e-6, 2e-6, 3e-6, 4e-6, 5e-6]
            row["scores"] = {
                "pruning": [layer, [10 * x for x in layer]],
                "growth": [layer, [100 * x for x in layer]],
                "priority": [1e-6 * step, 3e-6 * step],
            }
        found.append(row)
    return found


def summary(accuracy: float, macro_f1: float, **other) -> dict[str, Any]:
    return {
        "steps": 10,
        "test": {"loss": 1.0, "accuracy": accuracy, "macro_f1": macro_f1, "images": 100},
        "parameters": 2000,
        "training_gflops_per_image": 0.5,
        "updates": 2,
        "moved": {"heads": 1, "channels": 3},
        "planned": {"heads": 1, "channels": 4},
        "seconds": dict(SECONDS),
        **other,
    }


def write(
    directory: Path,
    config: dict[str, Any] | None,
    accuracy: float | None = None,
    *,
    macro_f1: float | None = None,
    metrics: list[dict[str, Any]] | None = None,
    updates: list[dict[str, Any]] | None = None,
    summary_: dict[str, Any] | None = None,
    **document,
) -> Path:
    """Writes a work directory: a finished run where `accuracy` is given.

    Args:
      directory: created.
      config: None writes no `config.json`.
      accuracy: of the test split; None leaves the run unfinished after its tenth step.
      macro_f1: by default the accuracy.
      metrics: lines of `metrics.jsonl` instead of made-up ones.
      updates: lines of `topology.jsonl`; by default none.
      summary_: instead of a made-up one.
      document: further keys of `config.json`.
    """
    directory.mkdir(parents=True)
    if config is not None:
        text = json.dumps({"config": config, "versions": VERSIONS, **document})
        (directory / "config.json").write_text(text)
    if metrics is None:
        metrics = rows(accuracy or 0.5, test=accuracy is not None)
    lines(directory / "metrics.jsonl", metrics)
    lines(directory / "topology.jsonl", updates or [])
    if accuracy is not None or summary_:
        found = summary_ or summary(accuracy, accuracy if macro_f1 is None else macro_f1)
        (directory / "summary.json").write_text(json.dumps(found))
    return directory


def lines(file: Path, rows_: list[dict[str, Any]]) -> None:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows_))


def sweep(root: Path) -> Path:
    """Twelve runs: three seeds of four methods at density 0.5, with accuracies to reckon with."""
    for method, accuracies in ACCURACIES.items():
        for seed, accuracy in enumerate(accuracies):
            moving = method in ("barter", "random_pair")
            write(
                root / f"{method}_{seed}",
                small(method=method, density=0.5, seed=seed),
                accuracy,
                macro_f1=accuracy - 0.1,
                updates=topology(scores=seed == 0) if moving else None,
            )
    return root


# Means 0.62, 0.60, 0.58 and 0.70; barter less static: 0.03, 0.00 and 0.03.
ACCURACIES = {
    "barter": (0.60, 0.62, 0.64),
    "static": (0.57, 0.62, 0.61),
    "random_pair": (0.58, 0.58, 0.58),
    "dense": (0.70, 0.72, 0.68),
}
