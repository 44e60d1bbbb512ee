"""The bounded table of compiled steps: one entry per padded topology, compiled ahead of time.

Nothing else in a run depends on the topology, so nothing else recompiles. `compile_entry` touches
no state and may run on any thread; `put` adds what it returns.
"""

from __future__ import annotations

import collections
import dataclasses
import time
from collections.abc import Callable
from typing import Any

import jax

from barter_jax.core.topology import Topology


@dataclasses.dataclass
class Executable:
    """A compiled function that can be freed.

    The jitted function is kept with it: dropping the compiled object alone frees nothing.
    """

    jitted: Any
    compiled: Any
    seconds: float

    def __call__(self, *args):
        return self.compiled(*args)

    def free(self) -> None:
        """Gives the executable's memory back."""
        self.compiled = None
        self.jitted.clear_cache()
        self.jitted = None


def compile_ahead(
    fn: Callable,
    args: tuple,
    *,
    out_shardings: Any = None,
    donate: tuple[int, ...] = (),
    name: str = "step",
) -> Executable:
    """Traces and compiles a function for the given shapes.

    Args:
      fn: a pure function.
      args: pytrees of `jax.ShapeDtypeStruct`, one per argument.
      out_shardings: where the results go, as `jax.jit` takes it.
      donate: arguments whose buffers the call may reuse.
      name: shows in profiles, and is part of the disk cache's key: keep it the same.
    """
    start = time.perf_counter()

    def call(*values):
        return fn(*values)

    call.__name__ = name
    # A function object of its own per shape: freeing one entry must not touch another's cache.
    jitted = jax.jit(call, donate_argnums=donate, out_shardings=out_shardings)
    compiled = jitted.lower(*args).compile()
    return Executable(jitted, compiled, time.perf_counter() - start)


@dataclasses.dataclass
class Entry:
    """The compiled steps of one padded topology."""

    train: Executable
    evaluate: Executable

    @property
    def seconds(self) -> float:
        return self.train.seconds + self.evaluate.seconds


class ExecutableTable:
    """Compiled steps by padded topology, the least recently used dropped beyond a capacity.

    Room is made before an entry is compiled, so no more than the capacity are ever alive.

    Args:
      compile_entry: builds the entry of a padded topology.
      capacity: entries kept at most, at least 1.
    """

    def __init__(self, compile_entry: Callable[[Topology], Entry], capacity: int):
        if capacity < 1:
            raise ValueError(f"the table needs room for one entry, got {capacity}")
        self._compile_entry = compile_entry
        self._capacity = capacity
        self._entries: collections.OrderedDict[Topology, Entry] = collections.OrderedDict()
        self.compiled = 0
        self.compile_seconds = 0.0
        self.last_compile_seconds = 0.0
        self.slowest_compile_seconds = 0.0

    def __contains__(self, physical: Topology) -> bool:
        return physical in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, physical: Topology) -> Entry:
        """The entry of a padded topology, compiled now if it is not in the table."""
        if physical not in self._entries:
            self.reserve(1)
            self.put(physical, self._compile_entry(physical))
        self._entries.move_to_end(physical)
        return self._entries[physical]

    def put(self, physical: Topology, entry: Entry) -> None:
        """Adds an entry, and drops and frees the least recently used one beyond the capacity."""
        self._entries[physical] = entry
        self._entries.move_to_end(physical)
        self.compiled += 1
        self.compile_seconds += entry.seconds
        self.last_compile_seconds = entry.seconds
        self.slowest_compile_seconds = max(self.slowest_compile_seconds, entry.seconds)
        self.reserve(0)

    def reserve(self, places: int) -> None:
        """Drops and frees the least recently used entries until `places` more would fit."""
        while self._entries and len(self._entries) + places > self._capacity:
            _, dropped = self._entries.popitem(last=False)
            dropped.train.free()
            dropped.evaluate.free()
