"""Many runs: in groups that are trained together, one after the other or in several processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import TypeAlias

from torch import Tensor

from fsvi.cost import estimate_cost, keep_memory
from fsvi.errors import FSVIError
from fsvi.parallel import Workers
from paper.experiment import CPU, Compute, Order
from paper.records import Result, result_path
from paper.runner.locks import BeingMadeError, is_being_made
from paper.runner.runs import can_stack, run, run_stacked
from paper.tasks.registry import TASKS

Group: TypeAlias = "list[Order]"
"""Orders that differ only in their seeds and are trained together."""
_EMPTY_PROCESSES = 700_000_000
"""Bytes of a worker and of its child process before a run, mostly PyTorch.

On Linux with PyTorch 2.13 for CPUs, 240 MB each were resident. The rest is a margin, for example for larger builds.
"""
_BATCH_SIZE = 128
"""The default of `fit`."""
_POLL = 1.0
_SHOWN = 3
_Outcome: TypeAlias = "tuple[Group, list[Result] | FSVIError]"


def grouped(orders: Iterable[Order], compute: Compute = CPU) -> list[Group]:
    """Seeds that can be trained stacked in one group, every other order in a group of its own.

    Args:
        orders: The orders.
        compute: Where and how to train; seeds are stacked on the CPU in float32 only.
    """
    groups: dict[tuple[str, ...], Group] = {}
    for order in orders:
        row = (order.task, order.method, order.context or "")
        stacks = compute == CPU and can_stack(order)
        groups.setdefault(row if stacks else (*row, str(order.seed)), []).append(order)
    return list(groups.values())


def describe(group: Group) -> str:
    """A group in a few words."""
    order = group[0]
    context = f" ({order.context})" if order.context else ""
    seeds = f"seed {order.seed}" if len(group) == 1 else f"seeds {order.seed} to {group[-1].seed}"
    return f"{order.task} {order.method}{context}, {order.profile}, {seeds}"


def run_group(
    group: Group,
    out: Path,
    tell: Callable[[str], None],
    progress: bool | None = None,
    compute: Compute = CPU,
) -> list[Result]:
    """Run a group, stacked if it has several orders.

    Args:
        group: What to run.
        out: The folder of results.
        tell: A function that shows a line of text.
        progress: Whether to show a progress bar; None shows it on a terminal.
        compute: Where and how to train.
    """
    return run_stacked(group, out, tell) if len(group) > 1 else [run(group[0], out, tell, progress, compute)]


def each_made(
    groups: Sequence[Group],
    out: Path,
    workers: Workers | None,
    tell: Callable[[str], None],
    compute: Compute = CPU,
) -> Iterator[_Outcome]:
    """Each group with its results or its error, as they come.

    Runs that another process is making come last: they are waited for, and made here if that process ends without a
    result.

    Args:
        groups: What to run.
        out: The folder of results.
        workers: The processes that run groups at the same time; None for this process, one group after the other.
        tell: A function that shows a line of text.
        compute: Where and how to train.
    """
    todo, waiting = list(groups), list[Group]()
    while todo or waiting:
        made = [group for group in todo if is_made(group, out)]  # reading them needs no other process
        missing = [group for group in todo if group not in made]
        for group, outcome in chain(_in_turn(made, out, _quiet, compute), _run(missing, out, workers, tell, compute)):
            if isinstance(outcome, BeingMadeError):
                waiting.append(group)
            else:
                yield group, outcome
        todo = _wait_for_any(waiting, out, tell)
        waiting = [group for group in waiting if group not in todo]


def is_made(group: Group, out: Path) -> bool:
    """Whether all results of a group exist.

    Args:
        group: The orders.
        out: The folder of results.
    """
    return all(path.exists() for path in _paths(group, out))


def memory_of(groups: Sequence[Group]) -> int:
    """The bytes that the largest of these groups needs in a worker, estimated; one of each task and method is measured.

    Args:
        groups: The groups.
    """
    firsts = {(group[0].task, group[0].method): group for group in groups}
    return max(map(_memory_of, firsts.values()), default=0)


def _memory_of(group: Group) -> int:
    try:
        experiment = TASKS[group[0].task].experiment(group[0])
        method = experiment.build(group[0].seed)
        x, y = experiment.data
        step = estimate_cost(method, min(experiment.fit_settings.get("batch_size", _BATCH_SIZE), len(y)), x[:1])
    except FSVIError:
        return 0  # the run itself will say what is wrong
    data = sum(leaf.nbytes for leaf in ([x] if isinstance(x, Tensor) else x.leaves())) + y.nbytes
    return _EMPTY_PROCESSES + 2 * data + len(group) * step.peak_memory


def _run(
    groups: Sequence[Group], out: Path, workers: Workers | None, tell: Callable[[str], None], compute: Compute
) -> Iterator[_Outcome]:
    if workers is None:
        return _in_turn(groups, out, tell, compute)
    jobs = [(group, out.absolute(), compute) for group in groups]
    return ((group, outcome) for (group, *_), outcome in workers.each_finished(_run_silently, jobs))


def _in_turn(groups: Sequence[Group], out: Path, tell: Callable[[str], None], compute: Compute) -> Iterator[_Outcome]:
    for group in groups:
        try:
            yield group, run_group(group, out, tell, compute=compute)
        except FSVIError as error:
            yield group, error


def _run_silently(job: tuple[Group, Path, Compute]) -> list[Result]:
    group, out, compute = job
    keep_memory()
    return run_group(group, out, _quiet, progress=False, compute=compute)


def _wait_for_any(groups: Sequence[Group], out: Path, tell: Callable[[str], None]) -> list[Group]:
    """The groups that no other process is making any longer, as soon as there are any; none if there are no groups."""
    if groups:
        tell(f"Waiting for another process that makes {_listed([describe(group) for group in groups])}.")
    while groups:
        free = [group for group in groups if not any(is_being_made(out, path) for path in _paths(group, out))]
        if free:
            return free
        time.sleep(_POLL)
    return []


def _paths(group: Group, out: Path) -> list[Path]:
    return [result_path(out, order) for order in group]


def _listed(names: Sequence[str]) -> str:
    shown = "; ".join(names[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown}; and {len(names) - _SHOWN} more"


def _quiet(_: str) -> None:
    pass
