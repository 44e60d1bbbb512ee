"""The runs of a grid of methods, densities and seeds."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence

from ml_collections import config_dict

from barter_jax import config as config_lib
from barter_jax.errors import UserError

# Its model has no density: one run a seed.
DENSE = "dense"


@dataclasses.dataclass(frozen=True)
class Cell:
    """One run of a grid."""

    method: str
    density: float
    seed: int

    @property
    def name(self) -> str:
        """Also the name of its work directory."""
        density = "" if self.method == DENSE else f"-{self.density:g}"
        return f"{self.method}{density}-seed{self.seed}"

    @property
    def overrides(self) -> dict[str, object]:
        """The config fields in which it differs from the others."""
        return {"method": self.method, "density": self.density, "seed": self.seed}


def cells(methods: Sequence[str], densities: Sequence[float], seeds: Sequence[int]) -> list[Cell]:
    """All runs, seed by seed, so that one of each is there early; none twice."""
    grid = [
        Cell(method, 1.0 if method == DENSE else density, seed)
        for seed in seeds
        for method in methods
        for density in densities
    ]
    return list(dict.fromkeys(grid))


def share(all_cells: Sequence[Cell], task: int, tasks: int) -> list[Cell]:
    """The runs of one of several tasks that divide a grid between them.

    Raises:
      UserError: there is no such task.
    """
    if tasks < 1 or not 0 <= task < tasks:
        raise UserError(f"--task={task} is not in 0..{tasks - 1}, by --tasks={tasks}: correct it")
    return list(all_cells[task::tasks])


def configured(config: config_dict.ConfigDict, cell: Cell) -> config_dict.ConfigDict:
    """The config of a run.

    Raises:
      UserError: its method or density is none.
    """
    own = copy.deepcopy(config)
    own.update(cell.overrides)
    config_lib.validate(own)
    return own


def numbers(flag: str, text: str, kind: type) -> list:
    """The numbers of a comma-separated flag.

    Raises:
      UserError: one is no number of the kind, or there is none.
    """
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise UserError(f"--{flag} is empty: give numbers, with commas between them")
    try:
        return [kind(part) for part in parts]
    except ValueError as error:
        what = "whole numbers" if kind is int else "numbers"
        raise UserError(f"--{flag}={text}: {what} are wanted, with commas between them") from error
