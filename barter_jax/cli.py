"""What the commands share: flags, one-line errors and exit codes.

Exit codes: 0 done; 2 the user's mistake; 1 failure; 130 and 143 after a SIGINT or SIGTERM that
was honoured by saving first; 141 when nobody reads the output any more.
"""

from __future__ import annotations

import importlib.util
import json
import keyword
import logging
import os
import re
import select
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from absl import app, flags
from absl import logging as absl_logging
from ml_collections import config_dict, config_flags

from barter_jax import allocator
from barter_jax import config as config_lib
from barter_jax.errors import RunError, UserError
from barter_jax.training import environment

CONFIG = config_flags.DEFINE_config_file(
    "config",
    None,
    "Config file, with an optional argument for its get_config: FILE[:argument]. Single fields "
    "are set with --config.a.b=value; a wrong name is answered with the nearest right one.",
    lock_config=True,
)

JSON = flags.DEFINE_bool("json", False, "Print exactly one JSON document on stdout.")

log = logging.getLogger("barter_jax")

_OVERRIDE = re.compile(r"^--?(?P<no>no)?config\.(?P<key>[^=]+)(=(?P<value>.*))?$", re.DOTALL)


def run(main: Callable[[config_dict.ConfigDict], int | None]) -> None:
    """Runs a command that works on a config.

    Parses the flags, validates the config, calls `main(config)` and exits with its return code
    (None is 0). Mistakes of the user and expected failures become one line on stderr.
    """

    def without_arguments(arguments: Sequence[str]) -> int | None:
        if arguments:
            raise UserError(f"{arguments[0]!r} is not a flag: flags begin with --")
        return main(_checked_config())

    run_plain(without_arguments, needs_config=True)


def run_plain(main: Callable[[Sequence[str]], int | None], needs_config: bool = False) -> None:
    """Runs a command; `main` gets the positional arguments."""
    _set_up_logging()
    allocator.keep_memory()

    # ml_collections looks at them itself.
    sys.argv[:] = [_subscripted(argument) for argument in sys.argv]

    def parse(argv: Sequence[str]) -> list[str]:
        return _guard(lambda: _parse(argv, needs_config))

    def call(argv: Sequence[str]) -> None:
        # app.run has raised the libraries' verbosity to INFO by now.
        if not flags.FLAGS["verbosity"].present:
            absl_logging.set_verbosity(absl_logging.WARNING)
        sys.exit(_guard(lambda: main(argv[1:])) or 0)

    app.run(call, flags_parser=parse)


def config_name() -> str:
    """Name of the config file without folder, extension and argument."""
    return Path(_config_path(sys.argv).partition(":")[0]).stem


def print_json(document: Any) -> None:
    """Prints exactly one JSON document on stdout."""
    print(json.dumps(document, indent=2))


def _guard(call: Callable[[], Any]) -> Any:
    try:
        result = call()
        sys.stdout.flush()
        return result
    except BrokenPipeError:
        if not _nobody_reads():
            raise
        # Whoever read the output, as `head`, has had enough. What Python still holds goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(128 + signal.SIGPIPE)
    except UserError as error:
        _fail(2, error)
    except RunError as error:
        _fail(1, error)
    except KeyboardInterrupt:
        _fail(130, "interrupted")
    except Exception:
        # Only now: finding a device takes seconds, and not every command needs one.
        reason = environment.no_device()
        if reason is None:
            raise
        _fail(2, reason)


def _nobody_reads() -> bool:
    """Whether standard output is a pipe whose other end is closed."""
    poller = select.poll()
    poller.register(sys.stdout, 0)
    return bool(poller.poll(0))


def _fail(code: int, message: object) -> None:
    print("error: " + " ".join(str(message).split()), file=sys.stderr)
    sys.exit(code)


def _set_up_logging() -> None:
    # Libraries log a lot at INFO; only this project's own lines are for the user.
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False
    # Orbax reads arrays side by side. If several fail, the first is told, and asyncio would add a
    # traceback for each of the others, whenever they happen to be freed.
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)


def _parse(argv: Sequence[str], needs_config: bool) -> list[str]:
    wants_help = any(re.fullmatch(r"--?(help|helpfull|helpshort|helpxml|\?)", a) for a in argv)
    path = _config_path(argv)
    if needs_config and not wants_help:
        if not path:
            raise UserError(
                "--config is missing: give a config file, as --config=configs/vit_tiny.py"
            )
        _check_overrides(argv, _load(path))
    try:
        if wants_help:
            _help(argv)
        return flags.FLAGS(list(argv))
    except flags.Error as error:
        raise UserError(_flag_message(str(error))) from error


def _help(argv: Sequence[str]) -> None:
    """Prints what was asked for and exits with 0: absl, which prints it, exits with 1."""
    try:
        app.parse_flags_with_usage(list(argv))
    except SystemExit as end:
        sys.exit(0 if end.code == 1 else end.code)


def _subscripted(argument: str) -> str:
    """An override of a field whose name is a word of Python's, as ml_collections can parse it.

    `--config.init.from=x` becomes `--config.init['from']=x`.
    """
    match = _OVERRIDE.match(argument)
    if not match or not any(map(keyword.iskeyword, match["key"].split("."))):
        return argument
    parts = [f"['{p}']" if keyword.iskeyword(p) else f".{p}" for p in match["key"].split(".")]
    return argument.replace(f".{match['key']}", "".join(parts), 1)


def _plain(key: str) -> str:
    """The name of a field in an override, as `_subscripted` may have changed it."""
    return re.sub(r"\['(\w+)'\]", r".\1", key)


def _config_path(argv: Sequence[str]) -> str:
    path = ""
    for i, arg in enumerate(argv):
        if arg == "--":
            break
        match = re.match(r"^--?config(=(?P<value>.*))?$", arg)
        if match:
            path = match["value"] if match["value"] is not None else "".join(argv[i + 1 : i + 2])
    return path


def _load(path: str) -> config_dict.ConfigDict:
    """Runs a config file, to know its keys before the flags are parsed."""
    file, _, argument = path.partition(":")
    if Path(file).is_dir():
        raise UserError(f"--config={path}: {file} is a directory: name a file in it")
    if not Path(file).is_file():
        raise UserError(f"--config={path}: there is no file {file}")
    spec = importlib.util.spec_from_file_location("barter_jax_user_config", file)
    if spec is None or spec.loader is None:
        raise UserError(f"--config={path}: {file} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        if not hasattr(module, "get_config"):
            raise UserError(f"--config={path}: the file must define get_config()")
        config = module.get_config(argument) if argument else module.get_config()
    except UserError:
        raise
    # The file is the user's own program: whatever it raises is for them to mend.
    except Exception as error:
        # The last line of the user's own file; a syntax error names its line itself.
        lines = [
            frame.lineno
            for frame in traceback.extract_tb(error.__traceback__)
            if Path(frame.filename) == Path(file)
        ]
        where = f" ({Path(file).name}, line {lines[-1]})" if lines else ""
        raise UserError(f"--config={path}: {type(error).__name__}: {error}{where}") from error
    if not isinstance(config, config_dict.ConfigDict):
        raise UserError(f"--config={path}: get_config returned a {type(config).__name__}")
    return config


def _check_overrides(argv: Sequence[str], config: config_dict.ConfigDict) -> None:
    known = list(config_lib.flatten(config))
    for arg in argv:
        match = _OVERRIDE.match(arg)
        if not match:
            continue
        key = _plain(match["key"])
        if key in known:
            continue
        inside = [name for name in known if name.startswith(key + ".")]
        if inside:
            raise UserError(
                f"config.{key} is a section: set one of its fields, as config.{inside[0]}"
            )
        raise UserError(config_lib.unknown_key_message(key, known))


def _flag_message(text: str) -> str:
    """Says in the project's words what absl says of an ill-typed config field."""
    match = re.match(r"flag --config\.(?P<key>[^=]+)=(?P<value>.*?): (?P<why>.*)", text, re.DOTALL)
    if not match:
        return text
    key, why = _plain(match["key"]), match["why"]
    kinds = {"int()": "an integer", "float": "a number", "boolean": "true or false"}
    for sign, kind in kinds.items():
        if sign in why:
            return f"config.{key} must be {kind}, got {match['value']!r}"
    return f"config.{key}={match['value']}: {why}"


def _checked_config() -> config_dict.ConfigDict:
    config = CONFIG.value
    config_lib.validate(config)
    return config
