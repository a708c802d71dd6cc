"""`fsvi run`: train a method on a task, evaluate it, and write the result."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from shutil import rmtree
from typing import Any, cast

import torch

from fsvi.errors import FSVIError, InvalidInputError
from fsvi.methods import Method, load
from fsvi.methods.registry import METHODS, check_method, takes_context
from fsvi.serialization import check_writable, plain, remove_leftovers
from fsvi.training import History
from fsvi.training.distributed import num_processes
from fsvi.training.stacked import fit_together
from fsvi.validation import check_choice, check_seed, check_type
from paper import data
from paper.data import DataSplit, TextSplit
from paper.experiment import CPU, PROFILES, Compute, Experiment, Order
from paper.records import Result, model_path, read_result, result_path, write_result
from paper.runner.diagnoses import diagnose_trained, diagnosis_path, write_diagnosis
from paper.runner.locks import alone, unfinished
from paper.runner.provenance import commit, machine, versions
from paper.tasks.image_contexts import GENERATED, check_unseen
from paper.tasks.registry import TASKS
from paper.thinning import thin

_CHECKPOINT_INTERVAL = 60.0
_EPOCHS = 60
"""The most epochs whose history a result keeps."""
_NOTHING: dict[str, Any] = {"method": {}, "fit": {}}


def run(
    order: Order,
    out: Path,
    tell: Callable[[str], None] = print,
    progress: bool | None = None,
    compute: Compute = CPU,
) -> Result:
    """The result of a run: read if it exists, otherwise trained, evaluated and written.

    The trained model is kept under `models`. Checkpoints of an interrupted run are kept under `.unfinished`; the next
    call resumes from them. While one process makes a result, others with the same order are refused.

    Args:
        order: What to run.
        out: The folder of results.
        tell: A function that shows a line of text.
        progress: Whether to show a progress bar; None shows it on a terminal.
        compute: Where and how to train.
    """
    order = checked(order)
    path = result_path(check_writable(out), order)
    if not path.exists():
        with alone(out, path), _threads_of(order):
            if not path.exists():  # another process may have made it just before we got the lock
                return _make(order, out, path, tell, progress, compute)
    rmtree(unfinished(out, path), ignore_errors=True)  # left by a process that was killed at the very end
    tell(f"{path} exists already.")
    return _read(path, order)


def train_along(order: Order, out: Path, compute: Compute = CPU) -> None:
    """Train together with the process that makes the result of `order`; evaluate and write nothing.

    Under `torchrun`, the first process calls `run`, and all others call this.

    Args:
        order: The order.
        out: The folder of results.
        compute: Where and how to train.
    """
    order = checked(order)
    path = result_path(out, order)
    if not path.exists():
        experiment = TASKS[order.task].experiment(order).computed(compute)
        for start in experiment.starts:
            train_along(start, out, compute)
        settings = _training_settings(out, path, compute)
        experiment.train(experiment.build(order.seed), order.seed, progress=False, **settings)


def run_stacked(orders: Sequence[Order], out: Path, tell: Callable[[str], None] = print) -> list[Result]:
    """The results of orders that differ only in their seeds. Missing ones are trained stacked, in one pass for all.

    For small dense networks, whose steps are mostly call overhead. An interrupted training starts over.

    Args:
        orders: What to run.
        out: The folder of results.
        tell: A function that shows a line of text.
    """
    orders = [checked(order) for order in orders]
    paths = {order.seed: result_path(check_writable(out), order) for order in orders}
    for order in orders:
        if paths[order.seed].exists():
            _read(paths[order.seed], order)
    with ExitStack() as stack:
        for path in _absent(paths.values()):
            stack.enter_context(alone(out, path))
        absent = _absent(paths.values())  # again: other processes may have made some before we got the locks
        missing = [order for order in orders if paths[order.seed] in absent]
        stack.enter_context(_threads_of(orders[0]))
        for trained in _train_stacked(missing):
            _keep(out, paths[trained.order.seed], trained)
    tell(f"{len(missing)} seeds trained together, {len(orders) - len(missing)} existed already.")
    return [_read(paths[order.seed], order) for order in orders]


@contextmanager
def _threads_of(order: Order) -> Iterator[None]:
    """Train and evaluate with the number of threads that the task asks for."""
    before = torch.get_num_threads()
    torch.set_num_threads(TASKS[order.task].threads or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def can_stack(order: Order) -> bool:
    """Whether seeds of this order can be trained stacked."""
    return TASKS[order.task].can_stack and METHODS[order.member].can_stack


def checked(order: Order) -> Order:
    """The order with the name of its context filled in; an error says what is wrong with it."""
    task = TASKS[check_choice("task", order.task, TASKS)]
    check_choice("profile", order.profile, PROFILES)
    if order.profile not in task.profiles:
        known = " and ".join(each.name for each in TASKS.values() if order.profile in each.profiles)
        raise InvalidInputError(f"profile={order.profile!r} is not one of {order.task}'s, only of {known}.")
    check_seed(order.seed)
    check_method(order.method)
    if task.context is not None and takes_context(order.method):
        name = check_choice(
            "context",
            task.context if order.context is None else order.context,
            task.contexts or [*GENERATED, *data.names()],
        )
        return replace(order, context=name)
    if order.context is not None:
        reason = f"the context of {order.task!r} is fixed" if task.context is None else f"{order.method!r} takes none"
        raise InvalidInputError(f"context={order.context!r} cannot be chosen: {reason}.")
    return order


@dataclass(frozen=True)
class _Trained:
    """A trained method and its order; `commit` is that of the source before training, which may change meanwhile."""

    order: Order
    experiment: Experiment
    method: Method
    history: History
    commit: str | None
    seconds_before: float = 0.0
    """how long the runs that it starts from were trained"""


def _make(
    order: Order, out: Path, path: Path, tell: Callable[[str], None], progress: bool | None, compute: Compute
) -> Result:
    source, processes = commit(), num_processes()
    for file in (model_path(out, path), path):
        check_writable(file.parent)
    experiment = TASKS[order.task].experiment(order).computed(compute)
    _find_tests(experiment)
    _check_context(experiment)
    before = [(run(start, out, tell, progress, compute), _load_model(start, out)) for start in experiment.starts]
    if processes > 1:
        note = f"trained on {processes} processes, each with the batch size of one"
        experiment = replace(experiment, notes=[*experiment.notes, note])
    started = time.perf_counter()
    method = experiment.build(order.seed, [model for _, model in before])
    built = time.perf_counter() - started
    history = experiment.train(method, order.seed, progress=progress, **_training_settings(out, path, compute))
    if not experiment.trains:
        history.seconds = built
    earlier = sum(result.seconds["train"] + result.seconds.get("start", 0.0) for result, _ in before)
    result = _keep(out, path, _Trained(order, experiment, method, history, source, earlier))
    rmtree(unfinished(out, path), ignore_errors=True)
    return result


def _training_settings(out: Path, path: Path, compute: Compute) -> dict[str, Any]:
    folder = unfinished(out, path)
    return {"checkpoint": folder, "resume": True, "checkpoint_interval": _CHECKPOINT_INTERVAL, "device": compute.device}


def _find_tests(experiment: Experiment) -> None:
    """Download missing test data, or report what is wrong with them, before hours of training."""
    for name in experiment.tests:
        data.ensure(name, "test")


def _check_context(experiment: Experiment) -> None:
    """Refuse context points that are test images, before hours of training whose result would mean nothing."""
    context = [source for source in experiment.context if isinstance(source, DataSplit)]
    if context:
        check_unseen((data.load(name, "test") for name in experiment.tests), context)


def _load_model(order: Order, out: Path) -> Method:
    """The trained model of a run."""
    order = checked(order)
    path = model_path(out, result_path(out, order))
    if not path.exists():
        raise InvalidInputError(
            f"there is no model {path}, from which this run starts: models stay on the machine that made them, so "
            f"remove {result_path(out, order)}, and the run is made again."
        )
    fresh = TASKS[order.task].experiment(order).build(order.seed)
    method = load(path, fresh.net)
    check_type("the model", method, Method, "a method without calibration, as runs save it")
    return cast(Method, method)


def _train_stacked(orders: Sequence[Order]) -> list[_Trained]:
    """Train orders stacked. Random numbers depend on the set of seeds, so every result names all of them."""
    if not orders:
        return []
    source = commit()
    note = f"seeds trained together: {', '.join(str(order.seed) for order in orders)}"
    recipes = [TASKS[order.task].experiment(order) for order in orders]
    experiments = [replace(each, notes=[*each.notes, note]) for each in recipes]
    methods = [each.build(order.seed) for each, order in zip(experiments, orders, strict=True)]
    pairs = [each.data for each in experiments]
    histories = fit_together(methods, pairs, seed=orders[0].seed, **experiments[0].fit_settings)
    return [_Trained(*each, source) for each in zip(orders, experiments, methods, histories, strict=True)]


def _read(path: Path, order: Order) -> Result:
    """The result, if it was made with exactly the settings of `order`."""
    result = read_result(path)
    if result.settings.get("ordered", _NOTHING) != _ordered(order):
        made, wanted = (_listed(each) for each in (result.settings.get("ordered", _NOTHING), _ordered(order)))
        raise InvalidInputError(f"{path} was made with {made}, not with {wanted}: remove it, or choose another folder.")
    return result


def _ordered(order: Order) -> dict[str, Any]:
    """The settings of an order, as a result keeps them."""
    return {"method": recorded(order.settings), "fit": recorded(order.fit_settings)}


def _listed(ordered: Mapping[str, Mapping[str, Any]]) -> str:
    named = [f"{name}={value!r}" for settings in ordered.values() for name, value in settings.items()]
    return ", ".join(named) or "the recipe's settings"


def _absent(paths: Iterable[Path]) -> list[Path]:
    return [path for path in paths if not path.exists()]


def _keep(out: Path, path: Path, trained: _Trained) -> Result:
    """Evaluate, save and diagnose the model, and write the result last: if it exists, so does everything else."""
    model, diagnosis = model_path(out, path), diagnosis_path(path)
    for file in (model, diagnosis, path):
        remove_leftovers(file)
    result = _measured(trained)
    trained.method.save(model)
    try:
        if trained.experiment.is_diagnosed:
            write_diagnosis(diagnosis, diagnose_trained(trained.method, trained.experiment, result))
    except FSVIError as error:
        warnings.warn(f"{path} has no diagnosis: {error}", stacklevel=3)
    write_result(path, result)
    return result


def _measured(trained: _Trained) -> Result:
    order, experiment, method, history = trained.order, trained.experiment, trained.method, trained.history
    started = time.perf_counter()
    outcome = experiment.evaluate(method)
    seconds = time.perf_counter() - started
    sources = [*experiment.sources, *outcome.sources]
    return Result(
        task=order.task,
        method=order.method,
        context=order.context,
        profile=order.profile,
        seed=order.seed,
        settings={
            "method": method.config(),
            "fit": recorded(experiment.fit_settings),
            **({"ordered": _ordered(order)} if _ordered(order) != _NOTHING else {}),
        },
        metrics={name: value for name, value in outcome.metrics.items() if math.isfinite(value)},
        curves=outcome.curves,
        history=_thinned(history),
        data=[_described(source) for source in sources],
        notes=[*experiment.notes, *dict.fromkeys(source.note for source in sources if source.note)],
        seconds={
            "train": round(history.seconds, 1),
            "evaluate": round(seconds, 1),
            **({"start": round(trained.seconds_before, 1)} if experiment.starts else {}),
        },
        versions=versions(),
        machine=machine(),
        commit=trained.commit,
    )


def _thinned(history: History) -> dict[str, list[float]]:
    columns = {"loss": history.loss, **history.terms, "validation": history.validation}
    return {name: thin(values, _EPOCHS) for name, values in columns.items() if values}


def _described(source: DataSplit | TextSplit) -> dict[str, Any]:
    return {"name": source.name, "split": source.split, "size": len(source), "sha256": source.sha256}


def recorded(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as JSON values; values that JSON cannot hold as they are printed."""
    simple = (bool, int, float, str, list, dict, type(None))
    values = {name: plain(value) for name, value in settings.items()}
    return {name: value if isinstance(value, simple) else repr(value) for name, value in values.items()}
