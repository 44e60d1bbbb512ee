"""What measuring a case gives, before anything is worked out from it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from barter_jax.benchmarking.cases import Case
from barter_jax.benchmarking.compiling import CompileTimes
from barter_jax.benchmarking.memory import CompilerMemory, DevicePeak
from barter_jax.benchmarking.statistics import Blocks
from barter_jax.benchmarking.updates import Replay
from barter_jax.core.topology import Topology


@dataclasses.dataclass(frozen=True)
class Measured:
    """One case.

    Attributes:
      case: what was measured.
      topology: logical counts at the start of the run.
      padded: the counts that its tensors have.
      parameters: of the model, by the logical counts.
      flops: of a training step, per image, by the logical counts.
      padded_flops: the same by the padded counts.
      dense_flops: the same of the dense model.
      first_step_seconds: the first training step after compiling.
      train: timed training steps.
      evaluate: timed evaluation steps.
      compiler_memory: of the training step; None where nobody tells.
      device_peak: likewise.
      compiled: times; None for PyTorch.
      compiled_with: the case that has the same compiled steps and was compiled first, if another.
      replay: the planned topology updates; None where the method has none.
      total_steps: optimizer steps of the configured run.
      details: what is particular to the method.
    """

    case: Case
    topology: Topology
    padded: Topology
    parameters: int
    flops: int
    padded_flops: int
    dense_flops: int
    first_step_seconds: float
    train: Blocks
    evaluate: Blocks
    compiler_memory: CompilerMemory | None
    device_peak: DevicePeak | None
    compiled: CompileTimes | None
    compiled_with: Case | None
    replay: Replay | None
    total_steps: int
    details: Mapping[str, Any]
