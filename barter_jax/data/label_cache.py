"""Labels that take long to read, kept on disk from one run to the next."""

import contextlib
import hashlib
import json
import logging
import os
import pathlib
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np

log = logging.getLogger("barter_jax")

_DIGEST = hashlib.sha256().digest_size


def default_directory() -> pathlib.Path:
    """`barter_jax/labels` in `XDG_CACHE_HOME`, or else in `~/.cache`.

    Raises:
        RuntimeError: the user has no home directory.
    """
    base = pathlib.Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else pathlib.Path.home() / ".cache") / "barter_jax/labels"


def cached_labels(key: Any, count: int, read: Callable[[], np.ndarray]) -> np.ndarray:
    """Returns the labels kept under a key, or reads and keeps them.

    A damaged file is made again; a place that cannot be written to is told and does no harm.

    Args:
        key: what the labels depend on; anything that JSON can write.
        count: how many there are.
        read: returns them, int32 [count].
    """
    name = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:32]
    try:
        path = default_directory() / f"{name}.labels"
    except RuntimeError as error:
        log.warning("the labels are not kept for the next run: %s", error)
        return read()
    labels = _load(path, count)
    if labels is None:
        labels = read()
        try:
            _save(path, labels)
        except OSError as error:
            log.warning("the labels are not kept for the next run: %s", error)
    return labels


def _load(path: pathlib.Path, count: int) -> np.ndarray | None:
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        log.warning("%s cannot be read (%s): reading the labels again", path, error.strerror)
        return None
    digest, data = content[:_DIGEST], content[_DIGEST:]
    if len(data) != 4 * count or hashlib.sha256(data).digest() != digest:
        log.warning("%s is damaged: reading the labels again", path)
        return None
    return np.frombuffer(data, "<i4").astype(np.int32)


def _save(path: pathlib.Path, labels: np.ndarray) -> None:
    data = labels.astype("<i4").tobytes()
    path.parent.mkdir(parents=True, exist_ok=True)
    # Renamed when whole: another run may look for it at any time.
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f"{path.name}.")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(hashlib.sha256(data).digest() + data)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
