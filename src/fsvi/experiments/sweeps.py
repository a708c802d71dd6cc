"""`fsvi reproduce`: the runs behind a table or figure of the paper."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from fsvi.errors import FSVIError, InvalidInputError
from fsvi.experiments.experiment import Order, Profile
from fsvi.experiments.results import Result
from fsvi.experiments.runner.runs import can_stack, checked, run, run_stacked
from fsvi.experiments.runner.workers import each_finished
from fsvi.experiments.task import Sweep
from fsvi.experiments.tasks.registry import TASKS
from fsvi.serialization import check_writable
from fsvi.validation import check_choice, check_count, check_seed

SWEEPS: dict[str, Sweep] = {task.sweep.name: task.sweep for task in TASKS.values()}
"""Every sweep by its name."""

_SHOWN = 3


def reproduce(
    name: str,
    out: Path,
    methods: Sequence[str] = (),
    seeds: int | Sequence[int] | None = None,
    profile: Profile = "paper",
    tell: Callable[[str], None] = print,
    workers: int = 1,
    device: str | None = None,
) -> list[Result]:
    """Make all runs of a sweep; existing results are reused.

    If a run fails, its error is reported and the other runs continue; at the end an error says how many failed.

    Args:
        name: A key of `SWEEPS`, or "all".
        out: The folder for results.
        methods: Methods to run; all if empty.
        seeds: The number of seeds, or the seeds themselves; None for the paper's number.
        profile: How much effort each run may take.
        tell: Receives a line for each run.
        workers: The number of processes that train at the same time, each with one thread.
        device: Where to train and evaluate; None for the CPU. On another device, seeds are trained one by one.
    """
    check_choice("name", name, [*SWEEPS, "all"])
    check_writable(out)
    orders = list(_orders(name, methods, seeds, profile))
    groups = _grouped(orders) if device is None else [[order] for order in orders]
    if check_count("workers", workers) == 1:
        return _reproduce_in_turn(groups, out, tell, device)
    return _reproduce_at_once(groups, out, tell, workers, device)


def describe(orders: Sequence[Order]) -> str:
    """Orders that differ only in their seeds, in a few words."""
    order = orders[0]
    context = f" ({order.context})" if order.context else ""
    seeds = f"seed {order.seed}" if len(orders) == 1 else f"seeds {order.seed} to {orders[-1].seed}"
    return f"{order.task} {order.method}{context}, {order.profile}, {seeds}"


def run_group(
    orders: Sequence[Order], out: Path, tell: Callable[[str], None], device: str | None = None
) -> list[Result]:
    """Run orders that differ only in their seeds, stacked if there are several.

    Args:
        orders: What to run.
        out: The folder of results.
        tell: A function that shows a line of text.
        device: Where to train and evaluate; None for the CPU.
    """
    return run_stacked(orders, out, tell) if len(orders) > 1 else [run(orders[0], out, tell, device=device)]


def _reproduce_in_turn(
    groups: Sequence[list[Order]], out: Path, tell: Callable[[str], None], device: str | None
) -> list[Result]:
    results, errors, done, total = [], [], 0, sum(map(len, groups))
    for group in groups:
        done += len(group)
        tell(f"[{done}/{total}] {describe(group)}")
        try:
            results += run_group(group, out, tell, device)
        except FSVIError as error:
            tell(f"  failed: {error}")
            errors.append(error)
    _raise_if_any(errors)
    return results


def _reproduce_at_once(
    groups: Sequence[list[Order]], out: Path, tell: Callable[[str], None], workers: int, device: str | None
) -> list[Result]:
    results, errors, done, total = [], [], 0, sum(map(len, groups))
    for group, found in each_finished(_run_silently, [(group, out, device) for group in groups], workers):
        done += len(group[0])
        if isinstance(found, FSVIError):
            told = f"failed: {found}"
            errors.append(found)
        else:
            told = _summary(found)
            results += found
        tell(f"[{done}/{total}] {describe(group[0])}: {told}")
    _raise_if_any(errors)
    return results


def _run_silently(job: tuple[list[Order], Path, str | None]) -> list[Result]:
    group, out, device = job
    return run_group(group, out, lambda _: None, device)


def _summary(results: Sequence[Result]) -> str:
    """The time, and the first columns of the task's first table."""
    first = results[0]
    columns = TASKS[first.task].section.tables[0].columns
    means = [(column, column.mean(results)) for column in columns if column.task == first.task]
    shown = [f"{column.metric.label} {column.metric.show(mean.mean)}" for column, mean in means if mean is not None]
    return ", ".join([f"{sum(result.seconds['train'] for result in results):.0f} s", *shown[:_SHOWN]])


def _raise_if_any(errors: Sequence[FSVIError]) -> None:
    if errors:
        raise FSVIError(f"{len(errors)} of the runs failed; the first one because {errors[0]}")


def _grouped(orders: Sequence[Order]) -> list[list[Order]]:
    """Seeds that can be trained stacked in one group, every other order in a group of its own."""
    groups: dict[tuple[str, ...], list[Order]] = {}
    for order in orders:
        row = (order.task, order.method, order.context or "")
        groups.setdefault(row if can_stack(order) else (*row, str(order.seed)), []).append(order)
    return list(groups.values())


def _orders(name: str, methods: Sequence[str], seeds: int | Sequence[int] | None, profile: Profile) -> Iterator[Order]:
    sweeps = [sweep for sweep in SWEEPS.values() if name in (sweep.name, "all") and sweep.rows_at(profile)]
    if not sweeps:
        have = " and ".join(sweep.name for sweep in SWEEPS.values() if sweep.rows_at(profile))
        raise InvalidInputError(f"{name} has no runs at profile={profile!r}, only {have}.")
    known = sorted({method for sweep in sweeps for method, _ in sweep.rows_at(profile)})
    for method in methods:
        check_choice("methods", method, known)
    for sweep in sweeps:
        tasks = [task.name for task in TASKS.values() if task.sweep == sweep]
        for seed in _seeds(sweep, seeds):
            for task in tasks:
                for method, context in sweep.rows_at(profile):
                    if not methods or method in methods:
                        yield checked(Order(task, method, profile, seed, context))


def _seeds(sweep: Sweep, seeds: int | Sequence[int] | None) -> Sequence[int]:
    if seeds is None:
        return range(sweep.seeds)
    if isinstance(seeds, int):
        return range(check_count("seeds", seeds))
    return [check_seed(seed) for seed in seeds]
