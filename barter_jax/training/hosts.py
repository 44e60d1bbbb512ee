"""Several processes that train one model together, one to a host as a rule.

Each process runs the same program on its part of every batch. The first one alone touches the work
directory; what it finds there, or fails with, it tells the others. With a single process all of
this is the identity.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

from barter_jax.errors import AloneError, RunError, UserError

PyTree = Any
T = TypeVar("T")

_ERRORS = {error.__name__: error for error in (UserError, RunError)}


def start(coordinator: str | None, count: int | None, index: int | None) -> None:
    """Joins the other processes; to be called before JAX is used.

    Args:
      coordinator: `host:port` of the first process; None to find it, count and index from the
        environment, as JAX does on TPU slices and under SLURM and Open MPI.
      count: processes in all.
      index: this one's number, from 0.

    Raises:
      UserError: only some of the three are given, or the environment tells nothing.
      RunError: the others cannot be reached.
    """
    given = {"--coordinator": coordinator, "--num_processes": count, "--process_id": index}
    missing = [flag for flag, value in given.items() if value is None]
    if missing and len(missing) < len(given):
        raise UserError(f"{missing[0]} is missing: {', '.join(given)} go together")
    if not missing and not 0 <= index < count:
        raise UserError(f"--process_id={index} is not in 0..{count - 1}: correct it")
    try:
        jax.distributed.initialize(coordinator, count, index)
    except ValueError as error:
        raise UserError(
            f"--distributed: the environment does not tell which processes there are ({error}): "
            f"give {', '.join(given)}"
        ) from error
    except RuntimeError as error:
        raise RunError(f"the processes did not come together: {error}") from error


@contextlib.contextmanager
def ending_alone() -> Iterator[None]:
    """Ends this process with one line where another is gone, or knows nothing of an error here.

    Python's usual end would wait for the other processes, which wait for this one.
    """
    try:
        yield
    except AloneError as error:
        _end(error.exit_code, str(error))
    except jax.errors.JaxRuntimeError as error:
        if jax.process_count() == 1:
            raise
        first = str(error).splitlines()[0][:200]
        _end(1, f"another process of this run is gone ({first}): start them all again to go on")


def _end(code: int, text: str) -> None:
    print("error: " + " ".join(text.split()), file=sys.stderr, flush=True)
    sys.stdout.flush()
    os._exit(code)


class Hosts:
    """The processes of a run, as seen from one of them.

    All of them must call the methods that talk to the others in the same order.
    """

    def __init__(self):
        self.index, self.count = jax.process_index(), jax.process_count()

    @property
    def first(self) -> bool:
        """Whether this process writes, and speaks to the user."""
        return self.index == 0

    def from_first(self, call: Callable[[], T]) -> T:
        """What `call` returns in the first process, a JSON value; the others do not call it.

        Raises:
          UserError, RunError: the first process's, in all of them.
        """
        if self.count == 1:
            return call()
        answer = {"value": None}
        if self.first:
            try:
                answer = {"value": call()}
            except (UserError, RunError) as error:
                answer = {"error": type(error).__name__, "text": str(error)}
        answer = json.loads(self._text_from_first(json.dumps(answer)))
        if "error" in answer:
            raise _ERRORS[answer["error"]](answer["text"])
        return answer["value"]

    def tree_from_first(self, tree: PyTree) -> PyTree:
        """The first process's tree of numpy arrays; the others give one of the same shapes."""
        if self.count == 1:
            return tree
        return jax.tree.map(np.asarray, multihost_utils.broadcast_one_to_all(tree))

    def largest(self, value: int) -> int:
        """The largest of the processes' values, in all of them."""
        if self.count == 1:
            return value
        return int(np.max(multihost_utils.process_allgather(np.int32(value))))

    def agree(self, what: str, value: Any) -> None:
        """Waits for the others, and makes sure that all have the same JSON value.

        Raises:
          RunError: they have not; going on would hang, or spoil the run.
        """
        if self.count == 1:
            return
        digest = hashlib.sha256(json.dumps(value, sort_keys=True).encode()).digest()
        mine = np.frombuffer(digest, np.uint8)
        everyones = np.asarray(multihost_utils.process_allgather(mine))
        different = np.flatnonzero(np.any(everyones != everyones[0], axis=1))
        if len(different):
            raise RunError(
                f"process {different[0]} has come to another {what} than process 0: do all run "
                "the same version on the same data?"
            )

    def _text_from_first(self, text: str) -> str:
        data = np.frombuffer(text.encode(), np.uint8) if self.first else np.zeros(0, np.uint8)
        size = int(multihost_utils.broadcast_one_to_all(np.int32(len(data))))
        data = data if self.first else np.zeros(size, np.uint8)
        return (
            np.asarray(multihost_utils.broadcast_one_to_all(data))
            .astype(np.uint8)
            .tobytes()
            .decode()
        )
