"""Train any method on any data."""

from __future__ import annotations

import math
import warnings
from os import PathLike
from typing import Any

import torch
from torch import Tensor

from fsvi.cost.warning import warn_of_memory
from fsvi.errors import InvalidInputError
from fsvi.methods.base import Method
from fsvi.training.batches import Batches, as_batches
from fsvi.training.checkpoints import Checkpoints
from fsvi.training.history import History
from fsvi.training.loop import Run
from fsvi.training.optimizers import MakeOptimizer, Schedule, check_optimizer, make_optimizer, make_schedule
from fsvi.validation import check_count, check_positive, check_seed, check_type, first_line


def fit(
    method: Method,
    data: Any,
    *,
    epochs: int = 1000,
    batch_size: int = 128,
    lr: float = 1e-2,
    optimizer: str | MakeOptimizer = "adam",
    schedule: str | Schedule | None = "cosine",
    seed: int = 0,
    device: str | torch.device | None = None,
    progress: bool | None = None,
    validation: Any = None,
    patience: int | None = None,
    checkpoint: str | PathLike[str] | None = None,
    resume: bool = False,
    checkpoint_interval: float = 10.0,
) -> History:
    """Train `method` on `data`, a pair (x, y), a Dataset or a DataLoader, and return what happened.

    A triple (x, y, weights) says how many times each example counts: a weight of 2 is the same as having it twice.

    `optimizer` is "adam", "sgd" (momentum 0.9), any `torch.optim` class, or a function from parameter groups, which
    carry `lr`, to an optimiser; `schedule` is "cosine", None, or a function from the fraction of training done to a
    factor on the learning rate. The same seed gives the same bits on a CPU, and torch's global random state is left as
    it was found; a DataLoader with a generator of its own keeps to that.

    With `validation` data, in any of the same forms, the mean log-likelihood is recorded every epoch; `patience`
    epochs without a better one end training and bring the best parameters back.

    With `checkpoint`, a folder, the state is kept at ends of epochs, `checkpoint_interval` seconds apart or more: so
    much, and the epoch that was running, is lost to Ctrl-C or a crash. `resume=True` goes on from there, if anything is
    there, to the same bits as if nothing had happened.
    """
    check_type("method", method, Method, "a method such as fsvi.FSVI(net, likelihood=..., context=...)")
    check_count("epochs", epochs)
    check_count("batch_size", batch_size)
    check_seed(seed)
    check_positive("lr", lr)
    _check_companions(validation, patience, checkpoint, resume)
    make, factor = check_optimizer(optimizer), make_schedule(schedule)
    checkpoints = None if checkpoint is None else Checkpoints(checkpoint, checkpoint_interval, resume)
    if device is not None:
        _move(method, device)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        batches = as_batches(method, data, batch_size)
        held_out = None if validation is None else _hold_out(method, validation, batch_size)
        examples = _begin(method, batches)
        warn_of_memory(method, math.ceil(batches.num_data / batches.num_batches), examples[0])
        made = method.own_optimizer(lr) or make_optimizer(make, method.parameter_groups(lr))
        run = Run(method, batches, held_out, made, factor, epochs, patience, checkpoints)
        run.resume(dict(seed=seed, batch_size=batch_size, lr=lr))
        if run.history.epochs == 0:
            method.fit_prior(*examples)
        return run.train(progress)


def _check_companions(validation: Any, patience: int | None, checkpoint: Any, resume: bool) -> None:
    """Arguments that mean nothing without another."""
    if patience is not None and validation is None:
        raise InvalidInputError(f"patience={patience} needs validation data: pass validation=(x, y).")
    if patience is not None:
        check_count("patience", patience)
    if resume and checkpoint is None:
        raise InvalidInputError("resume=True needs a folder to go on from: pass checkpoint=.")


def _move(method: Method, device: str | torch.device) -> None:
    try:
        method.to(device)
    except (RuntimeError, AssertionError, TypeError) as error:
        raise InvalidInputError(f"device={device!r} cannot be used: {first_line(error)}.") from error


def _hold_out(method: Method, validation: Any, batch_size: int) -> Batches:
    """The validation data, looked at before training; drawing from it changes no random state."""
    try:
        with torch.random.fork_rng(devices=[]):
            batches = as_batches(method, validation, batch_size)
            batches.examples()
    except InvalidInputError as error:
        raise InvalidInputError(f"validation: {error}") from error
    return batches


def _begin(method: Method, batches: Batches) -> tuple[Tensor, Tensor]:
    """Let the method look at examples of the data, so that what is wrong with it is found before the first step."""
    x, y = batches.examples()
    if not y.is_floating_point() and bool((y == y[0]).all()):
        message = f"all {len(y)} labels looked at are {int(y[0])}: nothing can be learned of the other classes."
        warnings.warn(message, stacklevel=3)
    method.begin(x, batches.total_weight)
    return x, y
