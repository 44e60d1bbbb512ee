"""TensorFlow Datasets, imported late, kept quiet, away from the network and from TensorFlow."""

import contextlib
import importlib
import importlib.resources
import io
import sys
import tempfile
import threading
import types
from collections.abc import Iterator

from absl import logging as absl_logging

from barter_jax.data import tfds_standin
from barter_jax.errors import RunError

# The settings below are those of the process.
_lock = threading.RLock()
_depth = 0


@contextlib.contextmanager
def tensorflow_datasets() -> Iterator[types.ModuleType]:
    """Gives the module for the length of a `with`; may be nested.

    Inside, the module logs and prints nothing, shows no progress bars, leaves no temporary
    directory, does not look for data in the cloud, and never imports TensorFlow: it gets
    `tfds_standin` instead, unless the program has imported TensorFlow already.

    Raises:
        RunError: the installed version is built in a way that this does not know.
    """
    global _depth
    with _lock, contextlib.ExitStack() as stack:
        _depth += 1
        stack.callback(_leave)
        if _depth == 1:
            stack.enter_context(_unblocked())
            stack.enter_context(_quiet())
            stack.enter_context(_own_temporary_directory())
        tfds = importlib.import_module("tensorflow_datasets")
        if not hasattr(tfds, "builder"):  # It swallows what is wrong with its own imports.
            raise RunError(
                "tensorflow-datasets cannot be imported: python -c 'import tensorflow_datasets' "
                "tells why; install it anew"
            )
        if _depth == 1:
            stack.enter_context(_without_tensorflow())
            stack.enter_context(_no_progress_bars(tfds))
        yield tfds


def provide_importlib_resources() -> None:
    """Lets TensorFlow Datasets work where the backport `importlib_resources` is not installed.

    It asks for the backport without depending on it; Python's own module has all it needs.
    """
    try:
        importlib.import_module("importlib_resources")
    except ImportError:
        importlib.import_module("importlib.resources.abc")
        builder = importlib.import_module("tensorflow_datasets.core.dataset_builder")
        # Newer versions may no longer ask for it.
        if hasattr(builder, "importlib_resources"):
            _resolved(builder.importlib_resources)["_module"] = importlib.resources


def _leave() -> None:
    global _depth
    _depth -= 1


@contextlib.contextmanager
def _unblocked() -> Iterator[None]:
    # Python's way to forbid an import is None in sys.modules, which etils takes for "imported".
    blocked = sys.modules.get("tensorflow", True) is None
    if blocked:
        del sys.modules["tensorflow"]
    try:
        yield
    finally:
        if blocked:
            sys.modules["tensorflow"] = None


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    verbosity = absl_logging.get_verbosity()
    absl_logging.set_verbosity(absl_logging.FATAL)
    try:
        # It also prints, past any logger, where a command's only output may be one JSON document.
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        absl_logging.set_verbosity(verbosity)


@contextlib.contextmanager
def _own_temporary_directory() -> Iterator[None]:
    # Each builder makes a temporary directory and leaves it behind.
    before = tempfile.tempdir
    with tempfile.TemporaryDirectory(prefix="barter_jax-") as directory:
        tempfile.tempdir = directory
        try:
            yield
        finally:
            tempfile.tempdir = before


@contextlib.contextmanager
def _without_tensorflow() -> Iterator[None]:
    provide_importlib_resources()
    lazy = importlib.import_module("tensorflow_datasets.core.utils.lazy_imports_utils").tensorflow
    if "tensorflow" in sys.modules:
        yield
        return
    cache = _resolved(lazy)
    before = cache.pop("_module", None)
    cache["_module"] = tfds_standin.make()
    try:
        yield
    finally:
        del cache["_module"]
        if before is not None:
            cache["_module"] = before


@contextlib.contextmanager
def _no_progress_bars(tfds: types.ModuleType) -> Iterator[None]:
    tqdm_utils = importlib.import_module("tensorflow_datasets.core.utils.tqdm_utils")
    active = getattr(tqdm_utils, "_active", True)
    tfds.display_progress_bar(False)
    try:
        yield
    finally:
        tfds.display_progress_bar(active)


def _resolved(lazy: object) -> dict[str, object]:
    """Where a lazy module of etils keeps the module that it stands for, once it is imported."""
    if not hasattr(type(lazy), "_module"):
        raise RunError(
            "this version of tensorflow-datasets or etils is not known to work without "
            "TensorFlow: install tensorflow-datasets 4.9.10 and etils 1.15"
        )
    return vars(lazy)
