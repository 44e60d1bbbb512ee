"""Describes a run without training: budgets, per-layer counts, planned updates, size and cost.

python -m barter_jax.describe --config=configs/paper/cct_cifar100.py --config.density=0.1
"""

from __future__ import annotations

import math
from typing import Any

from absl import flags
from ml_collections import config_dict

from barter_jax import blueprint, cli
from barter_jax.blueprint import Blueprint
from barter_jax.core import accounting
from barter_jax.core.topology import UNITS, Topology
from barter_jax.training import state as state_lib

flags.declare_key_flag("config")
flags.declare_key_flag("json")


def describe(config: config_dict.ConfigDict, plan: Blueprint) -> dict[str, Any]:
    """The document that `--json` prints.

    GFLOPs are per image of one training step: forward and backward, in the paper's counting.
    """
    return {
        "model": config.model.name,
        "method": config.method,
        "density": config.density,
        "budget": _both(plan.initial.budget),
        "transfers": _both(plan.transfers),
        "initial": plan.initial.to_json(),
        "caps": plan.caps.to_json(),
        **_cost(plan, plan.initial),
        "dense": _cost(plan, plan.dims.dense),
        "steps": plan.total_steps,
        "steps_per_epoch": plan.steps_per_epoch,
        "updates": [
            {"step": u.step, "heads": u.heads, "channels": u.channels} for u in plan.schedule
        ],
        "bucket": {**_both(plan.bucket), "waste": plan.waste},
        "padded": plan.physical.to_json(),
        "shapes_at_most": plan.shapes_at_most,
        "masked": _masked(plan),
    }


def _masked(plan: Blueprint) -> dict[str, Any] | None:
    """What a masked method plans: its updates, and the active weights or units."""
    if plan.masked is None:
        return None
    schedule = plan.masked.schedule
    document: dict[str, Any] = {
        "every_steps": schedule.every,
        "stop_fraction": schedule.stop_fraction,
        "drop_fraction": [schedule.start, schedule.end],
    }
    if plan.masked.counts:
        return {**document, "active": plan.masked.counts.to_json()}
    params = state_lib.abstract_params(plan, plan.initial)
    layers = plan.masked.layers(params)
    return {
        **document,
        "active": sum(plan.masked.planned(params)),
        "weights": sum(math.prod(layer.shape) for layer in layers),
    }


def _both(budget) -> dict[str, int]:
    return {unit: budget.of(unit) for unit in UNITS}


def _cost(plan: Blueprint, topology: Topology) -> dict[str, float]:
    return {
        "parameters": accounting.parameters(plan.dims, topology),
        "training_gflops_per_image": accounting.training_flops(plan.dims, topology) / 1e9,
    }


def render(doc: dict[str, Any]) -> str:
    """The document as text for a person."""
    dense = doc["dense"]
    share = doc["parameters"] / dense["parameters"]
    epochs = doc["steps"] / doc["steps_per_epoch"]
    gflops, dense_gflops = doc["training_gflops_per_image"], dense["training_gflops_per_image"]
    lines = [
        f"{doc['model']}, method {doc['method']}, density {doc['density']:g}",
        f"  parameters       {doc['parameters']:>12,}   {share:.1%} of {dense['parameters']:,}",
        f"  GFLOPs per image {gflops:>12.4f}   {dense_gflops / gflops:.2f}x less than "
        f"{dense_gflops:.4f} (forward and backward)",
        f"  steps            {doc['steps']:>12,}   {epochs:,.2f} epochs of "
        f"{doc['steps_per_epoch']}",
        f"  padded shapes    {doc['shapes_at_most']:>12}   at most",
        "",
        "             budget   to move   per layer at the start (in tensors)",
    ]
    for unit in UNITS:
        initial, padded = doc["initial"][unit], doc["padded"][unit]
        layers = " ".join(
            f"{n}" if n == p else f"{n}({p})" for n, p in zip(initial, padded, strict=True)
        )
        lines.append(f"  {unit:<9}{doc['budget'][unit]:>8}{doc['transfers'][unit]:>10}   {layers}")
    if doc["masked"]:
        return "\n".join([*lines, "", *_masked_lines(doc["masked"])])
    lines += ["", f"  {len(doc['updates'])} topology updates planned"]
    if doc["updates"]:
        lines.append("      step   heads  channels")
        lines += [f"  {u['step']:>8}{u['heads']:>8}{u['channels']:>10}" for u in doc["updates"]]
    return "\n".join(lines)


def _masked_lines(masked: dict[str, Any]) -> list[str]:
    start, end = masked["drop_fraction"]
    if "weights" in masked:
        share = masked["active"] / masked["weights"]
        active = f"{masked['active']:,} of {masked['weights']:,} weights ({share:.1%})"
    else:
        active = ", ".join(f"{sum(masked['active'][unit])} {unit}" for unit in UNITS)
    return [
        f"  {active} are active under masks, which change every {masked['every_steps']} steps up "
        f"to {masked['stop_fraction']:.0%} of the run,",
        f"  replacing {start:g} of the active ones at first and {end:g} at last",
    ]


def main(config: config_dict.ConfigDict) -> None:
    plan = blueprint.make(config, *blueprint.data_sizes(config))
    document = describe(config, plan)
    if cli.JSON.value:
        cli.print_json(document)
    else:
        print(render(document))


if __name__ == "__main__":
    cli.run(main)
