"""What this process may use of its machine: memory, within the limits of containers and batch systems."""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import suppress
from pathlib import Path

import torch

_CPU = torch.device("cpu")
_MEMINFO, _OWN_GROUP, _GROUPS = Path("/proc/meminfo"), Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4
"""The options of glibc's mallopt(3)."""

_KEPT = {_TRIM_THRESHOLD: 2**31 - 1, _TOP_PAD: 64 * 2**20, _MMAP_MAX: 0}


def free_memory(device: torch.device = _CPU) -> int | None:
    """The bytes that this process may still allocate on `device`; None if unknown."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    if device.type != "cpu":
        return None
    known = [free for free in (_free_of_machine(), _free_of_groups()) if free is not None]
    return min(known, default=None)


def format_bytes(num: float) -> str:
    """A readable size, such as "1.5 GB"."""
    for unit in ("bytes", "kB", "MB"):
        if num < 1000:
            return f"{num:.3g} {unit}"
        num /= 1000
    return f"{num:.3g} GB"


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


def _free_of_machine() -> int | None:
    if _MEMINFO.exists():
        lines = dict(line.split(":", 1) for line in _MEMINFO.read_text().splitlines())
        return int(lines["MemAvailable"].split()[0]) * 1024
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def _free_of_groups() -> int | None:
    """The least that the control group of this process and the groups around it have left; None without a limit."""
    try:
        own = next(line[3:] for line in _OWN_GROUP.read_text().splitlines() if line.startswith("0::"))
    except (OSError, StopIteration):
        return None
    folder = _GROUPS / own.strip("/")
    left = [_left(each) for each in (folder, *folder.parents) if each.is_relative_to(_GROUPS)]
    return min((free for free in left if free is not None), default=None)


def _left(folder: Path) -> int | None:
    """The bytes up to a group's limit. Cached files do not count: the system drops them when memory is needed."""
    try:
        most, now = int((folder / "memory.max").read_text()), int((folder / "memory.current").read_text())
    except (OSError, ValueError):  # no such file, or "max"
        return None
    cached = 0
    with suppress(OSError, ValueError):
        stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        cached = int(stat.get("inactive_file", 0))
    return max(0, most - now + cached)
