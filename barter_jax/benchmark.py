"""Times training steps of several methods side by side: speed, memory, compiling, updates.

    python -m barter_jax.benchmark --config=configs/vit_tiny.py
    python -m barter_jax.benchmark --config=configs/paper/cct_cifar100.py --densities=0.1,0.3 \\
        --batch_sizes=64,128 --output=benchmark.json --plot=benchmark.png

Everything runs in this one process, the methods in turns, on random images of the config's size,
so no data is needed where the config states data.num_classes and data.num_train. Methods are
those of config.method, and
  masked        the dense model under a fixed random mask: what SET, RigL and the like cost at
                least, between the changes of their masks
  torch_dense   the dense model in eager PyTorch, where PyTorch is installed
  torch_static  the compact model in eager PyTorch
With --segment the real loop trains for an epoch on the real data besides. --json prints one
document, which defines its figures.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import signal
from pathlib import Path
from typing import Any

from absl import flags
from ml_collections import config_dict

from barter_jax import blueprint as blueprint_lib
from barter_jax import cli
from barter_jax.benchmarking import cases as cases_lib
from barter_jax.benchmarking import document, measure, plans, plot, segments, table
from barter_jax.benchmarking.prepare import Settings
from barter_jax.errors import UserError
from barter_jax.training import environment
from barter_jax.training.signals import Stopped

flags.declare_key_flag("config")
flags.declare_key_flag("json")
METHODS = flags.DEFINE_string(
    "methods", "dense,masked,static,barter", f"Which methods: {', '.join(cases_lib.METHODS)}."
)
DENSITIES = flags.DEFINE_string("densities", None, "Densities; by default config.density.")
BATCH_SIZES = flags.DEFINE_string(
    "batch_sizes", None, "Images per step; by default config.train.batch_size."
)
REPEATS = flags.DEFINE_integer("repeats", 20, "Rounds: turns of each case.", lower_bound=1)
BLOCK = flags.DEFINE_integer(
    "block", None, "Steps of a turn; by default as many as last 50 ms.", lower_bound=1
)
WARMUP = flags.DEFINE_integer("warmup", 3, "Steps before a case is timed.", lower_bound=1)
PLOT = flags.DEFINE_string("plot", None, "File for a figure: .png, .svg or .pdf. Needs matplotlib.")
OUTPUT = flags.DEFINE_string("output", None, "File for the JSON document.")
SEGMENT = flags.DEFINE_bool(
    "segment", False, "Run an epoch of the training loop of each method but masked and torch_*."
)
SEGMENT_STEPS = flags.DEFINE_integer(
    "segment_steps", None, "With --segment: steps instead of an epoch.", lower_bound=1
)

log = logging.getLogger("barter_jax")


def main(config: config_dict.ConfigDict) -> int:
    # As Ctrl-C does: what was made for the time being is removed on the way out.
    signal.signal(signal.SIGTERM, _stop)
    try:
        _run(config)
    except Stopped as stopped:
        log.info("%s", stopped)
        return stopped.exit_code
    return 0


def _stop(number: int, _) -> None:
    raise Stopped(number)


def _run(config: config_dict.ConfigDict) -> None:
    wanted = cases_lib.expand(
        cases_lib.parse_methods(METHODS.value),
        (config.density,)
        if DENSITIES.value is None
        else cases_lib.parse_densities(DENSITIES.value),
        (config.train.batch_size,)
        if BATCH_SIZES.value is None
        else cases_lib.parse_batch_sizes(BATCH_SIZES.value),
    )
    _check_files()
    torch_version = _check_torch(config, wanted)
    sizes = blueprint_lib.data_sizes(config)
    if SEGMENT.value:
        segments.check_data(config)
    elif SEGMENT_STEPS.value is not None:
        raise UserError("--segment_steps is for --segment: give both")
    prepared = plans.make_all(config, wanted, *sizes)

    settings = Settings(REPEATS.value, WARMUP.value, BLOCK.value)
    doc = document.document(
        measure.measure(prepared, settings),
        environment.describe(config.model.dtype, torch_version),
        {
            "config": cli.config_name(),
            "model": config.model.name,
            "rounds": settings.rounds,
            "warmup": settings.warmup,
        },
    )
    if SEGMENT.value:
        runnable = [plan for plan in prepared if segments.can_run(plan.case)]
        doc["segments"] = segments.document(
            [segments.run(plan, SEGMENT_STEPS.value) for plan in runnable]
        )
    _put_out(doc)


def _check_files() -> None:
    """Finds out whether files can be written before minutes are spent on what goes in."""
    if PLOT.value is not None:
        plot.check(Path(PLOT.value))
    for flag in (PLOT, OUTPUT):
        if flag.value is None:
            continue
        path = Path(flag.value)
        new = not path.exists()
        try:
            path.open("ab").close()
        except OSError as error:
            raise UserError(f"--{flag.name}={path} cannot be written: {error.strerror}") from error
        if new:
            path.unlink()


def _check_torch(config: config_dict.ConfigDict, wanted: tuple[cases_lib.Case, ...]) -> str | None:
    """The version of PyTorch, where it is to take part."""
    if not any(case.method in cases_lib.TORCH for case in wanted):
        return None
    if importlib.util.find_spec("torch") is None:
        raise UserError("--methods: torch_dense and torch_static need PyTorch: pip install torch")
    # Before JAX takes a device: by default it would take most of a GPU's memory for itself.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    try:
        import torch
    except ImportError as error:
        raise UserError(f"--methods: the installed torch cannot be used: {error}") from error

    from barter_jax.benchmarking import torch_runner

    torch_runner.check(config)
    return torch.__version__


def _put_out(doc: dict[str, Any]) -> None:
    if OUTPUT.value is not None:
        Path(OUTPUT.value).write_text(json.dumps(doc, indent=2) + "\n")
    if PLOT.value is not None:
        plot.write(doc, Path(PLOT.value))
    if cli.JSON.value:
        cli.print_json(doc)
    else:
        print(table.render(doc))


if __name__ == "__main__":
    cli.run(main)
