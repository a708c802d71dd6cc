"""How much memory a training step needs."""

from __future__ import annotations

import multiprocessing
import resource
import sys
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Literal

import torch

from fsvi.cost.allocation import release_memory
from fsvi.errors import FSVIError
from paper.bench.steps import BenchStep

_STATUS = Path("/proc/self/status")
_STEPS = 2
"""The optimizer's state exists from the second step on."""


@dataclass(frozen=True)
class Memory:
    """The peak of a process's resident memory while it trains, in MB: all of it, and what training added.

    Training adds parameters, gradients, the optimizer's state, the context's data and all that a step creates; it does
    not add the libraries and what they allocate when they are first used.
    """

    total: float
    added: float


def step_memory(step: BenchStep, repeats: int = 1) -> Memory:
    """The memory of a step: the median over several processes, because the allocator behaves differently in each.

    Args:
        step: The step.
        repeats: The number of processes.
    """
    return sorted((_in_process(step) for _ in range(repeats)), key=lambda memory: memory.added)[repeats // 2]


def _in_process(step: BenchStep) -> Memory:
    """Measured in a process of its own, where nothing else can be counted."""
    context = multiprocessing.get_context("forkserver")
    # Imported once, not by every process: torch's optimizers import dynamo when first used.
    context.set_forkserver_preload([__name__, "torch._dynamo"])
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_measure, args=(step, torch.get_num_threads(), sender))
    process.start()
    sender.close()
    try:
        memory: Memory = receiver.recv()
    except EOFError as error:
        process.join()
        raise FSVIError(f"the process that measured {step} ended with exit code {process.exitcode}.") from error
    process.join()
    return memory


def _measure(step: BenchStep, threads: int, sender: Connection) -> None:
    torch.set_num_threads(threads)
    warm_up = replace(step, network="cnn", batch_size=2, num_context=2)
    warm_up.make_action()()
    release_memory()  # what the allocator keeps of the warm-up would hide as much of what training adds
    before = _resident_mb("VmRSS")
    act = step.make_action()
    for _ in range(_STEPS):
        act()
    peak = _resident_mb("VmHWM")
    sender.send(Memory(peak, peak - before))


def _resident_mb(field: Literal["VmRSS", "VmHWM"]) -> float:
    """What the process holds now or has held at most; the latter for both where the system does not say."""
    if _STATUS.exists():
        # not `ru_maxrss`, which on Linux starts at the peak of the process that started this one
        lines = dict(line.split(":", 1) for line in _STATUS.read_text().splitlines())
        return int(lines[field].split()[0]) / 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2 ** (20 if sys.platform == "darwin" else 10)
