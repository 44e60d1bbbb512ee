"""What topology updates cost: every update of the planned schedule, made for real and timed.

No optimizer steps are taken in between, so no new shape need be compiled: all updates start from
the running scores that the timed steps left. Compiling is no part of the cost; it is reported on
its own.
"""

from __future__ import annotations

import dataclasses
import time

import jax

from barter_jax.benchmarking.plans import Plan
from barter_jax.benchmarking.programs import compile_case
from barter_jax.core.barter import Progress
from barter_jax.core.topology import Budget
from barter_jax.errors import RunError
from barter_jax.training.executables import Entry, ExecutableTable
from barter_jax.training.state import TrainState

PARTS = ("policy", "surgery", "placing", "switch")


@dataclasses.dataclass(frozen=True)
class UpdateTime:
    """Seconds of one topology update.

    Attributes:
      policy: fetching the scores and deciding.
      surgery: resizing parameters, optimizer state and scores in the host's memory.
      placing: putting what has changed on the device.
      switch: finding a compiled shape in the table.
    """

    policy: float
    surgery: float
    placing: float
    switch: float

    @property
    def total(self) -> float:
        return sum(getattr(self, part) for part in PARTS)


@dataclasses.dataclass(frozen=True)
class Replay:
    """The planned schedule, made once or more.

    Attributes:
      passes: of the whole schedule, each the times of its updates.
      moved: units that one pass moved.
    """

    passes: tuple[tuple[UpdateTime, ...], ...]
    moved: Budget


def replay(
    plan: Plan, entry: Entry, state: TrainState, progress: Progress, passes: int = 3
) -> Replay:
    """Makes every update of the planned schedule, several times over from the same state.

    Args:
      plan: of a case whose method changes the topology.
      entry: the compiled steps of the shape that the state has.
      state: on the device, with scores of at least one step; left as it is.
      progress: that of the state.
      passes: how often to make the whole schedule.

    Raises:
      RunError: the scores are not finite.
    """
    jax.block_until_ready(state)
    table = ExecutableTable(lambda _: compile_case(plan), capacity=1)
    table.put(plan.physical, entry)
    results = [_pass(plan, table, state, progress) for _ in range(passes)]
    return Replay(tuple(times for times, _ in results), results[-1][1].moved)


def _pass(
    plan: Plan, table: ExecutableTable, state: TrainState, progress: Progress
) -> tuple[tuple[UpdateTime, ...], Progress]:
    barter, times = plan.barter, []
    for update in plan.blueprint.schedule:
        if not barter.due(update.step, progress):
            continue
        start = time.perf_counter()
        try:
            decision = barter.decide(state.units, progress, update.step)
        except FloatingPointError as error:
            raise RunError(f"{plan.case.name}: {error}: the random data made it diverge") from error
        decided = time.perf_counter()
        resized = None
        if decision.plans:
            resized = barter.apply(decision, state.params, state.opt_state, state.units, plan.tx)
        cut = time.perf_counter()
        if resized is not None:
            params, opt_state, units = plan.placement.replicate(resized)
            state = state._replace(params=params, opt_state=opt_state, units=units)
            jax.block_until_ready(state)
        placed = time.perf_counter()
        table.get(plan.physical)
        switched = time.perf_counter()
        progress = decision.after
        times.append(UpdateTime(decided - start, cut - decided, placed - cut, switched - placed))
    return tuple(times), progress
