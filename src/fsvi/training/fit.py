"""Train any method on any data."""

from __future__ import annotations

import warnings
from os import PathLike
from typing import Any

import torch
from torch import Tensor

from fsvi.cost.warning import warn_of_memory
from fsvi.errors import InvalidInputError
from fsvi.methods.base import Method
from fsvi.training.batches import Batches, TensorBatches, Unpack, as_batches
from fsvi.training.checkpoints import Checkpoints
from fsvi.training.history import History
from fsvi.training.loop import Run
from fsvi.training.optimizers import MakeOptimizer, Schedule, check_optimizer, make_optimizer, make_schedule
from fsvi.validation import check_count, check_positive, check_seed, check_type, first_line

DEFAULT_EPOCHS = 1000
MOST_STEPS = 20_000
"""Without `epochs`, tensors are trained on for `DEFAULT_EPOCHS`, but for about `MOST_STEPS` steps at most."""


def fit(
    method: Method,
    data: Any,
    *,
    epochs: int | None = None,
    batch_size: int = 128,
    lr: float = 1e-2,
    optimizer: str | MakeOptimizer = "adam",
    schedule: str | Schedule | None = "cosine",
    seed: int = 0,
    device: str | torch.device | None = None,
    progress: bool | None = None,
    num_data: int | None = None,
    unpack: Unpack | None = None,
    validation: Any = None,
    patience: int | None = None,
    checkpoint: str | PathLike[str] | None = None,
    resume: bool = False,
    checkpoint_interval: float = 10.0,
) -> History:
    """Train a method.

    The same seed gives the same bits on a CPU. Torch's global random state is the same before and after. A DataLoader
    that has its own generator keeps its own order.

    If the network has BatchNorm layers, a last batch of one example is merged into the batch before it.

    Args:
        method: The method to train, such as `fsvi.FSVI`.
        data: A pair (x, y) of tensors or arrays, a map-style Dataset, or a DataLoader of (inputs, targets) pairs. x may
            be a dictionary or tuple of tensors, and batches may be dictionaries that hold the targets too. A
            triple (x, y, weights) says how many times each example counts: a weight of 2 is like having it twice.
        epochs: The number of passes over the data. None is for tensors only: 1,000 passes, or as many as fit into
            20,000 steps if that is less, but at least one. A Dataset or a DataLoader needs a number.
        batch_size: The number of examples per step; a DataLoader makes its own batches.
        lr: The learning rate at the start.
        optimizer: "adam", "sgd" (momentum 0.9), a `torch.optim` class, or a function from parameter groups, each with
            its `lr`, to an optimizer. Methods with their own update rule ignore it.
        schedule: "cosine" (down to 5% of `lr`), None (constant), or a function from the fraction of training done,
            0..1, to a factor on the learning rate.
        seed: The seed of all random numbers: the order of the data, the draws of weights and context points.
        device: Where to train; the method is moved there. None leaves it where it is.
        progress: Whether to show a progress bar. None shows it on a terminal.
        num_data: N, the number of examples that the KL is weighed by. None counts the different examples that the data
            can deliver, also through a sampler that leaves some out. Pass a number if this cannot be known (for
            example, when a sampler draws a new part of the data each epoch) or if `data` is a part of all data.
        unpack: Where the targets are in batches that are dictionaries: a key, or a function from a batch to (inputs,
            targets). None looks for labels, label, y, target and targets.
        validation: Held-out data in any form that `data` can have. The mean log-likelihood is recorded every epoch.
        patience: Stop after this many epochs without a better validation log-likelihood, and restore the best
            parameters. It needs `validation`.
        checkpoint: A folder to save the training state to at ends of epochs. After an interruption, at most
            `checkpoint_interval` seconds plus the running epoch are lost.
        resume: Whether to continue from the checkpoint in that folder, if there is one. The result has the same bits as
            a run without interruption.
        checkpoint_interval: The least number of seconds between two checkpoints.

    Returns:
        The loss and its terms per epoch, and the validation results.
    """
    check_type("method", method, Method, "a method such as fsvi.FSVI(net, likelihood=..., context=...)")
    if epochs is not None:
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
        batches = as_batches(method, data, batch_size, num_data, unpack)
        epochs = _default_epochs(batches) if epochs is None else epochs
        held_out = None if validation is None else _hold_out(method, validation, batch_size, unpack)
        examples = _begin(method, batches)
        warn_of_memory(method, batches.batch_size, examples[0])
        made = method.own_optimizer(lr) or make_optimizer(make, method.parameter_groups(lr))
        run = Run(method, batches, held_out, made, factor, epochs, patience, checkpoints)
        run.resume(dict(seed=seed, batch_size=batch_size, lr=lr))
        if run.history.epochs == 0:
            method.fit_prior(*examples)
        return run.train(progress)


def _default_epochs(batches: Batches) -> int:
    if not isinstance(batches, TensorBatches):
        raise InvalidInputError(
            f"epochs is needed with a Dataset or a DataLoader: pass a number, such as epochs=30 for "
            f"{30 * batches.num_batches:,} steps."
        )
    return max(1, min(DEFAULT_EPOCHS, MOST_STEPS // batches.num_batches))


def _check_companions(validation: Any, patience: int | None, checkpoint: Any, resume: bool) -> None:
    """Refuse arguments that mean nothing without another one."""
    if patience is not None and validation is None:
        raise InvalidInputError(f"patience={patience} needs validation data: pass validation=(x, y).")
    if patience is not None:
        check_count("patience", patience)
    if resume and checkpoint is None:
        raise InvalidInputError("resume=True needs a folder to continue from: pass checkpoint=.")


def _move(method: Method, device: str | torch.device) -> None:
    try:
        method.to(device)
    except (RuntimeError, AssertionError, TypeError) as error:
        raise InvalidInputError(f"device={device!r} cannot be used: {first_line(error)}.") from error


def _hold_out(method: Method, validation: Any, batch_size: int, unpack: Unpack | None) -> Batches:
    """The validation data, checked before training without changing any random state."""
    try:
        with torch.random.fork_rng(devices=[]):
            batches = as_batches(method, validation, batch_size, 1, unpack)  # its size weighs nothing
            batches.examples()
    except InvalidInputError as error:
        raise InvalidInputError(f"validation: {error}") from error
    return batches


def _begin(method: Method, batches: Batches) -> tuple[Tensor, Tensor]:
    """Show the method examples of the data, so that problems are found before the first step."""
    x, y = batches.examples()
    if not y.is_floating_point() and bool((y == y.flatten()[0]).all()):
        label = int(y.flatten()[0])
        message = f"all {y.numel()} labels checked are {label}: nothing can be learned about the other classes."
        warnings.warn(message, stacklevel=3)
    method.begin(x, _num_targets(method, batches.num_data, y))
    return x, y


def _num_targets(method: Method, num_data: int, y: Tensor) -> int:
    """N for the weight of the KL: examples, or all their positions if each has a target."""
    return round(num_data * len(method.target_rows(y)) / len(y))
