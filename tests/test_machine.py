"""What a process may use."""

from pathlib import Path

import pytest

from fsvi import machine
from fsvi.machine import free_memory


@pytest.fixture(autouse=True)
def _system(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine with 5 kB of free memory and without control groups."""
    (tmp_path / "meminfo").write_text("MemTotal:       9 kB\nMemAvailable:       5 kB\n")
    monkeypatch.setattr(machine, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(machine, "_OWN_GROUP", tmp_path / "cgroup")
    monkeypatch.setattr(machine, "_GROUPS", tmp_path / "groups")


def test_free_memory_of_linux() -> None:
    assert free_memory() == 5120


@pytest.mark.parametrize(
    ("own", "files", "free"),
    [
        ("0::/job/step\n", {"job/memory.max": "900", "job/memory.current": "300"}, 600),
        ("0::/job\n", {"job/memory.max": "9", "job/memory.current": "8", "job/memory.stat": "inactive_file 3"}, 4),
        ("0::/job\n", {"job/memory.max": "max", "job/memory.current": "8"}, 5120),
        ("0::/\n", {"memory.max": "70", "memory.current": "90"}, 0),
    ],
    ids=["a group around this one", "cached files", "no limit", "above the limit"],
)
def test_control_groups_limit_memory(tmp_path: Path, own: str, files: dict[str, str], free: int) -> None:
    (tmp_path / "cgroup").write_text(own)
    for name, text in files.items():
        (tmp_path / "groups" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "groups" / name).write_text(text)
    assert free_memory() == free
