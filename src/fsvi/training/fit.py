"""Train any method on any data."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from os import PathLike
from typing import Any

import torch
from torch.optim import Optimizer

from fsvi import ranks
from fsvi.errors import InvalidInputError
from fsvi.methods.base import Method
from fsvi.networks.devices import find_device, forked_random, seed_random
from fsvi.training.batches import Batches, Minibatch, TensorBatches, Unpack, as_batches
from fsvi.training.callbacks import Callback, TrainingState, check_callbacks
from fsvi.training.checkpoints import opened
from fsvi.training.features import use_features
from fsvi.training.history import History
from fsvi.training.loop import PRECISIONS, Run, Stepper
from fsvi.training.optimizers import MakeOptimizer, check_optimizer, make_optimizer
from fsvi.training.rates import MakeScheduler, Rates, Schedule, check_schedule, every_step
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
) -> History:
    """Train a method.

    The same seed gives the same bits on a CPU. The order of tensors has a random generator of its own, and so has a
    DataLoader that was given one. Everything else, such as dropout inside the network, draws from torch's global
    generator, whose state is the same before and after. Two threads that train at the same time share it, so their
    results are valid but not repeatable: train them in two processes.

    If the network has BatchNorm layers, a last batch of one example is merged into the batch before it. A batch in
    which no target is present is left out.

    If everything before the last layer is frozen (`FSVI.from_trained(net, ..., freeze=True)`), `MAP`, `MFVI`, `VBLL`
    and `FSVI` train on features that are computed once, as long as data and context points are tensors in memory.

    Under `torchrun`, or if `torch.distributed` is initialized, all processes train together, each on its share of the
    data. `batch_size` is then that of each process, and a step on 2 × 64 examples is one on 128: choose `lr` for the
    128. All processes end with the same parameters; the first one writes checkpoints and progress. A run that
    `torchrun` restarts continues from its checkpoint.

    Args:
        method: The method to train, such as `fsvi.FSVI`.
        data: A pair (x, y) of tensors or arrays, a Dataset, or a DataLoader of (inputs, targets) pairs. x may
            be a dictionary or tuple of tensors, and batches may be dictionaries that hold the targets too. A
            triple (x, y, weights) says how many times each example counts: a weight of 2 is like having it twice.
        epochs: The number of passes over the data. None is for tensors only: 1,000 passes, or as many as fit into
            20,000 steps if that is less, but at least one. A Dataset or a DataLoader needs a number.
        batch_size: The number of examples per step; a DataLoader makes its own batches.
        lr: The learning rate at the start.
        optimizer: "adam", "adamw" (weight decay 0.01 on point estimates only), "sgd" (momentum 0.9; `fsvi.training` has
            functions `adamw` and `sgd` that take other numbers), "nadam", "radam", "rmsprop", "adagrad", a
            `torch.optim` class, or a function from parameter groups, each with its `lr`, to an optimizer. Methods with
            their own update rule ignore it.
        schedule: "cosine" (down to 5% of `lr`), None (constant), a function from the fraction of training done, 0..1,
            to a factor on the learning rate, or a function from the optimizer to a scheduler of
            `torch.optim.lr_scheduler`, which makes its step after each epoch, or after each step of the
            optimizer if `fsvi.training.every_step` wraps that function. `ReduceLROnPlateau` watches validation data,
            or the training loss without any.
        clip_norm: The largest norm of the gradient; larger gradients are scaled down to it. None does not clip.
        accumulate: The number of minibatches per optimizer step. Four minibatches of 32 have the gradient of one of
            128 in less memory, except that each one has its own draws, and BatchNorm sees 32 examples at once.
        precision: "bf16" or "fp16" trains in mixed precision: torch computes the network in that type where it is safe
            (autocast). Parameters, divergences and predictions keep the network's type. None uses it everywhere.
        callbacks: Callbacks (`fsvi.training.Callback`), loggers (`fsvi.loggers`) or functions of the training's state,
            which are called at the end of each epoch. They can stop training by `state.stop()`.
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
        checkpoint: A folder to save the training state to at ends of epochs; no other training may use it. After an
            interruption, at most ten seconds plus the running epoch are lost.
        resume: Whether to continue from the checkpoint in that folder, if there is one. The result has the same bits as
            a run without interruption. So each epoch restarts the workers of a DataLoader, even persistent ones.

    Returns:
        The loss and its terms per epoch, and the validation results.

    Examples:
        >>> x, y = fsvi.data.two_moons(100, noise=0.1, seed=0)
        >>> net = fsvi.networks.mlp(2, (20,), 2)
        >>> method = fsvi.MAP(net, fsvi.Categorical())
        >>> history = fsvi.fit(method, (x, y), epochs=10, batch_size=32, seed=0)
        >>> len(history.loss)
        10
    """
    check_type("method", method, Method, "a method such as fsvi.FSVI(net, likelihood=..., context=...)")
    if epochs is not None:
        check_count("epochs", epochs)
    check_count("batch_size", batch_size)
    check_seed(seed)
    check_positive("lr", lr)
    check_count("accumulate", accumulate)
    if precision is not None:
        check_choice("precision", precision, PRECISIONS)
    _check_companions(validation, patience, checkpoint, resume)
    make, schedule, called = check_optimizer(optimizer), check_schedule(schedule), check_callbacks(callbacks)
    with ranks.joined():
        is_first, continues = ranks.rank() == 0, resume or ranks.was_restarted()
        if device is not None:
            method.to(ranks.own_device(find_device(device)))
        with opened(checkpoint if is_first else None, continues) as checkpoints, forked_random(method.device):
            seed_random(seed, method.device)
            batches = as_batches(method, data, batch_size, num_data, unpack)
            held_out = None if validation is None else _hold_out(method, validation, batch_size, unpack)
            epochs = _default_epochs(batches) if epochs is None else epochs
            examples = _begin(method, batches)
            own = method.own_optimizer(lr)
            _check_own(method, own, clip_norm, precision)
            stepper = Stepper(method, own or make_optimizer(make, method, lr), clip_norm=clip_norm, precision=precision)
            rates = Rates(stepper.optimizer, schedule)
            run = Run(method, batches, held_out, stepper, rates, epochs, patience, seed, accumulate, called)
            settings = {**run.settings(), "batch_size": batch_size, "lr": lr}
            run.check_processes(examples.y, settings)
            if checkpoint is not None:
                saved = None if checkpoints is None else checkpoints.read(settings)
                run.resume(ranks.from_first(saved), checkpoint, resume)
            use_features(run)
            return run.train(progress, checkpoints, settings)


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


def _check_own(method: Method, own: Optimizer | None, clip_norm: float | None, precision: str | None) -> None:
    """Refuse options that an update rule of the method's own cannot follow."""
    given = {"clip_norm": clip_norm, "precision": "fp16" if precision == "fp16" else None}
    for name, value in given.items():
        if own is not None and value is not None:
            raise InvalidInputError(
                f"{name}={value!r} cannot be used with {type(method).__name__}: its own update rule reads more from "
                f"the gradients than their direction, so leave {name} out."
            )


def _hold_out(method: Method, validation: Any, batch_size: int, unpack: Unpack | None) -> Batches:
    """The validation data, checked before training without changing any random state."""
    try:
        with forked_random(method.device):
            batches = as_batches(method, validation, batch_size, 1, unpack)  # its size weighs nothing
            batches.examples()
    except InvalidInputError as error:
        raise InvalidInputError(f"validation: {error}") from error
    return batches


def _begin(method: Method, batches: Batches) -> Minibatch:
    """Show the method examples of the data, so that problems are found before the first step."""
    examples = batches.examples()
    if batches.shards_itself:
        examples = ranks.from_first(examples)
    x, y, *_ = examples
    if not y.is_floating_point() and bool((y == y.flatten()[0]).all()):
        label = int(y.flatten()[0])
        message = f"all {y.numel()} labels checked are {label}: nothing can be learned about the other classes."
        warnings.warn(message, stacklevel=3)
    observed = int(method.likelihood.num_observed(y))
    if not observed:
        raise InvalidInputError(f"no target is present in the {len(y)} examples checked: at least one is needed.")
    for each in {method, *method.learners()}:  # N counts the examples, or positions, that have a target
        each.num_data = max(1, round(batches.num_data * observed / len(y)))
    for learner in method.learners():
        learner.begin(x, y)
    return examples
