import subprocess
import sys

import pytest

from fsvi.cost import allocation

PROGRAM = """
import torch
from pathlib import Path
from fsvi.cost.allocation import keep_memory

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
    monkeypatch.setattr(allocation.sys, "platform", "darwin")
    assert allocation.keep_memory() is False


def test_a_c_library_without_the_option(monkeypatch):
    monkeypatch.setattr(allocation.sys, "platform", "linux")
    monkeypatch.setattr(allocation.ctypes, "CDLL", lambda _: object())
    assert allocation.keep_memory() is False
