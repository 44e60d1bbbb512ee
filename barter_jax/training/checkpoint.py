"""Checkpoints: compact arrays, topology, data position and everything else a resume needs.

Arrays are stored without padding, so a run may resume with another bucket size. Each array has a
checksum, because a flipped byte in array data would restore without a word.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from orbax.checkpoint.checkpoint_managers import preservation_policy

from barter_jax.core.barter import Progress
from barter_jax.core.units import path_names
from barter_jax.errors import RunError

PyTree = Any
FORMAT = 1


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """What the validation split said.

    Attributes:
      step: when, -1 for never.
      metrics: validation metrics then.
    """

    step: int = -1
    metrics: dict[str, float] = dataclasses.field(default_factory=dict)

    @property
    def accuracy(self) -> float:
        return self.metrics.get("accuracy", float("-inf"))


@dataclasses.dataclass(frozen=True)
class Bookkeeping:
    """The host's side of a run, stored as JSON beside the arrays.

    Attributes:
      step: optimizer steps taken.
      progress: topology and what has moved.
      data: position of the data iterator.
      best: the evaluation with the highest accuracy so far, the first of equals.
      latest: the last one.
      window: training metrics of the steps since the last log line, a list per name.
      seconds: wall-clock so far by kind.
      updates: topology updates so far that moved a unit.
      config: the run's config, so that a checkpoint can be understood by itself.
      dataset: `ImageDataset.identity` of its data; older checkpoints have none.
    """

    step: int
    progress: Progress
    data: dict[str, Any]
    best: Evaluation
    latest: Evaluation
    window: dict[str, list[float]]
    seconds: dict[str, float]
    updates: int
    config: dict[str, Any]
    dataset: dict[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            **vars(self),
            "progress": self.progress.to_json(),
            "best": dataclasses.asdict(self.best),
            "latest": dataclasses.asdict(self.latest),
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Bookkeeping:
        return cls(
            **{
                **data,
                "progress": Progress.from_json(data["progress"]),
                "best": Evaluation(**data["best"]),
                "latest": Evaluation(**data["latest"]),
            }
        )


class _LatestAndBest(preservation_policy.PreservationPolicy):
    """Keeps the newest few and the one that holds the best evaluation."""

    def __init__(self, keep: int):
        self._keep = keep
        self.best_step = -1

    def should_preserve(self, checkpoints, *, context):
        newest = len(checkpoints) - self._keep
        return [i >= newest or info.step == self.best_step for i, info in enumerate(checkpoints)]


class Checkpoints:
    """The checkpoints of one work directory. Saves run in the background.

    Of several processes one alone has it.

    Args:
      directory: created if absent; made absolute, as orbax needs.
      keep: how many of the latest to keep; the best is kept besides.
    """

    def __init__(self, directory: Path, keep: int):
        self._directory = directory.absolute()
        self._directory.mkdir(parents=True, exist_ok=True)
        self._policy = _LatestAndBest(keep)
        self._manager = ocp.CheckpointManager(
            self._directory,
            options=ocp.CheckpointManagerOptions(
                preservation_policy=self._policy,
                multiprocessing_options=_alone(),
                create=False,
            ),
        )

    def latest_step(self) -> int | None:
        """The newest checkpoint's step, or None.

        Raises:
          RunError: what lies there is not a complete checkpoint.
        """
        step = self._manager.latest_step()
        if step is None:
            return None
        for part in ("arrays", "bookkeeping"):
            if not (self._directory / str(step) / part).is_dir():
                raise RunError(
                    f"{self._directory / str(step)} is not a complete checkpoint: remove it to "
                    "resume from the one before it"
                )
        return step

    def save(self, state: PyTree, bookkeeping: Bookkeeping) -> None:
        """Starts to save an unpadded state.

        Args:
          state: arrays that nobody changes any more (numpy copies).
          bookkeeping: the host's side.

        Raises:
          RunError: the step is there already, or an earlier save failed.
        """
        self._policy.best_step = bookkeeping.best.step
        arrays = {name: np.asarray(leaf) for name, leaf in named_leaves(state).items()}
        content = {
            "checksums": {name: checksum(array) for name, array in arrays.items()},
            "bookkeeping": bookkeeping.to_json(),
        }
        document = {"format": FORMAT, "content": content, "checksum": _json_checksum(content)}
        with self._failures():
            saved = self._manager.save(
                bookkeeping.step,
                args=ocp.args.Composite(
                    arrays=ocp.args.PyTreeSave(arrays), bookkeeping=ocp.args.JsonSave(document)
                ),
            )
        if not saved:
            raise RunError(
                f"{self._directory} holds a checkpoint of step {bookkeeping.step} already"
            )

    def read_bookkeeping(self, step: int) -> Bookkeeping:
        """The host's side of a checkpoint: read it first, it holds the topology."""
        return Bookkeeping.from_json(self._content(step)["bookkeeping"])

    def restore(self, step: int, template: PyTree) -> PyTree:
        """The unpadded state of a checkpoint, as numpy arrays.

        Args:
          step: an existing checkpoint's.
          template: shape structs of the state at the checkpoint's topology.

        Raises:
          RunError: an array is missing, has another shape or dtype, or is damaged.
        """
        where = self._directory / str(step)
        checksums = self._content(step)["checksums"]
        wanted = named_leaves(template)
        if set(wanted) != set(checksums):
            odd = sorted(set(wanted) ^ set(checksums))[0]
            raise RunError(f"{where} does not fit this model and optimizer: {odd} differs")
        _ignore_abandoned_reads()
        try:
            arrays = self._manager.restore(
                step,
                args=ocp.args.Composite(
                    arrays=ocp.args.PyTreeRestore(
                        restore_args={
                            name: ocp.RestoreArgs(restore_type=np.ndarray) for name in wanted
                        }
                    )
                ),
            ).arrays
        # orbax and tensorstore raise many types for data that cannot be decoded.
        except Exception as error:
            raise RunError(
                f"{where} is damaged: remove it to resume from the one before"
            ) from error
        for name, leaf in wanted.items():
            array = np.asarray(arrays[name])
            if array.shape != leaf.shape or array.dtype != leaf.dtype:
                raise RunError(
                    f"{where}: {name} is {array.dtype}{list(array.shape)}, "
                    f"expected {leaf.dtype}{list(leaf.shape)}"
                )
            if checksum(array) != checksums[name]:
                raise RunError(
                    f"{where} is damaged: the checksum of {name} does not match; remove it to "
                    "resume from the one before"
                )
        return jax.tree.unflatten(
            jax.tree.structure(template), [np.asarray(arrays[name]) for name in wanted]
        )

    def wait(self) -> None:
        """Waits for saves that are under way.

        Raises:
          RunError: one failed.
        """
        with self._failures():
            self._manager.wait_until_finished()

    def close(self) -> None:
        """Waits for saves and stops the background threads."""
        self._manager.close()

    @contextlib.contextmanager
    def _failures(self) -> Iterator[None]:
        """orbax reports a full disk and the like by many types, some of them only later."""
        try:
            yield
        except Exception as error:
            raise RunError(f"cannot save a checkpoint in {self._directory}: {error}") from error

    def _content(self, step: int) -> dict[str, Any]:
        """What is stored beside the arrays, checked."""
        where = self._directory / str(step)
        if not where.is_dir():
            raise RunError(f"{where} is missing")
        damaged = f"{where} is damaged: remove it to resume from the one before"
        try:
            document = self._manager.restore(
                step, args=ocp.args.Composite(bookkeeping=ocp.args.JsonRestore())
            ).bookkeeping
        # orbax raises many types for a file that it cannot read.
        except Exception as error:
            raise RunError(damaged) from error
        if not isinstance(document, dict) or "format" not in document:
            raise RunError(damaged)
        if document["format"] != FORMAT:
            raise RunError(f"{where} has format {document['format']}, this version reads {FORMAT}")
        content = document.get("content")
        if document.get("checksum") != _json_checksum(content):
            raise RunError(damaged)
        return content


def _alone() -> ocp.options.MultiprocessingOptions:
    """orbax waits for no other process: only this one reads and writes."""
    if jax.process_count() == 1:
        return ocp.options.MultiprocessingOptions()
    index = jax.process_index()
    return ocp.options.MultiprocessingOptions(
        primary_host=index, active_processes={index}, barrier_sync_key_prefix="barter"
    )


def named_leaves(tree: PyTree) -> dict[str, Any]:
    """Leaves by their dotted path, in the order of the tree."""
    return {
        ".".join(path_names(path)): leaf
        for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]
    }


def checksum(array: np.ndarray) -> int:
    """CRC-32 of an array's bytes."""
    return zlib.crc32(np.ascontiguousarray(array).tobytes())


def _json_checksum(content: Any) -> int:
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())


@functools.cache  # once a process
def _ignore_abandoned_reads() -> None:
    """Keeps quiet the reads that orbax abandons when one of them fails.

    Each complains from a thread of its own that the event loop is closed, possibly before the
    failure itself has come up, and says nothing that the failure does not.
    """
    before = sys.unraisablehook

    def hook(unraisable):
        if str(unraisable.exc_value) != "Event loop is closed":
            before(unraisable)

    sys.unraisablehook = hook
