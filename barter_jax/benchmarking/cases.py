"""Which cases a benchmark times, and in which order. Pure."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Sequence
from typing import Any

from barter_jax.config import MASKED_METHODS
from barter_jax.errors import UserError

DENSE = ("dense", "torch_dense")
TORCH = ("torch_dense", "torch_static")
# These change the topology while they train. All have the same training step.
UPDATING = ("barter", "random_receiver", "random_donor", "random_pair")
METHODS = ("dense", "masked", *MASKED_METHODS, "static", *UPDATING, *TORCH)


@dataclasses.dataclass(frozen=True)
class Case:
    """One thing to time.

    Attributes:
      method: one of `METHODS`.
      density: as `config.density`; None for the dense methods, which have none.
      batch_size: images per step.
    """

    method: str
    density: float | None
    batch_size: int

    @property
    def label(self) -> str:
        """Method and density, as in `barter 0.1`."""
        return self.method if self.density is None else f"{self.method} {self.density:g}"

    @property
    def name(self) -> str:
        return f"{self.label}, batch {self.batch_size}"

    @property
    def config_method(self) -> str:
        """The `config.method` whose shapes and training step the case has."""
        own = {"masked": "dense", "torch_dense": "dense", "torch_static": "static"}
        return own.get(self.method, self.method)


def expand(
    methods: Sequence[str], densities: Sequence[float], batch_sizes: Sequence[int]
) -> tuple[Case, ...]:
    """All the cases, by batch size, then by density, the dense ones first."""
    cases = []
    for batch_size in batch_sizes:
        cases += [Case(method, None, batch_size) for method in methods if method in DENSE]
        for density in densities:
            cases += [Case(m, density, batch_size) for m in methods if m not in DENSE]
    return tuple(cases)


def order(count: int, round_: int) -> list[int]:
    """The order of `count` cases in a round, counted from 0.

    Every other round goes backwards, and each two rounds begin with another case: no case always
    follows the same one, whose traces in caches and clocks it would then always inherit.
    """
    turned = [(round_ // 2 + i) % count for i in range(count)]
    return turned[::-1] if round_ % 2 else turned


def parse_methods(text: str) -> tuple[str, ...]:
    """The value of `--methods`.

    Raises:
      UserError: it is empty, a method is unknown or named twice.
    """

    def known(item: str) -> str:
        if item not in METHODS:
            near = difflib.get_close_matches(item, METHODS, n=1, cutoff=0.5)
            hint = f" (did you mean {near[0]}?)" if near else ""
            raise UserError(
                f"--methods: {item!r} is unknown{hint}: choose from {', '.join(METHODS)}"
            )
        return item

    return _parse("methods", text, known)


def parse_densities(text: str) -> tuple[float, ...]:
    """The value of `--densities`.

    Raises:
      UserError: it is empty, a density is outside (0, 1] or named twice.
    """

    def density(item: str) -> float:
        try:
            value = float(item)
        except ValueError:
            value = 0.0
        if not 0 < value <= 1:
            raise UserError(f"--densities: a density must be above 0 and at most 1, got {item!r}")
        return value

    return _parse("densities", text, density)


def parse_batch_sizes(text: str) -> tuple[int, ...]:
    """The value of `--batch_sizes`.

    Raises:
      UserError: it is empty, a batch size is not a whole number above 0 or named twice.
    """

    def batch_size(item: str) -> int:
        try:
            value = int(item)
        except ValueError:
            value = 0
        if value < 1:
            raise UserError(
                f"--batch_sizes: a batch size must be a whole number, at least 1, got {item!r}"
            )
        return value

    return _parse("batch_sizes", text, batch_size)


def _parse(flag: str, text: str, one: Callable[[str], Any]) -> tuple[Any, ...]:
    items = [item.strip() for item in text.split(",")]
    if items == [""]:
        raise UserError(f"--{flag} is empty: give one value, or several with commas between them")
    values = tuple(one(item) for item in items)
    for i, value in enumerate(values):
        if value in values[:i]:
            raise UserError(f"--{flag} names {value} twice: leave one out")
    return values
