"""The C library keeps what steps free, unless somebody has chosen otherwise."""

import os
import platform
import subprocess
import sys

import pytest

from barter_jax import allocator

# Allocates and frees a block again and again and counts the pages that had to be handed out.
BLOCKS = """
import resource, sys
from barter_jax import allocator
print(allocator.keep_memory())
faults = []
for _ in range(6):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    block = bytearray(64 * 2**20)
    block[::4096] = bytes([1]) * (64 * 2**20 // 4096)
    del block
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(min(faults[2:]))
"""


def run(**environment):
    clean = {k: v for k, v in os.environ.items() if "MALLOC" not in k and "GLIBC" not in k}
    clean.pop(allocator.SWITCH, None)
    done = subprocess.run(
        [sys.executable, "-c", BLOCKS],
        env=clean | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    was_set, faults = done.stdout.split()
    return was_set == "True", int(faults)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_freed_memory_is_taken_again():
    assert run() == (True, pytest.approx(0, abs=100))
    was_set, faults = run(**{allocator.SWITCH: "0"})
    # 4 KiB pages; fewer, but still some, where the system has huge ones.
    assert not was_set and faults > 20


@pytest.mark.parametrize(
    "environment, wanted",
    [
        ({}, True),
        ({"BARTER_KEEP_MEMORY": "1"}, True),
        ({"BARTER_KEEP_MEMORY": "0"}, False),
        ({"LD_PRELOAD": "libjemalloc.so.2"}, False),
        ({"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}, True),
        ({"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1:glibc.malloc.mmap_max=3"}, False),
        ({"MALLOC_TRIM_THRESHOLD_": "100000"}, False),
        ({"MALLOC_ARENA_MAX": "2"}, False),
    ],
)
def test_the_environments_own_settings_win(environment, wanted):
    assert allocator.wanted(environment) is wanted
