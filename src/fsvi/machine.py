"""What this process may use of its machine: memory, within the limits of containers and batch systems."""

from __future__ import annotations

import ctypes
import sys
from contextlib import suppress
from pathlib import Path

_MEMINFO, _OWN_GROUP, _GROUPS = Path("/proc/meminfo"), Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4
"""The options of glibc's mallopt(3)."""
_KEPT = {_TRIM_THRESHOLD: 2**31 - 1, _TOP_PAD: 64 * 2**20, _MMAP_MAX: 0}


def free_memory() -> int | None:
    """The bytes that this process may still allocate; None if unknown."""
    found: list[int | None] = []
    with suppress(OSError):
        lines = dict(line.split(":", 1) for line in _MEMINFO.read_text().splitlines())
        found.append(int(lines["MemAvailable"].split()[0]) * 1024)
        own = next((line[3:] for line in _OWN_GROUP.read_text().splitlines() if line.startswith("0::")), "")
        folder = _GROUPS / own.strip("/")
        found += [_left(each) for each in (folder, *folder.parents) if (each / "memory.max").exists()]
    return min((free for free in found if free is not None), default=None)


def _left(folder: Path) -> int | None:
    """The bytes up to a group's limit. Cached files do not count: the system drops them when memory is needed."""
    most, now = (folder / "memory.max").read_text().strip(), int((folder / "memory.current").read_text())
    if most == "max":
        return None
    stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    return max(0, int(most) - now + int(stat.get("inactive_file", 0)))


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
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return False
    return all(mallopt(option, value) == 1 for option, value in _KEPT.items())
