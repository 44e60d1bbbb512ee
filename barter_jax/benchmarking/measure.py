"""Measures cases side by side in this process."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

import numpy as np

from barter_jax.benchmarking import rounds, updates
from barter_jax.benchmarking.cases import UPDATING
from barter_jax.benchmarking.plans import Plan
from barter_jax.benchmarking.prepare import Ready, Settings, prepare
from barter_jax.benchmarking.results import Measured
from barter_jax.benchmarking.runner import random_batch
from barter_jax.benchmarking.statistics import Blocks
from barter_jax.core import accounting
from barter_jax.errors import RunError
from barter_jax.training.console import duration

log = logging.getLogger("barter_jax")

# A line a round would be too many where rounds are short.
SECONDS_BETWEEN_LINES = 5.0


def measure(plans: Sequence[Plan], settings: Settings) -> list[Measured]:
    """Compiles and warms up cases one by one, times all in turns, then makes their updates.

    Args:
      plans: the cases.
      settings: how.

    Returns:
      The results in the order of `plans`.

    Raises:
      RunError: a loss, or a score, was not finite.
    """
    batches = {}
    for plan in plans:
        if plan.case.batch_size not in batches:
            batches[plan.case.batch_size] = random_batch(plan)
    ready = prepare(plans, batches, settings)
    for one in ready:
        one.runner.place(batches[one.plan.case.batch_size])
        # The first steps after it was taken away are no part of the first round.
        one.runner.train(1)
        one.runner.evaluate(1)
    tasks = [(one.runner.train, one.warm_up.train_steps) for one in ready]
    tasks += [(one.runner.evaluate, one.warm_up.evaluate_steps) for one in ready]
    round_seconds = sum(one.warm_up.turn_seconds for one in ready)
    blocks = rounds.interleave(
        tasks, settings.rounds, started=_progress(settings.rounds, round_seconds)
    )
    count = len(ready)
    return [
        _measured(one, train, evaluate)
        for one, train, evaluate in zip(ready, blocks[:count], blocks[count:], strict=True)
    ]


def _progress(total: int, round_seconds: float) -> Callable[[int], None]:
    """Says now and then which round begins, and for how long there is still to wait."""
    began = said = time.perf_counter()

    def started(round_: int) -> None:
        nonlocal said
        now = time.perf_counter()
        if round_ and now - said < SECONDS_BETWEEN_LINES:
            return
        said = now
        each = (now - began) / round_ if round_ else round_seconds
        left = duration(each * (total - round_))
        log.info("round %d of %d, %s left", round_ + 1, total, left)

    return started


def _measured(one: Ready, train: Blocks, evaluate: Blocks) -> Measured:
    plan, case, runner = one.plan, one.plan.case, one.runner
    if not np.isfinite(runner.loss):
        raise RunError(
            f"{case.name}: the training loss on random data is {runner.loss}: "
            "lower config.optimizer.learning_rate"
        )
    replay = None
    if case.method in UPDATING:
        log.info("making the planned topology updates of %s", case.name)
        replay = updates.replay(plan, runner.entry, runner.state, runner.progress)
    blueprint = plan.blueprint

    def flops(topology):
        return accounting.training_flops(blueprint.dims, topology)

    return Measured(
        case=case,
        topology=blueprint.initial,
        padded=plan.physical,
        parameters=accounting.parameters(blueprint.dims, blueprint.initial),
        flops=flops(blueprint.initial),
        padded_flops=flops(plan.physical),
        dense_flops=flops(blueprint.dims.dense),
        first_step_seconds=one.warm_up.first_step_seconds,
        train=train,
        evaluate=evaluate,
        compiler_memory=one.compiler_memory,
        device_peak=one.device_peak,
        compiled=one.compiled,
        compiled_with=one.compiled_with,
        replay=replay,
        total_steps=blueprint.total_steps,
        details=runner.details,
    )
