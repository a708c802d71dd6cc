"""Keep freed memory in the process, because the next step needs it again."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4
"""The options of glibc's mallopt(3)."""

_KEPT = {_TRIM_THRESHOLD: 2**31 - 1, _TOP_PAD: 64 * 2**20, _MMAP_MAX: 0}


def keep_memory() -> bool:
    """Make this process keep the memory that it frees.

    A training step on images frees hundreds of megabytes that the next step allocates again. By default, the C library
    returns them to the system, which must then clear every page again. This can take a quarter of the step's time. The
    price is that the process stays as large as it once was.

    It works on Linux with glibc and does nothing elsewhere. The command line calls it. In your own program, call it
    once before training on a CPU.

    Returns:
        Whether it worked.
    """
    mallopt = _glibc("mallopt")
    return mallopt is not None and all(mallopt(option, value) == 1 for option, value in _KEPT.items())


def release_memory() -> None:
    """Give memory that is free, but kept by this process, back to the system; only on Linux with glibc."""
    malloc_trim = _glibc("malloc_trim")
    if malloc_trim is not None:
        malloc_trim(0)


def _glibc(name: str) -> Callable[..., int] | None:
    """A function of the C library; None if it is not glibc on Linux."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        function: Callable[..., int] = getattr(ctypes.CDLL(None), name)
    except (OSError, AttributeError):
        return None
    return function
