"""The demo: train every method on every toy task, measure, draw, and write a report."""

from __future__ import annotations

import inspect
import json
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import fsvi
from fsvi.errors import FSVIError
from fsvi.experiments.report.demo_report import METRICS, render_report
from fsvi.experiments.report.toy_figures import FigureSet, draw_set
from fsvi.experiments.runner.provenance import machine, versions
from fsvi.experiments.tasks.toy import METHODS, RECIPES, Evaluation, Recipe
from fsvi.serialization import check_writable, write_bytes
from fsvi.validation import check_count, check_seed

_MOST_WORKERS = 4
_QUICK_EPOCHS = 20
_FIT_SETTINGS = ("epochs", "batch_size", "lr", "optimizer", "schedule")


@dataclass(frozen=True)
class Job:
    """One method to train on one task; `quick` only shows that everything works."""

    task: str
    method: str
    seed: int
    quick: bool


@dataclass(frozen=True)
class Outcome:
    """What came of a job."""

    job: Job
    evaluation: Evaluation
    settings: dict[str, Any]
    seconds: float


def run_demo(
    out: Path,
    seed: int = 0,
    quick: bool = False,
    workers: int | None = None,
    tell: Callable[[str], None] = print,
) -> Path:
    """Train every method on every task, write report, figures and metrics into `out`, and return the report's path.

    Models are trained in `workers` processes with one thread each, so the numbers do not depend on how many there are.
    `tell` gets a line whenever something is done. A script that calls this needs the guard
    `if __name__ == "__main__":`, or `workers=1`, as always when Python starts processes.
    """
    started = time.perf_counter()
    folder = check_writable(out)
    jobs = [Job(task, method, check_seed(seed), quick) for task in RECIPES for method in METHODS]
    workers = min(_MOST_WORKERS, os.cpu_count() or 1) if workers is None else check_count("workers", workers)
    tell(f"Training {', '.join(METHODS)} on {', '.join(RECIPES)}: a few minutes on 2 cores.")
    outcomes = []
    for outcome in _outcomes(jobs, min(workers, len(jobs))):
        tell(_line(outcome))
        outcomes.append(outcome)
    outcomes.sort(key=lambda outcome: jobs.index(outcome.job))
    summary = _summary(outcomes, seed, quick, time.perf_counter() - started)
    return _write(folder, summary, _draw(outcomes), tell)


def run_job(job: Job) -> Outcome:
    """Train and evaluate one method on one task."""
    started = time.perf_counter()
    recipe = RECIPES[job.task]()
    recipe = recipe.shortened(_QUICK_EPOCHS) if job.quick else recipe
    method = recipe.train(METHODS[job.method], job.seed)
    settings = {"method": method.config(), "fit": _fit_settings(recipe)}
    evaluation = recipe.evaluate(method)
    return Outcome(job, evaluation, settings, time.perf_counter() - started)


# Training side by side ----------------------------------------------------------------------------------------------


def _outcomes(jobs: Sequence[Job], workers: int) -> Iterator[Outcome]:
    """What comes of the jobs, in the order in which they end."""
    if workers == 1:
        with _one_thread():
            yield from map(run_job, jobs)
        return
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), _start_worker) as pool:
        try:
            for future in as_completed([pool.submit(run_job, job) for job in jobs]):
                yield future.result()
        except BrokenProcessPool as error:
            raise FSVIError("a training process was killed, perhaps for want of memory: use --workers 1.") from error
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for child in multiprocessing.active_children():
                child.terminate()
            raise


def _start_worker() -> None:
    """One thread, since small networks are fastest with one; and silence when Ctrl-C ends the process."""
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextmanager
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


# What is written ----------------------------------------------------------------------------------------------------


def _fit_settings(recipe: Recipe) -> dict[str, Any]:
    defaults = {name: p.default for name, p in inspect.signature(fsvi.fit).parameters.items() if name in _FIT_SETTINGS}
    return {**defaults, **recipe.fit_settings}


def _summary(outcomes: Sequence[Outcome], seed: int, quick: bool, seconds: float) -> dict[str, Any]:
    """Everything but the pictures, as plain values."""
    tasks: dict[str, dict[str, Any]] = {}
    for outcome in outcomes:
        entry = {
            "metrics": outcome.evaluation.metrics,
            "seconds": round(outcome.seconds, 2),
            "settings": outcome.settings,
        }
        tasks.setdefault(outcome.job.task, {})[outcome.job.method] = entry
    return {
        "seed": seed,
        "quick": quick,
        "seconds": round(seconds, 2),
        "versions": versions(),
        "machine": machine(),
        "tasks": tasks,
    }


def _draw(outcomes: Sequence[Outcome]) -> dict[str, FigureSet]:
    figures = {}
    for task in dict.fromkeys(outcome.job.task for outcome in outcomes):
        pictures = {o.job.method: o.evaluation.picture for o in outcomes if o.job.task == task}
        figures[task] = draw_set(pictures)
    return figures


def _write(folder: Path, summary: dict[str, Any], figures: dict[str, FigureSet], tell: Callable[[str], None]) -> Path:
    for task, figure in figures.items():
        write_bytes(folder / f"{task}.png", figure.light)
    write_bytes(folder / "metrics.json", (json.dumps(summary, indent=2) + "\n").encode())
    report = folder / "report.html"
    write_bytes(report, render_report(summary, figures).encode())
    tell(f"Done in {summary['seconds']:.0f} s. The report: {report}")
    return report


def _line(outcome: Outcome) -> str:
    shown = (f"{METRICS[name].label} {METRICS[name].show(value)}" for name, value in outcome.evaluation.metrics.items())
    task, method = outcome.job.task.ljust(max(map(len, RECIPES))), outcome.job.method.ljust(max(map(len, METHODS)))
    return f"  {task}  {method} {outcome.seconds:4.0f} s   {', '.join(list(shown)[:3])}"
