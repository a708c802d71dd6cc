"""A run: train a method on a task, evaluate it, and write one result file.

The result is written last: if it exists, so does everything else. An existing result is reused. Checkpoints of an
interrupted run are kept in `.unfinished`, and the next call resumes from them. While one process makes a result,
others wait for it.
"""

from __future__ import annotations

import json
import math
import os
import platform
import subprocess
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from shutil import rmtree
from typing import Any

import torch
from filelock import FileLock, Timeout
from torch import Tensor

import fsvi
from fsvi.diagnosis import diagnose
from fsvi.errors import FSVIError, InvalidInputError
from fsvi.methods import Method, load
from fsvi.methods.registry import setting_names
from fsvi.serialization import check_writable, plain
from fsvi.training import History
from fsvi.validation import check_choice, check_seed
from paper import data
from paper.experiment import PROFILES, Experiment, Order, Outcome, thin
from paper.methods import library_name
from paper.records import DIAGNOSIS, Result, model_path, read_result, result_path, write_document, write_result
from paper.tasks.images import GENERATED
from paper.tasks.registry import TASKS

_EPOCHS = 60
"""The most epochs whose history a result keeps."""
_EXAMPLES = 500
"""Training examples that a diagnosis looks at."""


def run(order: Order, out: Path, tell: Callable[[str], None] = print, progress: bool | None = None) -> Result:
    """The result of a run: read if it exists, otherwise trained, evaluated and written below `out`.

    `tell` shows a line of text; a progress bar is shown on a terminal if `progress` is None.
    """
    order = checked(order)
    if order.settings or order.fit_settings:
        raise InvalidInputError("a result has the settings of its recipe: change the recipe to run with others.")
    path = result_path(check_writable(out), order)
    if not path.exists():
        if state(order, out) == "running":
            tell(f"Waiting for another process that makes {path}.")
        with _lock(out, path):  # the system releases it when the process ends, even if it is killed
            if not path.exists():  # another process may have made it just before we got the lock
                return _make(order, out, path, tell, progress)
    rmtree(_unfinished(out, path), ignore_errors=True)  # left by a process that was killed at the very end
    tell(f"{path} exists already.")
    return read_result(path)


def checked(order: Order) -> Order:
    """The order with the name of its context filled in; an error says what is wrong with it."""
    task = TASKS[check_choice("task", order.task, TASKS)]
    check_choice("profile", order.profile, PROFILES)
    if order.profile not in task.profiles:
        known = " and ".join(each.name for each in TASKS.values() if order.profile in each.profiles)
        raise InvalidInputError(f"profile={order.profile!r} is not one of {order.task}'s, only of {known}.")
    check_seed(order.seed)
    if task.methods:
        fixed = task.methods[check_choice("method", order.method, task.methods)]
        if order.context in (None, fixed):
            return replace(order, context=fixed)
    elif "context" in setting_names(library_name(order.method)) and task.context is not None:
        contexts = task.contexts or [*GENERATED, *data.names()]
        return replace(order, context=check_choice("context", order.context or task.context, contexts))
    if order.context is not None:
        reason = f"the context of {order.task!r} is fixed" if task.context is None else f"{order.method!r} takes none"
        raise InvalidInputError(f"context={order.context!r} cannot be chosen: {reason}.")
    return order


def state(order: Order, out: Path) -> str:
    """How far a run is: "done", "running", "interrupted" (the next command resumes it) or "missing"."""
    path = result_path(out, order)
    if path.exists():
        return "done"
    lock = _lock(out, path)
    if Path(lock.lock_file).exists():
        try:
            with lock.acquire(timeout=0):
                pass
        except Timeout:
            return "running"
    return "interrupted" if any(_unfinished(out, path).glob("*")) else "missing"


def _make(order: Order, out: Path, path: Path, tell: Callable[[str], None], progress: bool | None) -> Result:
    commit, model = source_commit(), model_path(out, path)
    for file in (model, path):
        check_writable(file.parent)
    experiment = TASKS[order.task].experiment(order)
    for name in experiment.tests:  # noticed before hours of training
        data.ensure(name, "test")
    before = [(run(start, out, tell, progress), _load_model(start, out)) for start in experiment.starts]
    started = time.perf_counter()
    with _threads_of(order):
        method = experiment.build(order.seed, [each for _, each in before])
        kept = {"checkpoint": _unfinished(out, path), "resume": True}
        history = experiment.train(method, order.seed, progress=progress, device=order.device, **kept)
        if not experiment.trains:
            history.seconds = time.perf_counter() - started
        started = time.perf_counter()
        outcome = experiment.evaluate(method)
        seconds = {"train": round(history.seconds, 1), "evaluate": round(time.perf_counter() - started, 1)}
        if before:
            earlier = sum(each.seconds["train"] + each.seconds.get("start", 0.0) for each, _ in before)
            seconds["start"] = round(earlier, 1)
        result = _result(order, experiment, method, history, outcome, seconds, commit)
        method.save(model)
        _diagnose(path, method, experiment)
    write_result(path, result)
    rmtree(_unfinished(out, path), ignore_errors=True)
    return result


def _load_model(order: Order, out: Path) -> Method:
    """The trained model of a run that another one starts from."""
    order = checked(order)
    path = model_path(out, result_path(out, order))
    if not path.exists():
        raise InvalidInputError(
            f"there is no model {path}, from which this run starts: models stay on the machine that made them, so "
            f"remove {result_path(out, order)}, and the run is made again."
        )
    method = load(path, TASKS[order.task].experiment(order).build(order.seed).net)
    assert isinstance(method, Method)  # runs save it without calibration
    return method


def _diagnose(path: Path, method: Method, experiment: Experiment) -> None:
    """Write a diagnosis on examples of the training data next to the result; texts have no distances to measure."""
    x, y = (values[:_EXAMPLES] for values in experiment.data)
    if not (experiment.is_diagnosed and isinstance(x, Tensor)):
        return
    try:
        found = diagnose(method, (x, y))
        write_document(path.with_suffix(DIAGNOSIS), found.to_dict())
    except FSVIError as error:
        warnings.warn(f"{path} has no diagnosis: {error}", stacklevel=2)


def _unfinished(out: Path, path: Path) -> Path:
    """The folder for checkpoints of an unfinished result."""
    return out / ".unfinished" / path.relative_to(out).with_suffix("")


def _lock(out: Path, path: Path) -> FileLock:
    folder = _unfinished(out, path)
    return FileLock(folder.parent / f"{folder.name}.lock")


@contextmanager
def _threads_of(order: Order) -> Iterator[None]:
    """Train and evaluate with the number of threads that the task asks for."""
    before = torch.get_num_threads()
    torch.set_num_threads(TASKS[order.task].threads or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _result(
    order: Order,
    experiment: Experiment,
    method: Method,
    history: History,
    outcome: Outcome,
    seconds: Mapping[str, float],
    commit: str | None,
) -> Result:
    sources = [*experiment.sources, *outcome.sources]
    columns = {"loss": history.loss, **history.terms, "validation": history.validation}
    # Through JSON, so that a result in memory equals the one in its file: tuples become lists.
    settings = json.loads(json.dumps({"method": method.config(), "fit": recorded(experiment.fit_settings)}))
    return Result(
        task=order.task,
        method=order.method,
        context=order.context,
        profile=order.profile,
        seed=order.seed,
        settings=settings,
        metrics={name: value for name, value in outcome.metrics.items() if math.isfinite(value)},
        curves=outcome.curves,
        history={name: thin(values, _EPOCHS) for name, values in columns.items() if values},
        data=[{"name": each.name, "split": each.split, "size": len(each), "sha256": each.sha256} for each in sources],
        notes=[*experiment.notes, *dict.fromkeys(source.note for source in sources if source.note)],
        seconds=seconds,
        versions={
            "fsvi": fsvi.__version__,
            "python": platform.python_version(),
            **{name: version(name) for name in ("torch", "numpy", "scikit-learn", "matplotlib")},
        },
        machine={"system": platform.system(), "processor": platform.machine(), "cores": os.cpu_count()},
        commit=commit,
    )


def recorded(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as JSON values; values that JSON cannot hold as they are printed."""
    simple = (bool, int, float, str, list, dict, type(None))
    values = {name: plain(value) for name, value in settings.items()}
    return {name: value if isinstance(value, simple) else repr(value) for name, value in values.items()}


def source_commit() -> str | None:
    """The commit of the source, with `+changes` if its files differ from it; None without git."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(Path(__file__).parents[1]), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        changes = git("status", "--porcelain", "--", "src", "paper/*.py")
        return git("rev-parse", "HEAD") + ("+changes" if changes else "")
    except (OSError, subprocess.CalledProcessError):
        return None
