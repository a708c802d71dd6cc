"""A sweep: the runs behind a table or figure of the paper, one after the other or by joblib's workers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice, product
from pathlib import Path
from typing import Any

import joblib
import torch

from fsvi.errors import FSVIError, InvalidInputError
from fsvi.validation import check_choice, check_count, first_line
from paper.experiment import Order, Profile
from paper.methods import split_label
from paper.records import Result, duration
from paper.runs import checked, run, state
from paper.tasks.registry import TASKS

SWEEPS = tuple(dict.fromkeys(task.sweep.name for task in TASKS.values()))
"""The names of all sweeps."""


@dataclass(frozen=True)
class Workers:
    """How many runs are made at the same time, by which of joblib's backends, and with how many threads each.

    `loky` starts processes on this machine. `ray` and `dask` use the cluster that RAY_ADDRESS or
    DASK_SCHEDULER_ADDRESS names, or start workers here.
    """

    jobs: int = 1
    backend: str = "loky"
    threads: int | None = None

    def __post_init__(self) -> None:
        check_count("jobs", self.jobs)
        check_choice("backend", self.backend, ("loky", "ray", "dask"))


def plan(
    name: str, methods: Sequence[str] = (), seeds: int | None = None, profile: Profile = "paper", **compute: Any
) -> list[Order]:
    """The runs of a sweep, or of all of them, on a device and in a precision; without `methods` or `seeds`, its own."""
    check_choice("name", name, [*SWEEPS, "all"])
    tasks = [task for task in TASKS.values() if profile in task.profiles]
    chosen = [task for task in tasks if name in (task.sweep.name, "all")]
    if not chosen:
        have = " and ".join(dict.fromkeys(task.sweep.name for task in tasks))
        raise InvalidInputError(f"{name} has no runs at profile={profile!r}, only {have}.")
    rows = {task.sweep.name: task.sweep.rows_at(profile) for task in chosen}
    known = sorted({split_label(label)[0] for each in rows.values() for label in each})
    for method in methods:
        check_choice("methods", method, known)
    most = max(max(each.values()) for each in rows.values()) if seeds is None else check_count("seeds", seeds)
    return [  # seed by seed, so that the first results cover all tasks and methods of a sweep
        checked(Order(task.name, method, profile, seed, context, **compute))
        for sweep, seed in product(rows, range(most))
        for task in chosen
        for label, num in rows[sweep].items()
        for method, context in [split_label(label)]
        if task.sweep.name == sweep and seed < (seeds or num) and (not methods or method in methods)
    ]


def reproduce(
    orders: Sequence[Order], out: Path, tell: Callable[[str], None] = print, workers: Workers = Workers()
) -> list[Result]:
    """Make all runs of a plan; existing results are reused, and runs of other processes are waited for.

    If a run fails or its process is killed, the other runs continue; at the end an error names the failed ones. `tell`
    receives a line for each run.
    """
    started = time.perf_counter()
    missing = [order for order in orders if state(order, out) != "done"]
    results = [run(order, out, lambda _: None) for order in orders if order not in missing]
    if results:
        tell(f"{len(results)} of {len(orders)} runs exist already.")
    failed: list[Order] = []
    for order, outcome in _each_made(missing, out.absolute(), tell, workers):
        if isinstance(outcome, Result):
            results.append(outcome)
        else:
            failed.append(order)
        done = len(results) + len(failed)
        left = (time.perf_counter() - started) * (len(orders) - done) / (done - len(orders) + len(missing))
        said = ", ".join(islice(measures(outcome), 3)) if isinstance(outcome, Result) else f"failed: {outcome}"
        tell(f"[{done}/{len(orders)}, {duration(left)} left] {order}: {said}")
    if failed:
        names = "; ".join(map(str, failed))
        raise FSVIError(f"{len(failed)} of {len(orders)} runs failed: {names}. The others are done.")
    return results


def _each_made(
    orders: Sequence[Order], out: Path, tell: Callable[[str], None], workers: Workers
) -> Iterator[tuple[Order, Result | str]]:
    """Each order with its result or the reason why there is none, as they come; those of other processes come last.

    If a worker is killed, joblib gives up all its jobs. Those left are then made one at a time, from their
    checkpoints, until the run that is killed again is found; it costs only itself.
    """
    left, alone = list(orders), False
    while left:
        free = [order for order in left if state(order, out) != "running"]
        if not free:
            tell(f"Waiting for other processes that make {len(left)} runs.")
        chosen = (free or left)[: 1 if alone else None]
        # joblib asks for the next order when a worker is free; another process may have begun with it by then.
        given = (order for order in chosen if not free or state(order, out) != "running")
        try:
            for order, outcome in _parallel(given, out, workers):
                left.remove(order)
                yield order, outcome
        except FSVIError:
            raise
        except Exception as error:  # joblib's backends raise their own when a worker is lost
            if workers.jobs == 1:
                raise
            if alone:
                left.remove(chosen[0])
                yield chosen[0], f"its process was lost ({type(error).__name__}: {first_line(error)})"
            else:
                tell("A worker was lost; runs are made one at a time until it is known which one it was.")
            alone = not alone


def _parallel(orders: Iterable[Order], out: Path, workers: Workers) -> Iterator[tuple[Order, Result | str]]:
    with ExitStack() as stack:
        try:
            settings = {"inner_max_num_threads": workers.threads} if workers.backend == "loky" else {}
            if workers.backend == "ray":
                from ray.util.joblib import register_ray

                register_ray()
            elif workers.backend == "dask":
                from distributed import Client

                stack.enter_context(Client())
            stack.enter_context(joblib.parallel_config(workers.backend, **settings))
        except Exception as error:
            name = {"ray": "ray", "dask": "distributed"}.get(workers.backend, "joblib")
            raise FSVIError(f"{workers.backend} cannot be used ({first_line(error)}): pip install {name}?") from error
        # Ray's backend cannot return results as they come.
        form = "list" if workers.backend == "ray" else "generator_unordered"
        parallel = joblib.Parallel(n_jobs=workers.jobs, return_as=form, batch_size=1, pre_dispatch=workers.jobs)
        yield from parallel(joblib.delayed(_made)(order, out, workers) for order in orders)


def _made(order: Order, out: Path, workers: Workers) -> tuple[Order, Result | str]:
    """Make a run, in this process or in a worker's."""
    if workers.threads is not None:
        torch.set_num_threads(workers.threads)
    alone = workers.jobs == 1
    try:
        return order, run(order, out, lambda _: None, None if alone else False)
    except FSVIError as error:
        return order, str(error)
    except Exception as error:
        if alone:
            raise
        return order, f"{type(error).__name__}: {first_line(error)}"


def measures(result: Result) -> Iterator[str]:
    """What the tables of the task show of a result."""
    for table in TASKS[result.task].section.tables:
        for column in table.columns:
            if column.task == result.task and (value := column.value(result)) is not None:
                # A table with one column per task, like those of UCI, is named after the measure.
                yield f"{table.title if len(table.tasks) > 1 else column.label}: {column.show(value)}"
