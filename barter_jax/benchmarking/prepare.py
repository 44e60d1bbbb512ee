"""Compiles cases and warms them up, one by one, until all are ready to be timed in turns."""

from __future__ import annotations

import dataclasses
import itertools
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from barter_jax.benchmarking import compiling, memory, programs, statistics
from barter_jax.benchmarking.cases import TORCH, Case
from barter_jax.benchmarking.compiling import CompileTimes
from barter_jax.benchmarking.memory import CompilerMemory, DevicePeak
from barter_jax.benchmarking.plans import Plan
from barter_jax.benchmarking.runner import Batch, JaxRunner, Start, start, timed
from barter_jax.core.topology import Topology
from barter_jax.training.executables import Entry

log = logging.getLogger("barter_jax")


@dataclasses.dataclass(frozen=True)
class Settings:
    """How to measure.

    Attributes:
      rounds: how often each case has its turn.
      warmup: steps before a case is timed, at least 1.
      block: steps of a turn; None for as many as last some 50 ms.
    """

    rounds: int
    warmup: int
    block: int | None


@dataclasses.dataclass(frozen=True)
class WarmUp:
    """What the first steps of a case tell.

    Attributes:
      first_step_seconds: of the first training step.
      train_steps, evaluate_steps: in a block.
      turn_seconds: of both blocks together, roughly.
    """

    first_step_seconds: float
    train_steps: int
    evaluate_steps: int
    turn_seconds: float


@dataclasses.dataclass(frozen=True)
class Ready:
    """A case that can be timed; the fields that it shares with `Measured` are explained there."""

    plan: Plan
    runner: Any  # JaxRunner or TorchRunner
    warm_up: WarmUp
    compiled: CompileTimes | None
    compiled_with: Case | None
    compiler_memory: CompilerMemory | None
    device_peak: DevicePeak | None


def prepare(plans: Sequence[Plan], batches: Mapping[int, Batch], settings: Settings) -> list[Ready]:
    """Makes cases ready; each runs alone on the device, and leaves it again.

    They come in ascending order of their memory, since the device's peak never falls. Cases with
    the same compiled steps are compiled once.

    Args:
      plans: the cases.
      batches: what they run on, by batch size.
      settings: how.

    Returns:
      The cases in the order of `plans`.
    """
    ready: dict[Case, Ready] = {}
    starts: dict[tuple[Topology, str], Start] = {}
    own = sorted((p for p in plans if p.case.method not in TORCH), key=_ascending)
    groups = [list(group) for _, group in itertools.groupby(own, key=lambda p: p.program)]
    for number, group in enumerate(groups, 1):
        names = " and ".join(plan.case.name for plan in group)
        log.info("compiling %d of %d: %s", number, len(groups), names)
        entry, times = compiling.timed(lambda plan=group[0]: programs.compile_case(plan))
        where = group[0].blueprint.initial, group[0].program[0]
        if where not in starts:
            starts[where] = start(group[0])
        first = _prepare_one(group[0], entry, times, starts[where], batches, settings)
        ready[first.plan.case] = first
        for plan in group[1:]:
            same = _prepare_one(plan, entry, times, starts[where], batches, settings)
            # It runs the very same executable, so the first one's peak is its own.
            ready[plan.case] = dataclasses.replace(
                same, compiled_with=first.plan.case, device_peak=first.device_peak
            )
    for plan in plans:
        if plan.case.method in TORCH:
            log.info("warming up %s", plan.case.name)
            ready[plan.case] = _prepare_torch(plan, batches, settings)
    return [ready[plan.case] for plan in plans]


def _ascending(plan: Plan) -> tuple[Any, ...]:
    """Rough memory; then what keeps cases of one program side by side."""
    rough = memory.rough_bytes(plan.blueprint.dims, plan.physical, plan.case.batch_size)
    return rough, plan.program[0], plan.case.batch_size, repr(plan.physical)


def _prepare_one(
    plan: Plan,
    entry: Entry,
    times: CompileTimes,
    start_: Start,
    batches: Mapping[int, Batch],
    settings: Settings,
) -> Ready:
    runner = JaxRunner(plan, entry, start_)
    device = jax.local_devices()[0]
    before = memory.device_peak(device)
    runner.place(batches[plan.case.batch_size])
    warm_up_ = warm_up(runner, settings)
    peak = memory.device_peak(device)
    runner.take_away()
    return Ready(
        plan=plan,
        runner=runner,
        warm_up=warm_up_,
        compiled=times,
        compiled_with=None,
        compiler_memory=memory.of_compiled(entry.train.compiled),
        device_peak=None if peak is None else DevicePeak(peak, peak > before, "jax memory_stats"),
    )


def _prepare_torch(plan: Plan, batches: Mapping[int, Batch], settings: Settings) -> Ready:
    # Only here, and only where it is asked for, is PyTorch needed.
    from barter_jax.benchmarking.torch_runner import TorchRunner

    runner = TorchRunner(plan)
    runner.place(batches[plan.case.batch_size])
    runner.choose(settings.warmup)
    return Ready(
        plan=plan,
        runner=runner,
        warm_up=warm_up(runner, settings),
        compiled=None,
        compiled_with=None,
        compiler_memory=None,
        device_peak=runner.device_peak(),
    )


def warm_up(runner: Any, settings: Settings) -> WarmUp:
    """Takes the first steps, and settles how many make a block."""
    first, step = _first_and_later(runner.train, settings.warmup)
    _, evaluation = _first_and_later(runner.evaluate, settings.warmup)
    train_steps = settings.block or statistics.block_steps(step)
    evaluate_steps = settings.block or statistics.block_steps(evaluation)
    return WarmUp(
        first_step_seconds=first,
        train_steps=train_steps,
        evaluate_steps=evaluate_steps,
        turn_seconds=train_steps * step + evaluate_steps * evaluation,
    )


def _first_and_later(run, steps: int) -> tuple[float, float]:
    """Seconds of the first of `steps` steps, and of each of the others (if there are any)."""
    first = timed(run, 1)
    return first, timed(run, steps - 1) / (steps - 1) if steps > 1 else first
