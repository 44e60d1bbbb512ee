"""Trains a compact Transformer, or resumes what the work directory holds.

    python -m barter_jax.main --config=configs/vit_tiny.py --workdir=runs/mine \\
        --config.density=0.2 --config.train.epochs=20

The work directory receives config.json, metrics.jsonl, topology.jsonl, summary.json, checkpoints/,
model/ (the compact model of the best validation accuracy: barter_jax.load takes its path) and
tensorboard/. The same command, given again after an interruption, goes on where it stopped and
gives the same bits. With --json the summary is printed on stdout. The fields of a config stand,
with their meaning, in barter_jax/config.py.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from absl import flags
from ml_collections import config_dict

from barter_jax import cli
from barter_jax.errors import UserError
from barter_jax.training import hosts, loop
from barter_jax.training.signals import Stopped

flags.declare_key_flag("config")
flags.declare_key_flag("json")
WORKDIR = flags.DEFINE_string(
    "workdir", None, "Directory of the run; by default runs/<name of the config file>."
)
OVERWRITE = flags.DEFINE_bool(
    "overwrite", False, "Start afresh in a work directory that holds another run; removes it."
)
DISTRIBUTED = flags.DEFINE_bool(
    "distributed",
    False,
    "Train in several processes, one to a host as a rule, started alike; who they are is found as "
    "JAX finds it on TPU slices and under SLURM and Open MPI.",
)
COORDINATOR = flags.DEFINE_string(
    "coordinator", None, "host:port of the first process, where --distributed cannot find it."
)
NUM_PROCESSES = flags.DEFINE_integer("num_processes", None, "Processes in all, with --coordinator.")
PROCESS_ID = flags.DEFINE_integer(
    "process_id", None, "Number of this process, from 0, with --coordinator."
)


def main(config: config_dict.ConfigDict) -> int:
    given = (COORDINATOR.value, NUM_PROCESSES.value, PROCESS_ID.value)
    if DISTRIBUTED.value or any(value is not None for value in given):
        hosts.start(*given)
    if WORKDIR.value == "":
        raise UserError("--workdir is empty: name a directory, or leave it out")
    directory = Path(WORKDIR.value or Path("runs") / cli.config_name())
    try:
        with hosts.ending_alone():
            summary = loop.train(config, directory, OVERWRITE.value, _command())
    except Stopped as stopped:
        return stopped.exit_code
    if cli.JSON.value and hosts.Hosts().first:
        cli.print_json(summary)
    return 0


def _command() -> str:
    return shlex.join(["python", "-m", "barter_jax.main", *sys.argv[1:]])


if __name__ == "__main__":
    cli.run(main)
