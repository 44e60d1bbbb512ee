"""Timing side by side: every round runs one block of each task in turn."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from barter_jax.benchmarking import cases
from barter_jax.benchmarking.statistics import Blocks


def interleave(
    tasks: Sequence[tuple[Callable[[int], None], int]],
    rounds: int,
    *,
    started: Callable[[int], None] = lambda round_: None,
    clock: Callable[[], float] = time.perf_counter,
) -> list[Blocks]:
    """Times blocks of several tasks in turn, so that a drift of the machine hits all alike.

    Args:
      tasks: pairs of a function and the steps in a block of it. `function(steps)` takes so many
        steps and returns when the device has done them all.
      rounds: how often each task has its turn.
      started: told the number of each round, from 0, before it begins; not timed.
      clock: seconds.

    Returns:
      The blocks of each task, in the order of `tasks`.
    """
    seconds: list[list[float]] = [[] for _ in tasks]
    for round_ in range(rounds):
        started(round_)
        for index in cases.order(len(tasks), round_):
            run, steps = tasks[index]
            start = clock()
            run(steps)
            seconds[index].append(clock() - start)
    return [Blocks(steps, tuple(s)) for (_, steps), s in zip(tasks, seconds, strict=True)]
