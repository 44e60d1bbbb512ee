"""Where a run or a benchmark ran, for its document."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

import jax

from barter_jax.training.workdir import versions


def describe(dtype: str, torch_version: str | None) -> dict[str, Any]:
    """Device, processor and versions.

    Args:
      dtype: of the computation, as `config.model.dtype`.
      torch_version: where PyTorch takes part.
    """
    device = jax.local_devices()[0]
    found = versions()
    return {
        "platform": device.platform,
        "device_kind": device.device_kind,
        "devices": jax.local_device_count(),
        "processor": _processor(),
        "cores": _cores(),
        "dtype": dtype,
        "device_counts_memory": device.memory_stats() is not None,
        "python": found.pop("python"),
        "versions": found | ({"torch": torch_version} if torch_version else {}),
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
    }


def no_device() -> str | None:
    """Why JAX has no device to compute on, in one line that says what to do, or None if it has.

    Of several processes it is not asked: they would wait for each other to tell of their devices.
    """
    if jax.distributed.is_initialized():
        return None
    try:
        jax.devices()
    # JAX asserts where it knows of a platform whose package is not installed.
    except (RuntimeError, AssertionError) as error:
        asked = jax.config.jax_platforms
        # What JAX says has advice of its own, in brackets at the end.
        why = str(error).partition(" (set JAX_PLATFORMS")[0].rstrip(".") or "it is not installed"
        return (
            f"JAX has no device{f' for JAX_PLATFORMS={asked}' if asked else ''} ({why}): unset "
            "JAX_PLATFORMS to use what is there, or install what is missing, as "
            "pip install 'barter_jax[cuda]'"
        )
    return None


def _cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _processor() -> str:
    """The processor's name: JAX calls each of them `cpu`."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()
