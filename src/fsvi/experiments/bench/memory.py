"""How much memory a training step needs."""

from __future__ import annotations

import multiprocessing
import resource
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch

from fsvi.experiments.bench.steps import Step

_STATUS = Path("/proc/self/status")
_STEPS = 3


@dataclass(frozen=True)
class Memory:
    """The peak of a process's resident memory while it trains, in MB: all of it, and what training added.

    Training adds parameters, gradients, the optimiser's state, the context's data and all that a step creates; it does
    not add the libraries and what they allocate when they are first used.
    """

    total: float
    added: float


def step_memory(step: Step) -> Memory:
    """The memory of a step, measured in a process of its own, where nothing else can be counted."""
    context = multiprocessing.get_context("forkserver")
    # imported once, not by every process; torch's optimisers import dynamo when first used
    context.set_forkserver_preload([__name__, "torch._dynamo"])
    with ProcessPoolExecutor(1, mp_context=context) as process:
        return process.submit(_measure, step, torch.get_num_threads()).result()


def _measure(step: Step, threads: int) -> Memory:
    torch.set_num_threads(threads)
    warm_up = replace(step, network="cnn", batch_size=2, num_context=2)
    warm_up.make_action()()
    before = _resident_mb("VmRSS")
    act = step.make_action()
    for _ in range(_STEPS):
        act()
    peak = _resident_mb("VmHWM")
    return Memory(peak, peak - before)


def _resident_mb(field: Literal["VmRSS", "VmHWM"]) -> float:
    """What the process holds now or has held at most; the latter for both where the system does not say."""
    if _STATUS.exists():
        # not `ru_maxrss`, which on Linux starts at the peak of the process that started this one
        lines = dict(line.split(":", 1) for line in _STATUS.read_text().splitlines())
        return int(lines[field].split()[0]) / 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2 ** (20 if sys.platform == "darwin" else 10)
