"""Has the C library keep the memory that a step frees: the next one takes it again.

XLA's CPU backend allocates the temporaries of a step in one block and frees it at the end. glibc
gives a block of that size back to the system, which hands it out anew, page by page, zeroed: a
quarter and more of the time of a small step. Kept, memory stays at its high-water mark.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from collections.abc import Mapping

# Set to 0 to leave the C library as it is.
SWITCH = "BARTER_KEEP_MEMORY"

# From glibc's malloc.h: (parameter, value).
_NEVER_TRIM = (-1, -1)
_GROW_BY = (-2, 64 * 2**20)
_NO_MAPPED_BLOCKS = (-4, 0)
_ONE_ARENA = (-8, 1)  # other threads' arenas cannot hold large blocks


def keep_memory() -> bool:
    """Sets glibc's allocator for this process: of use where steps run on the CPU, else harmless.

    Returns:
      Whether it was set: not without glibc, nor where the environment has settings of its own.
    """
    if not wanted(os.environ) or not sys.platform.startswith("linux"):
        return False
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    settings = (_NEVER_TRIM, _GROW_BY, _NO_MAPPED_BLOCKS, _ONE_ARENA)
    return all([mallopt(parameter, value) == 1 for parameter, value in settings])


def wanted(environment: Mapping[str, str]) -> bool:
    """Whether nobody has chosen otherwise.

    Args:
      environment: as `os.environ`; `BARTER_KEEP_MEMORY=0`, glibc's own variables
        (`MALLOC_ARENA_MAX` and so on, or tunables of the same purpose) and a preloaded allocator
        win.
    """
    if environment.get(SWITCH, "1") == "0" or environment.get("LD_PRELOAD"):
        return False
    own = ("mmap_", "trim_threshold", "top_pad", "arena_")
    tunables = environment.get("GLIBC_TUNABLES", "")
    return not (
        any(f"glibc.malloc.{name}" in tunables for name in own)
        or any(name.startswith("MALLOC_") and name.endswith("_") for name in environment)
        or "MALLOC_ARENA_MAX" in environment
    )
