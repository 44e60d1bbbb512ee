"""The JSON document of a benchmark: what follows from the measurements. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from barter_jax.benchmarking import statistics
from barter_jax.benchmarking.cases import DENSE, TORCH
from barter_jax.benchmarking.memory import CompilerMemory, DevicePeak
from barter_jax.benchmarking.results import Measured
from barter_jax.benchmarking.statistics import Blocks
from barter_jax.benchmarking.updates import PARTS, Replay
from barter_jax.core.topology import UNITS

DEFINITIONS = {
    "step_ms": (
        "milliseconds of a training step, over the rounds: each is the mean of a block of steps, "
        "which the device is waited for once"
    ),
    "training_gflops_per_image": (
        "forward and backward in the paper's counting, by the logical counts; padded_ by those "
        "that the tensors have; of a masked case what its dense kernels compute, zeros included"
    ),
    "flop_ratio": "training FLOPs of the dense model / those of the case",
    "speedup": "median step time of the reference / that of the case",
    "reference": "the fastest dense case of the batch size",
    "realised": "speedup / flop_ratio",
    "memory.compiler": (
        "bytes of one training step on one device as the compiler planned it: peak = arguments + "
        "outputs - aliased + temporaries"
    ),
    "memory.device": (
        "peak bytes in use on the first device while the case ran alone; exact is false where "
        "something before it had used as much, so that the reading is an upper bound; null where "
        "the backend does not count"
    ),
    "reduction_percent": "against the dense case of the batch size in the same framework",
    "compile": (
        "seconds of the training and the evaluation step: tracing and lowering with JAX's caches "
        "in memory empty; the compiler, cold, with an empty cache on disk; and warm, from that "
        "cache. A GPU's autotuning results of earlier cases stay in the process. Cases with the "
        "same shapes share one executable"
    ),
    "updates": (
        "every update of the configured schedule, made on the case's own state: policy (decide), "
        "surgery (resize on the host), placing (on the device) and switch (to a shape that is "
        "compiled). Compiling new shapes is not part of it"
    ),
    "schedule_weighted_step_ms": "median step time + time of all updates / steps of the run",
    "evaluation": "the evaluation step, at the batch size of the training step",
    "segments": (
        "the real training loop on the real data, by its own clock: seconds_per_epoch has steps, "
        "data and updates, and not compiling, evaluation and checkpoints; what is particular to "
        "the first steps is in it, so that a whole epoch tells more than a few steps"
    ),
}


def document(
    measured: Sequence[Measured], environment: Mapping[str, Any], settings: Mapping[str, Any]
) -> dict[str, Any]:
    """The document that `--json` prints, without segments.

    Args:
      measured: the cases, in the order in which they are to stand.
      environment: where it ran.
      settings: how it was measured.
    """
    batch_sizes = dict.fromkeys(m.case.batch_size for m in measured)
    references = {n: reference(measured, n) for n in batch_sizes}
    return {
        "environment": dict(environment),
        "settings": dict(settings),
        "definitions": DEFINITIONS,
        "reference": [
            {
                "batch_size": n,
                "method": found.case.method if found else None,
                "step_ms": _median_ms(found.train) if found else None,
            }
            for n, found in references.items()
        ],
        "cases": [_case(m, references[m.case.batch_size], measured) for m in measured],
    }


def reference(measured: Sequence[Measured], batch_size: int) -> Measured | None:
    """The dense case with the shortest median step, PyTorch's included; None without one."""
    dense = [m for m in measured if m.case.method in DENSE and m.case.batch_size == batch_size]
    return min(dense, key=lambda m: _median_ms(m.train), default=None)


def _case(m: Measured, reference_: Measured | None, measured: Sequence[Measured]) -> dict[str, Any]:
    step_ms = _median_ms(m.train)
    flop_ratio = m.dense_flops / m.flops
    speedup = _median_ms(reference_.train) / step_ms if reference_ else None
    return {
        "method": m.case.method,
        "density": m.case.density,
        "batch_size": m.case.batch_size,
        "topology": m.topology.to_json(),
        "padded": m.padded.to_json(),
        "parameters": m.parameters,
        "training_gflops_per_image": m.flops / 1e9,
        "padded_training_gflops_per_image": m.padded_flops / 1e9,
        "step_ms": statistics.spread(m.train.step_ms),
        "images_per_second": statistics.images_per_second(m.case.batch_size, step_ms),
        "first_step_ms": 1e3 * m.first_step_seconds,
        "flop_ratio": flop_ratio,
        "speedup": speedup,
        # Round by round, so that what slowed a whole round down does not count.
        "speedup_by_round": (
            statistics.spread(reference_.train.step_ms / m.train.step_ms) if reference_ else None
        ),
        "realised": speedup / flop_ratio if reference_ else None,
        "memory": _memory(m, _dense_of(m, measured)),
        "compile": _compile(m),
        "updates": _updates(m.replay, m.total_steps, step_ms) if m.replay else None,
        "evaluation": {
            "step_ms": statistics.spread(m.evaluate.step_ms),
            "images_per_second": statistics.images_per_second(
                m.case.batch_size, _median_ms(m.evaluate)
            ),
        },
        "details": dict(m.details),
        "raw": {"train": _raw(m.train), "evaluation": _raw(m.evaluate)},
    }


def _raw(blocks: Blocks) -> dict[str, Any]:
    return {"steps_per_block": blocks.steps, "block_seconds": list(blocks.seconds)}


def _median_ms(blocks: Blocks) -> float:
    return float(np.median(blocks.step_ms))


def _dense_of(m: Measured, measured: Sequence[Measured]) -> Measured | None:
    """The dense case of the same framework and batch size."""
    method = "torch_dense" if m.case.method in TORCH else "dense"
    same = (x for x in measured if x.case.batch_size == m.case.batch_size)
    return next((x for x in same if x.case.method == method), None)


def _memory(m: Measured, dense: Measured | None) -> dict[str, Any]:
    def reduction(own: int, dense_bytes: int | None) -> float | None:
        return None if dense_bytes is None else statistics.reduction_percent(own, dense_bytes)

    def compiler(own: CompilerMemory) -> dict[str, Any]:
        base = dense.compiler_memory.peak if dense and dense.compiler_memory else None
        return {
            "peak_bytes": own.peak,
            **{f"{name}_bytes": value for name, value in dataclasses.asdict(own).items()},
            "reduction_percent": reduction(own.peak, base),
        }

    def device(own: DevicePeak) -> dict[str, Any]:
        base = dense.device_peak.bytes if dense and dense.device_peak else None
        return {
            "peak_bytes": own.bytes,
            "exact": own.exact,
            "source": own.source,
            "reduction_percent": reduction(own.bytes, base),
        }

    return {
        "compiler": compiler(m.compiler_memory) if m.compiler_memory else None,
        "device": device(m.device_peak) if m.device_peak else None,
    }


def _compile(m: Measured) -> dict[str, Any] | None:
    if m.compiled is None:
        return None
    return {
        name: {f"{part}_seconds": value for part, value in times.items()}
        for name, times in dataclasses.asdict(m.compiled).items()
    } | {"compiled_with": m.compiled_with.name if m.compiled_with else None}


def _updates(replay: Replay, total_steps: int, step_ms: float) -> dict[str, Any]:
    """The `updates` of a case; all times in milliseconds."""
    updates = [update for pass_ in replay.passes for update in pass_]
    totals = [1e3 * sum(update.total for update in pass_) for pass_ in replay.passes]
    schedule_ms = float(np.median(totals))

    def median(values: list[float]) -> float | None:
        return 1e3 * float(np.median(values)) if values else None

    return {
        "count": len(replay.passes[0]),
        "moved": {unit: replay.moved.of(unit) for unit in UNITS},
        "per_update_ms": {
            **{part: median([getattr(u, part) for u in updates]) for part in PARTS},
            "total": median([update.total for update in updates]),
        },
        "schedule_ms": schedule_ms,
        "schedule_ms_by_pass": totals,
        "total_steps": total_steps,
        "per_step_ms": schedule_ms / total_steps,
        "share_of_schedule": statistics.schedule_share(schedule_ms, total_steps, step_ms),
        "schedule_weighted_step_ms": statistics.schedule_weighted_ms(
            schedule_ms, total_steps, step_ms
        ),
    }
