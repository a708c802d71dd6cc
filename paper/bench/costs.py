"""What is measured, and how it is written down: fsvi's own costs, and fsvi next to other libraries."""

from __future__ import annotations

import ctypes
import multiprocessing
import platform
import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pandas as pd
import torch

import fsvi
from fsvi.errors import FileFormatError
from fsvi.methods.registry import METHODS
from fsvi.serialization import check_writable
from fsvi.validation import check_choice, first_line
from paper.bench import peers
from paper.bench.steps import FSVI, Action, Size, Work, plain_forward, plain_step
from paper.records import read_document, write_document

PLAIN, FORWARD = "plain", "forward"
"""What steps and predictions are compared with: a loop written by hand with torch.optim, and a pass of the network."""
Rows = list[dict[str, Any]]
_SIZES = {
    "cnn": Size("cnn", 128, 32),
    "mlp 100": Size("mlp 100", 128, 32),
    "resnet18": Size("resnet18", 32, 8),
    "transformer": Size("transformer", 32, 8),
}
_PREDICTIONS = {"last_layer": 100, "conditional": 10, "mfvi": 10, "mc-dropout": 10, "laplace": 100}
"""fsvi's predictions, and their draws."""


def run_bench(out: Path, quick: bool, only: Sequence[str] = (), others: bool = False) -> None:
    """Measure steps and predictions, print tables and write `bench.json`, or `peers.json` with others."""
    path = out / ("peers.json" if others else "bench.json")
    sections: dict[str, Callable[[], Rows]] = {
        name: partial(_steps, size, ("map", "mfvi", "ivon", "mc-dropout", *FSVI), quick, others)
        for name, size in _SIZES.items()
    }
    sections["methods"] = partial(_steps, _SIZES["cnn"], tuple(METHODS), True, False)
    sections["predictions"] = partial(_predictions, Size("cnn with dropout", 128, 32), quick, others)
    names = [check_choice("only", name, sections) for name in only or sections]
    check_writable(out)
    try:
        found = read_document(path)
    except FileFormatError:
        found = {}
    for name in names:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            rows = sections[name]()
        machine = {"torch": torch.__version__, "platform": platform.platform(), "threads": torch.get_num_threads()}
        found[name] = {"fsvi": fsvi.__version__, "machine": machine, "quick": quick, "rows": rows}
        print(f"{name}\n\n{pd.json_normalize(rows).round(2).to_string(index=False)}\n")
        write_document(path, found)


def _steps(size: Size, names: Sequence[str], quick: bool, others: bool) -> Rows:
    """Times of training steps; memory, too, unless it is to be quick."""
    actions = {PLAIN: plain_step(size.work(size.batch)), **{name: size.step(name) for name in names}}
    if others:
        actions |= _usable(peers.STEPS, lambda: size.work(size.batch))
    found = _costs(actions, PLAIN, 3 if quick else 100)
    rows = [{"method": name, "B": size.batch, "K": size.context, **found[name]} for name in found]
    if not quick:
        memory = {name: step_memory(size, name) for name in (PLAIN, *names)}
        for row in rows:
            if row["method"] in memory:
                row["memory_ratio"] = round(memory[row["method"]] / memory[PLAIN], 2)
    return rows


def _predictions(size: Size, quick: bool, others: bool) -> Rows:
    num = 128 if quick else 1000
    actions = {FORWARD: plain_forward(size.work(num))}
    actions |= {name: size.prediction(name, num, each) for name, each in _PREDICTIONS.items()}
    if others:
        actions |= _usable(peers.PREDICTIONS, lambda: size.work(num))
    found = _costs(actions, FORWARD, 3 if quick else 15)
    return [{"method": name, "num_samples": _PREDICTIONS.get(name, 1), **cost} for name, cost in found.items()]


def _usable(given: Mapping[str, Callable[[Work], Action]], work: Callable[[], Work]) -> dict[str, Action]:
    """The actions of libraries that are installed and work on the network; it says which do not."""
    actions = {}
    for name, make in given.items():
        try:
            actions[name] = make(work())
            actions[name]()
        except Exception as error:  # other libraries fail in any way
            actions.pop(name, None)
            print(f"{name} cannot be measured: {first_line(error)}.", file=sys.stderr)
    return actions


def interleave(actions: Mapping[str, Action], rounds: int) -> dict[str, list[float]]:
    """The seconds of each action in each round.

    Every round gives all actions a turn, in a new order, so that none owes its time to its place or its moment. A turn
    begins with a run that is not counted: as in training, a step then follows one of its own kind.
    """
    seconds: dict[str, list[float]] = {name: [] for name in actions}
    order, shuffle = list(actions), random.Random(0).shuffle
    for _ in range(rounds):
        shuffle(order)
        for name in order:
            actions[name]()
            started = time.perf_counter()
            actions[name]()
            seconds[name].append(time.perf_counter() - started)
    return seconds


def _costs(actions: Mapping[str, Action], base: str, rounds: int) -> dict[str, dict[str, Any]]:
    """Milliseconds of every action, and its ratio to `base` round by round, so that slow rounds cancel."""
    seconds = {name: np.array(values) for name, values in interleave(actions, rounds).items()}
    return {
        name: {"ms": spread(1e3 * values), "ratio": spread(values / seconds[base])} for name, values in seconds.items()
    }


def spread(values: Any) -> dict[str, float]:
    """The median and the quartiles."""
    low, middle, high = np.quantile(values, [0.25, 0.5, 0.75]).round(4).tolist()
    return {"median": middle, "low": low, "high": high}


def step_memory(size: Size, name: str, repeats: int = 3) -> float:
    """MB that training adds to a process: a median over processes, because allocators behave differently in each."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, "torch._dynamo"])  # imported once, not by every process
    found = []
    for _ in range(repeats):
        with ProcessPoolExecutor(1, context) as process:
            found.append(process.submit(_measure_memory, size, name, torch.get_num_threads()).result())
    return float(median(found))


def _measure_memory(size: Size, name: str, threads: int) -> float:
    def step(size: Size) -> Action:
        return plain_step(size.work(size.batch)) if name == PLAIN else size.step(name)

    torch.set_num_threads(threads)
    step(Size("cnn", 2, 2))()
    ctypes.CDLL(None).malloc_trim(0)  # what the allocator keeps of the warm-up would hide as much of what training adds
    before = _resident("VmRSS")
    act = step(size)
    for _ in range(2):  # the optimizer's state exists from the second step on
        act()
    return _resident("VmHWM") - before


def _resident(field: str) -> float:
    """MB that this process holds, or has held at most; Linux only."""
    status = Path("/proc/self/status").read_text().splitlines()
    return int(dict(line.split(":", 1) for line in status)[field].split()[0]) / 2**10
