"""What a process may use."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fsvi import machine
from fsvi.machine import format_bytes, free_memory


@pytest.fixture(autouse=True)
def _system(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine with 5 kB of free memory and without control groups."""
    (tmp_path / "meminfo").write_text("MemTotal:       9 kB\nMemAvailable:       5 kB\n")
    monkeypatch.setattr(machine, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(machine, "_OWN_GROUP", tmp_path / "cgroup")
    monkeypatch.setattr(machine, "_GROUPS", tmp_path / "groups")


def test_free_memory_of_linux() -> None:
    assert free_memory() == 5120


def test_free_memory_of_other_systems(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(machine, "_MEMINFO", tmp_path / "absent")
    monkeypatch.setattr(os, "sysconf", {"SC_AVPHYS_PAGES": 7, "SC_PAGE_SIZE": 100}.__getitem__)
    assert free_memory() == 700

    def unknown(name: str) -> int:
        raise ValueError("unrecognized configuration name")

    monkeypatch.setattr(os, "sysconf", unknown)
    assert free_memory() is None


def test_free_memory_of_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (11, 22))
    assert free_memory(torch.device("cuda")) == 11
    assert free_memory(torch.device("meta")) is None


@pytest.mark.parametrize(
    ("own", "files", "free"),
    [
        ("0::/job/step\n", {"job/memory.max": "900", "job/memory.current": "300"}, 600),
        ("0::/job\n", {"job/memory.max": "9", "job/memory.current": "8", "job/memory.stat": "inactive_file 3"}, 4),
        ("0::/job\n", {"job/memory.max": "max", "job/memory.current": "8"}, 5120),
        ("0::/\n", {"memory.max": "70", "memory.current": "90"}, 0),
        (
            "5:cpu:/a\n4:memory:/a\n",
            {"memory/a/memory.limit_in_bytes": "700", "memory/a/memory.usage_in_bytes": "100"},
            600,
        ),
        (
            "4:memory:/a\n",
            {"memory/a/memory.limit_in_bytes": str(2**63 - 4096), "memory/a/memory.usage_in_bytes": "100"},
            5120,
        ),
    ],
    ids=["a group around this one", "cached files", "no limit", "above the limit", "version 1", "no limit, version 1"],
)
def test_control_groups_limit_memory(tmp_path: Path, own: str, files: dict[str, str], free: int) -> None:
    (tmp_path / "cgroup").write_text(own)
    for name, text in files.items():
        (tmp_path / "groups" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "groups" / name).write_text(text)
    assert free_memory() == free


def test_sizes_are_readable() -> None:
    sizes = {12: "12 bytes", 1500: "1.5 kB", 2.5e6: "2.5 MB", 3e9: "3 GB", 4e12: "4e+03 GB"}
    assert {size: format_bytes(size) for size in sizes} == sizes


# Keeping memory

PROGRAM = """
import torch
from pathlib import Path
from fsvi.machine import keep_memory

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

assert {keep}
before = resident()
block = torch.ones(64 * 2**20 // 4)
del block
print(resident() - before)
"""


def left_after(keep):
    program = PROGRAM.format(keep=keep)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's allocator is Linux's")
def test_freed_memory_stays_with_the_process_when_asked():
    assert left_after("keep_memory()") >= 64 * 2**20
    assert left_after("True") < 32 * 2**20


def test_elsewhere_nothing_happens(monkeypatch):
    monkeypatch.setattr(machine.sys, "platform", "darwin")
    assert machine.keep_memory() is False


def test_a_c_library_without_the_option(monkeypatch):
    monkeypatch.setattr(machine.sys, "platform", "linux")
    monkeypatch.setattr(machine.ctypes, "CDLL", lambda _: object())
    assert machine.keep_memory() is False
