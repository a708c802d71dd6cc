"""Train any method on any data."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from os import PathLike
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from fsvi.errors import InvalidInputError
from fsvi.methods.base import Method
from fsvi.networks.devices import find_device, forked_random, seed_random
from fsvi.training.batches import Batches, TensorBatches, Unpack, as_batches
from fsvi.training.callbacks import Callback, TrainingState, check_callbacks
from fsvi.training.checkpoints import Checkpoints
from fsvi.training.distributed import Ranks, joined, was_restarted
from fsvi.training.history import History
from fsvi.training.loop import Run
from fsvi.training.optimizers import MakeOptimizer, Schedule, check_optimizer, make_optimizer
from fsvi.training.rates import MakeScheduler, check_schedule, every_step
from fsvi.training.sharding import ShardedTensors, check_validation, sharded, without_own_shards
from fsvi.training.step import PRECISIONS, Stepper
from fsvi.validation import check_choice, check_count, check_positive, check_seed, check_type

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
    schedule: str | Schedule | MakeScheduler | every_step | None = "cosine",
    clip_norm: float | None = None,
    accumulate: int = 1,
    precision: str | None = None,
    compile: bool | str = False,
    callbacks: Sequence[Callback | Callable[[TrainingState], object]] | None = None,
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
    distributed: bool | None = None,
) -> History:
    """Train a method.

    The same seed gives the same bits on a CPU. Torch's global random state is the same before and after. A DataLoader
    that has its own generator keeps its own order.

    If the network has BatchNorm layers, a last batch of one example is merged into the batch before it.

    Args:
        method: The method to train, such as `fsvi.FSVI`.
        data: A pair (x, y) of tensors or arrays, a Dataset, or a DataLoader of (inputs, targets) pairs. x may
            be a dictionary or tuple of tensors, and batches may be dictionaries that hold the targets too. A
            triple (x, y, weights) says how many times each example counts: a weight of 2 is like having it twice.
        epochs: The number of passes over the data. None is for tensors only: 1,000 passes, or as many as fit into
            20,000 steps if that is less, but at least one. A Dataset or a DataLoader needs a number.
        batch_size: The number of examples per step; a DataLoader makes its own batches.
        lr: The learning rate at the start.
        optimizer: "adam", "adamw" (weight decay 0.01 on point estimates only; `fsvi.adamw` takes another number),
            "sgd" (momentum 0.9; `fsvi.sgd` takes other settings), "nadam", "radam", "rmsprop", "adagrad", a
            `torch.optim` class, or a function from parameter groups, each with its `lr`, to an optimizer. Methods with
            their own update rule ignore it.
        schedule: "cosine" (down to 5% of `lr`), None (constant), a function from the fraction of training done, 0..1,
            to a factor on the learning rate, or a function from the optimizer to a scheduler of
            `torch.optim.lr_scheduler`, which makes its step after each epoch. Wrap that function in `fsvi.every_step`
            for a scheduler that follows the optimizer's steps. `ReduceLROnPlateau` watches the validation data, or the
            training loss without any.
        clip_norm: The largest norm of the gradient; larger gradients are scaled down to it. None does not clip.
        accumulate: The number of minibatches per optimizer step. Four minibatches of 32 have the gradient of one of
            128 in less memory, except that each one has its own draws, and BatchNorm sees 32 examples at once.
        precision: "bf16" or "fp16" trains in mixed precision: torch computes the network in that type where it is safe
            (autocast). Parameters, divergences and predictions keep the network's type. None uses it everywhere.
        compile: Whether torch.compile compiles the network's passes in training. A compilation takes 20 seconds or more
            for each shape of inputs, which `History.compile_seconds` reports. On a CPU, small networks were slower
            afterwards; measure a few epochs of yours first. It needs a C++ compiler on a CPU. The name of a backend of
            torch.compile means that backend. Results equal those without compilation up to rounding, except that
            dropout masks differ for the same seed.
        callbacks: Callbacks (`fsvi.Callback`), loggers (`fsvi.loggers`) or functions of the training's state, which are
            called at the end of each epoch. They can stop training by `state.stop()`.
        seed: The seed of all random numbers: the order of the data, the draws of weights and context points.
        device: Where to train; the method is moved there and stays there. "auto" is the first accelerator that works,
            or the CPU. None leaves the method where it is.
        progress: Whether to show a progress bar. None shows it on a terminal.
        num_data: N, the number of examples that the KL is weighed by. None counts the different examples that the data
            can deliver, also through a sampler that leaves some out. Pass a number if this cannot be known (for
            example, when a sampler draws a new part of the data each epoch) or if `data` is a part of all data. An
            IterableDataset always needs it; an epoch then reads the stream to its end, or about N examples of a stream
            that does not say its length. Several processes read the same stream and share its batches, unless its
            attribute `shards_itself` is True: then each trains on what its own stream gives.
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
        distributed: Whether several processes train together, each on its share of the data. None does so under
            `torchrun`, or if `torch.distributed` is initialized for more than one process. `batch_size` is then that
            of each process, and a step on 2 × 64 examples is one on 128: choose `lr` for the 128. All processes end
            with the same parameters; the first one writes checkpoints and progress. A run that `torchrun` restarts
            continues from its checkpoint.

    Returns:
        The loss and its terms per epoch, and the validation results.
    """
    check_type("method", method, Method, "a method such as fsvi.FSVI(net, likelihood=..., context=...)")
    with joined(distributed) as ranks:
        if epochs is not None:
            check_count("epochs", epochs)
        check_count("batch_size", batch_size)
        check_seed(seed)
        check_positive("lr", lr)
        _check_companions(validation, patience, checkpoint, resume)
        make, make_rates, called = check_optimizer(optimizer), check_schedule(schedule), check_callbacks(callbacks)
        check_count("accumulate", accumulate)
        if precision is not None:
            check_choice("precision", precision, PRECISIONS)
        checkpoints = None
        if checkpoint is not None:
            checkpoints = Checkpoints(checkpoint, checkpoint_interval, resume or was_restarted(), ranks.is_main)
        if device is not None:
            method.to(ranks.own_device(find_device(device)))
        with forked_random(method.device):
            seed_random(seed, method.device)
            whole = as_batches(method, without_own_shards(data, ranks), batch_size, num_data, unpack)
            batches = sharded(method, whole, ranks, batch_size, seed)
            epochs = _default_epochs(batches) if epochs is None else epochs
            held_out = None if validation is None else _hold_out(method, validation, batch_size, unpack, ranks)
            examples = _begin(method, batches)
            own = method.own_optimizer(lr)
            _check_own(method, own, clip_norm, precision)
            made = own or make_optimizer(make, method.parameter_groups(lr), method.point_parameters())
            average = None if ranks.size == 1 else partial(ranks.average, method, made)
            stepper = Stepper(
                method, made, clip_norm=clip_norm, precision=precision, compile=compile, after_backward=average
            )
            rates = make_rates(made)
            run = Run(
                method, batches, held_out, stepper, rates, epochs, patience, checkpoints, ranks, accumulate, called
            )
            run.check(dict(seed=seed, batch_size=batch_size, lr=lr), examples)
            run.resume(is_asked=resume)
            if run.history.epochs == 0:
                method.fit_prior(*examples)
                ranks.share(method)
                ranks.seed(seed, method.device)
            return run.train(progress)


def _default_epochs(batches: Batches) -> int:
    if not isinstance(batches, (TensorBatches, ShardedTensors)):
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


def _check_own(method: Method, own: Optimizer | None, clip_norm: float | None, precision: str | None) -> None:
    """Refuse options that an update rule of the method's own cannot follow."""
    given = {"clip_norm": clip_norm, "precision": "fp16" if precision == "fp16" else None}
    for name, value in given.items():
        if own is not None and value is not None:
            raise InvalidInputError(
                f"{name}={value!r} cannot be used with {type(method).__name__}: its own update rule reads more from "
                f"the gradients than their direction, so leave {name} out."
            )


def _hold_out(method: Method, validation: Any, batch_size: int, unpack: Unpack | None, ranks: Ranks) -> Batches:
    """The validation data, checked before training without changing any random state."""
    try:
        with forked_random(method.device):
            batches = as_batches(method, validation, batch_size, 1, unpack)  # its size weighs nothing
            check_validation(batches, ranks)
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
    """N for the weight of the KL: examples, or positions, that have a target; the share of them is that in `y`."""
    return max(1, round(num_data * int(method.likelihood.num_observed(method.target_rows(y))) / len(y)))
