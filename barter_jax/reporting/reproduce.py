"""A config file and commands that repeat a group's runs. Pure."""

from __future__ import annotations

import dataclasses
import keyword
import shlex
from typing import Any

from barter_jax import config as config_lib
from barter_jax.models import MODELS
from barter_jax.reporting.groups import Group

FILE = "repeat.py"


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How to repeat a group.

    Attributes:
      file: text of a config file with what differs from the defaults; None where the model is not
        one of this version's.
      commands: one a seed, each with the config file named `repeat.py`.
      recorded: the commands that the runs were started with, where they tell.
    """

    file: str | None
    commands: tuple[str, ...]
    recorded: tuple[str, ...]


def recipe(group: Group) -> Recipe:
    """A config file for all seeds of a group, and its commands."""
    first = group.runs[0]
    commands = tuple(
        f"python -m barter_jax.main --config={FILE} --config.seed={run.seed} "
        f"--workdir={shlex.quote(f'runs/{run.directory.resolve().name}')}"
        for run in group.runs
    )
    recorded = tuple(
        run.command if isinstance(run.command, str) else shlex.join(map(str, run.command))
        for run in group.runs
        if isinstance(run.command, str | list)
    )
    return Recipe(config_file(first.config), commands, recorded)


def config_file(config: dict[str, Any]) -> str | None:
    """Python that gives the config again, seed aside.

    Args:
      config: flat, as read from JSON.

    Returns:
      The text of the file, or None for a model that this version does not know. Fields that this
      version does not know stand in it as comments.
    """
    model = config.get("model.name")
    if not isinstance(model, str) or model not in MODELS:
        return None
    defaults = config_lib.flatten(config_lib.default_config(model))
    lines = [
        "from barter_jax.config import default_config",
        "",
        "",
        "def get_config():",
        f"    config = default_config({model!r})",
    ]
    unknown = []
    for key, value in config.items():
        if key in ("seed", "model.name"):
            continue
        if key not in defaults:
            unknown.append(f"    # {key} = {value!r} is not known to this version")
            continue
        default = defaults[key]
        if isinstance(value, list):
            value = tuple(value)
        if value != default:
            lines.append(f"    {_target(key)} = {value!r}")
    return "\n".join([*lines, *unknown, "    return config"]) + "\n"


def _target(key: str) -> str:
    """A field as Python names it; `from`, say, is a word of the language."""
    words = (f'["{word}"]' if keyword.iskeyword(word) else f".{word}" for word in key.split("."))
    return "config" + "".join(words)
