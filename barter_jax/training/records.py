"""The documents that a run writes about itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from barter_jax.blueprint import Blueprint
from barter_jax.core import accounting
from barter_jax.core.barter import Decision, Progress
from barter_jax.core.schedule import PlannedUpdate
from barter_jax.core.topology import UNITS
from barter_jax.deploy.model import Card
from barter_jax.training.checkpoint import Evaluation


def topology_rows(decision: Decision, update: PlannedUpdate) -> Iterator[dict[str, Any]]:
    """The lines of `topology.jsonl` for one update: one per unit type that was to move."""
    plans = {plan.unit: plan for plan in decision.plans}
    after = decision.after.topology
    for unit in UNITS:
        planned = update.amount(unit) + decision.before.carried.of(unit)
        if not planned:
            continue
        plan = plans.get(unit)
        yield {
            "step": decision.step,
            "unit": unit,
            "planned": planned,
            "moved": plan.amount if plan else 0,
            "carried": decision.after.carried.of(unit),
            "receiver": plan.receiver if plan else None,
            "donors": [list(donor) for donor in plan.donors] if plan else [],
            "parents": list(plan.parents) if plan else [],
            "counts": after.to_json(),
            "padded": decision.after.physical.to_json(),
        }


def summary(
    plan: Blueprint,
    progress: Progress,
    card: Card,
    latest: Evaluation,
    *,
    steps: int,
    test: Mapping[str, float],
    updates: int,
    compiled: Mapping[str, float],
    seconds: Mapping[str, float],
) -> dict[str, Any]:
    """`summary.json`: final and best metrics, size and cost, and where the time went.

    Args:
      plan: the run before its first step.
      progress: how far the exchanges came.
      card: of the best model.
      latest: the evaluation at the end.
      steps: optimizer steps taken.
      test: the best model's metrics on the test split.
      updates: topology updates that moved a unit.
      compiled: what this process compiled: shapes, updates whose shapes were ready when they
        came, and seconds of the background thread; what the cache on disk had of it and what is
        new there, and the seconds of compiling that it saved.
      seconds: wall-clock by kind.
    """
    return {
        "steps": steps,
        "test": dict(test),
        "best": {"step": card.step, "validation": card.metrics},
        "final": {"step": latest.step, "validation": latest.metrics},
        "topology": progress.topology.to_json(),
        "model_topology": card.topology.to_json(),
        "parameters": accounting.parameters(plan.dims, progress.topology),
        # Of the best model, those that a mask has set to zero left out.
        "exported_parameters": card.parameters or accounting.parameters(plan.dims, card.topology),
        "training_gflops_per_image": accounting.training_flops(plan.dims, progress.topology) / 1e9,
        "updates": updates,
        "moved": {unit: progress.moved.of(unit) for unit in UNITS},
        "planned": {unit: plan.transfers.of(unit) for unit in UNITS},
        "compiled": dict(compiled),
        # At most so much of the training time the devices had nothing to do for want of data: they
        # may still have been busy with earlier steps.
        "data_wait": round(seconds["data"] / max(seconds["data"] + seconds["step"], 1e-9), 5),
        "seconds": {
            **{kind: round(value, 3) for kind, value in seconds.items()},
            "total": round(sum(seconds.values()), 3),
        },
    }
