"""Measurements of made-up cases, with numbers that are easy to work with by hand."""

from barter_jax.benchmarking.cases import Case
from barter_jax.benchmarking.compiling import CompileTime, CompileTimes
from barter_jax.benchmarking.memory import CompilerMemory, DevicePeak
from barter_jax.benchmarking.results import Measured
from barter_jax.benchmarking.statistics import Blocks
from barter_jax.benchmarking.updates import Replay, UpdateTime
from barter_jax.core.topology import Budget, Topology

TOPOLOGY = Topology((2, 3), (10, 11))
ENVIRONMENT = {
    "platform": "gpu",
    "device_kind": "Some GPU",
    "devices": 1,
    "processor": "Some processor",
    "cores": 8,
    "dtype": "float32",
    "device_counts_memory": True,
    "python": "3.11.0",
    "versions": {"jax": "0.10.2"},
    "xla_flags": "",
}
SETTINGS = {"config": "made", "model": "vit", "rounds": 3, "warmup": 3}


def measured(
    method,
    density=None,
    batch_size=10,
    *,
    step_ms=(100.0, 100.0, 100.0),
    evaluate_ms=(20.0, 20.0, 20.0),
    flops=600,
    dense_flops=600,
    compiler=None,
    device=None,
    replay=None,
    total_steps=1000,
    compiled_with=None,
    block=2,
) -> Measured:
    """A case whose blocks of `block` steps took the given milliseconds a step."""

    def blocks(per_step):
        return Blocks(block, tuple(block * ms / 1e3 for ms in per_step))

    torch = method.startswith("torch")
    times = CompileTimes(CompileTime(0.5, 8.0, 0.25), CompileTime(0.1, 1.0, None))
    return Measured(
        case=Case(method, density, batch_size),
        topology=TOPOLOGY,
        padded=TOPOLOGY,
        parameters=1234,
        flops=flops,
        padded_flops=flops,
        dense_flops=dense_flops,
        first_step_seconds=0.4,
        train=blocks(step_ms),
        evaluate=blocks(evaluate_ms),
        compiler_memory=None if torch else compiler or CompilerMemory(10, 8, 8, 90),
        device_peak=device,
        compiled=None if torch else times,
        compiled_with=compiled_with,
        replay=replay,
        total_steps=total_steps,
        details={},
    )


def four() -> list[Measured]:
    """Dense in both frameworks, PyTorch's faster; static; and barter with updates."""
    replay = Replay(
        passes=(
            (UpdateTime(0.001, 0.002, 0.003, 0.0), UpdateTime(0.003, 0.004, 0.005, 0.0)),
            (UpdateTime(0.001, 0.002, 0.003, 0.0), UpdateTime(0.003, 0.004, 0.007, 0.0)),
            (UpdateTime(0.002, 0.002, 0.003, 0.0), UpdateTime(0.003, 0.004, 0.016, 0.0)),
        ),
        moved=Budget(1, 4),
    )
    return [
        measured("dense", step_ms=(100.0, 110.0, 120.0), device=DevicePeak(4000, True, "a")),
        measured("torch_dense", step_ms=(90.0, 80.0, 100.0), device=DevicePeak(5000, True, "b")),
        measured(
            "static",
            0.1,
            step_ms=(20.0, 20.0, 25.0),
            flops=100,
            compiler=CompilerMemory(4, 3, 3, 21),
            device=DevicePeak(1000, True, "a"),
        ),
        measured(
            "barter",
            0.1,
            step_ms=(20.0, 16.0, 25.0),
            flops=100,
            compiler=CompilerMemory(4, 3, 3, 21),
            device=DevicePeak(1000, False, "a"),
            replay=replay,
            compiled_with=Case("static", 0.1, 10),
        ),
    ]
