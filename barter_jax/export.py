"""Writes a compact model to a file that can be used elsewhere.

    python -m barter_jax.export --model=runs/vit_tiny --format=stablehlo --output=digits.stablehlo

--model is a work directory, its model directory or the model file. --format is timm, huggingface
or cct (weights under those projects' names, for dense models), safetensors (this project's own
file) or stablehlo (a program that needs nothing but JAX to run).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from absl import flags

from barter_jax import cli
from barter_jax.deploy import export as exporting
from barter_jax.deploy.model import load
from barter_jax.errors import UserError

MODEL = flags.DEFINE_string("model", None, "Work directory, model directory or model file.")
FORMAT = flags.DEFINE_string("format", None, f"One of {', '.join(exporting.FORMATS)}.")
OUTPUT = flags.DEFINE_string("output", None, "The file to write.")
OVERWRITE = flags.DEFINE_bool("overwrite", False, "Replace a file that is there.")
flags.declare_key_flag("json")


def main(arguments: Sequence[str]) -> None:
    if arguments:
        raise UserError(f"{arguments[0]!r} is not a flag: flags begin with --")
    known = ", ".join(exporting.FORMATS)
    if not MODEL.value:
        raise UserError("--model is missing: give a work directory, as --model=runs/vit_tiny")
    if not FORMAT.value:
        raise UserError(f"--format is missing: it is one of {known}")
    if FORMAT.value not in exporting.FORMATS:
        raise UserError(f"--format={FORMAT.value} is unknown: it is one of {known}")
    if not OUTPUT.value:
        raise UserError("--output is missing: name the file to write")
    files = exporting.export(load(MODEL.value), FORMAT.value, Path(OUTPUT.value), OVERWRITE.value)
    if cli.JSON.value:
        cli.print_json({"format": FORMAT.value, "files": [str(file) for file in files]})
        return
    for file in files:
        print(f"wrote {file}, {file.stat().st_size:,} bytes")


if __name__ == "__main__":
    cli.run_plain(main)
