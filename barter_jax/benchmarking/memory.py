"""Memory of a training step: what the compiler says, and what the device says.

The compiler's figure is there on every backend and needs no run. The device's own peak is there
on GPU and TPU; it counts what else lives on the device too, and never falls, which is why the
runner has one case alone on the device and lets the cases come in ascending order.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax

from barter_jax.core.accounting import Dimensions
from barter_jax.core.topology import Topology

FLOAT = 4


@dataclasses.dataclass(frozen=True)
class CompilerMemory:
    """Bytes of one call on one device, as the compiler planned them.

    Attributes:
      arguments: the state and the batch.
      outputs: the new state and the metrics.
      aliased: the part of the outputs that takes the place of donated arguments.
      temporaries: what lives only during the call: activations, gradients, scratch space.
    """

    arguments: int
    outputs: int
    aliased: int
    temporaries: int

    @property
    def peak(self) -> int:
        """What the call needs at once: arguments + outputs - aliased + temporaries.

        The compiler's `peak_memory_in_bytes` is not taken: on CPU it leaves out temporaries.
        """
        return self.arguments + self.outputs - self.aliased + self.temporaries


@dataclasses.dataclass(frozen=True)
class DevicePeak:
    """The most bytes that were ever in use on the first device.

    Attributes:
      bytes: the reading.
      exact: whether it rose while the case ran alone, which makes it the case's own. Otherwise
        something before it took as much, and the reading is an upper bound.
      source: who says so.
    """

    bytes: int
    exact: bool
    source: str


def of_compiled(compiled: Any) -> CompilerMemory | None:
    """The compiler's own analysis of an executable, or None where the backend has none."""
    stats = compiled.memory_analysis()
    if stats is None:
        return None
    return CompilerMemory(
        arguments=stats.argument_size_in_bytes,
        outputs=stats.output_size_in_bytes,
        aliased=stats.alias_size_in_bytes,
        temporaries=stats.temp_size_in_bytes,
    )


def device_peak(device: jax.Device) -> int | None:
    """Peak bytes in use since the process began, or None where the backend does not count."""
    stats = device.memory_stats()
    return None if stats is None else stats.get("peak_bytes_in_use")


def rough_bytes(dims: Dimensions, physical: Topology, batch_size: int) -> int:
    """A step's memory, roughly, to put cases in ascending order before anything is compiled.

    Compiling comes too late to ask: on a GPU it tries kernels out in device memory, and a large
    case's trials would hide a small case's peak. Counts the activations that the backward pass
    reads, and parameters with gradients and two moments.
    """
    n, d, dh = dims.tokens, dims.width, dims.head_width
    budget = physical.budget
    activations = (
        dims.layers * 6 * n * d + budget.heads * (4 * n * dh + 2 * n * n) + budget.channels * 2 * n
    )
    parameters = (
        dims.other_parameters
        + budget.heads * dims.parameters_per_head
        + budget.channels * dims.parameters_per_channel
    )
    return FLOAT * (batch_size * activations + 4 * parameters)
