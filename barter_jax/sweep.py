"""Trains a grid of methods, densities and seeds; skips what is done, and goes on where it stopped.

    python -m barter_jax.sweep --config=configs/vit_tiny.py --methods=dense,static,barter \\
        --densities=0.1,0.3 --seeds=0,1,2 --workdir=runs/sweep --config.train.epochs=20

Each run is a work directory WORKDIR/<method>-<density>-seed<seed> of barter_jax.main, with what it
prints in a .log beside it. What cannot be trained, for its density, say, is told before the first
run starts. The same command goes on after an interruption. A run that fails is recorded
(WORKDIR/<run>.failed.json), the others go on, and it is tried again the next time. The exit code
is 0 once all are done, else 1. One run at a time, or with --devices=0,1,2,3 one on each of these
GPUs. On a cluster, --task and --tasks divide the grid: launch/sweep.sbatch does it as a SLURM
array.
`python -m barter_jax.report WORKDIR` draws the result.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from absl import flags
from ml_collections import config_dict

from barter_jax import blueprint, cli
from barter_jax.errors import UserError
from barter_jax.sweeping import grid, runner, status
from barter_jax.sweeping.status import Paths
from barter_jax.training.signals import Stopped

flags.declare_key_flag("config")
flags.declare_key_flag("json")
METHODS = flags.DEFINE_string("methods", None, "Methods; by default config.method.")
DENSITIES = flags.DEFINE_string("densities", None, "Densities; by default config.density.")
SEEDS = flags.DEFINE_string("seeds", None, "Seeds; by default config.seed.")
WORKDIR = flags.DEFINE_string(
    "workdir", None, "Directory of the sweep; by default runs/sweep_<name of the config file>."
)
DEVICES = flags.DEFINE_string(
    "devices", None, "GPUs to run on, one run on each, as 0,1,2; by default one run at a time."
)
TASK = flags.DEFINE_integer("task", 0, "Which part of the grid to run, from 0.")
TASKS = flags.DEFINE_integer("tasks", 1, "Into how many parts the grid is divided.")
DRY_RUN = flags.DEFINE_bool("dry_run", False, "Say what is there and what is left; run nothing.")


def config_arguments(argv: Sequence[str]) -> list[str]:
    """The flags among a command's that give its config, as they stand."""
    found = []
    for i, argument in enumerate(argv):
        if re.match(r"^--?(no)?config(\.|=)", argument):
            found.append(argument)
        elif re.match(r"^--?(no)?config$", argument):
            found += argv[i : i + 2]
    return found


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The states of the runs, a line each."""
    width = max(len(row["name"]) for row in rows)
    lines = []
    for row in rows:
        said = row["state"]
        if said == "done":
            said += f"  test accuracy {row['accuracy']:.4f}  macro-F1 {row['macro_f1']:.4f}"
        elif said == "failed":
            said += f"  {row['error']} (exit code {row['exit_code']}, {row['log']})"
        lines.append(f"{row['name']:{width}}  {said}")
    return "\n".join(lines)


def main(config: config_dict.ConfigDict) -> int:
    methods = [config.method] if METHODS.value is None else METHODS.value.split(",")
    if WORKDIR.value == "":
        raise UserError("--workdir is empty: name a directory, or leave it out")
    densities = [config.density]
    if DENSITIES.value is not None:
        densities = grid.numbers("densities", DENSITIES.value, float)
    seeds = [config.seed] if SEEDS.value is None else grid.numbers("seeds", SEEDS.value, int)
    cells = grid.cells([method.strip() for method in methods], densities, seeds)
    root = Path(WORKDIR.value or Path("runs") / f"sweep_{cli.config_name()}")
    if root.exists() and not root.is_dir():
        raise UserError(f"--workdir={root} is a file: give a directory")
    everything = [Paths(root, cell) for cell in grid.share(cells, TASK.value, TASKS.value)]
    configs = [grid.configured(config, paths.cell) for paths in everything]
    devices = [None] if DEVICES.value is None else _devices(DEVICES.value)
    if not DRY_RUN.value:
        _check_what_is_left(everything, configs)
        try:
            root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"--workdir={root} cannot be written: {error.strerror}") from error
        try:
            runner.run(everything, config, config_arguments(sys.argv[1:]), devices)
        except Stopped as stopped:
            return stopped.exit_code
    rows = [status.read(p, own) for p, own in zip(everything, configs, strict=True)]
    if cli.JSON.value:
        cli.print_json({"workdir": str(root), "runs": rows})
    elif rows:
        print(table(rows))
    return 1 if any(row["state"] != "done" for row in rows) and not DRY_RUN.value else 0


def _check_what_is_left(
    everything: Sequence[Paths], configs: Sequence[config_dict.ConfigDict]
) -> None:
    """Works out every run that is not done: a mistake must not show after hours.

    Raises:
      UserError: the data cannot be read, or one of the runs cannot be; names the first.
    """
    left = [
        (paths.cell, config)
        for paths, config in zip(everything, configs, strict=True)
        if status.read(paths, config)["state"] != "done"
    ]
    if not left:
        return
    # Once: the seed decides which images are held out, not how many. Prepares what TFDS has to.
    dataset = blueprint.load_data(left[0][1])
    for cell, config in left:
        try:
            blueprint.check_data(config, dataset)
            blueprint.make(config, len(dataset.class_names), len(dataset.train))
        except UserError as error:
            raise UserError(f"{cell.name}: {error}") from error


def _devices(text: str) -> list[str]:
    devices = [str(device) for device in grid.numbers("devices", text, int)]
    if len(set(devices)) < len(devices):
        raise UserError(f"--devices={text} names a device twice: give each once")
    return devices


if __name__ == "__main__":
    cli.run(main)
