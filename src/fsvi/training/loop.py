"""The training step and the training loop."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from fsvi.errors import InvalidInputError, NonFiniteLossError
from fsvi.likelihoods import weighted
from fsvi.methods.base import Method
from fsvi.networks.parameters import batch_norms
from fsvi.serialization import building_from
from fsvi.training.batches import Batches
from fsvi.training.checkpoints import Checkpoints, capture, copy_tensors, restore
from fsvi.training.history import History
from fsvi.training.optimizers import Schedule
from fsvi.training.progress import ProgressBar

_VALIDATION_SAMPLES = 16
_Batch = tuple[Tensor, Tensor, Tensor | None]
_BATCH_NORM_OF_ONE = "Expected more than 1 value per channel"


def take_step(method: Method, optimizer: Optimizer, x: Tensor, y: Tensor, epoch: int = 1) -> dict[str, float]:
    """Make one optimizer step on a minibatch; after an error, the method is as it was before.

    Args:
        method: A method in training mode, after `method.begin`.
        optimizer: The optimizer of its parameters.
        x: Inputs, validated by `method.check_batch`.
        y: Their targets.
        epoch: The number of the epoch, for error messages.

    Returns:
        The terms of the loss by name.
    """
    optimizer.zero_grad(set_to_none=True)
    with _restored_on_error(method):
        terms = {name: float(term.detach()) for name, term in _backward(method, x, y).items()}
        problem = _find_non_finite(terms, optimizer)
        if problem is not None:
            rate = optimizer.param_groups[0]["lr"]
            raise NonFiniteLossError(
                f"{problem} in epoch {epoch}: lower the learning rate (now {rate:.3g}), or check the data's scale; no "
                "step was made."
            )
    optimizer.step()
    method.after_step()
    return terms


def _backward(method: Method, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    try:
        return method.backward(x, y)
    except ValueError as error:
        if len(x) == 1 and str(error).startswith(_BATCH_NORM_OF_ONE):
            raise InvalidInputError(
                "BatchNorm cannot be trained on a batch of one example: use a batch_size of at least 2."
            ) from error
        raise


@contextmanager
def _restored_on_error(method: Method) -> Iterator[None]:
    """Give BatchNorm layers their statistics back if the step fails; nothing else changes before the optimizer's."""
    buffers = [buffer for layer in batch_norms(method) for buffer in layer.buffers(recurse=False)]
    before = [buffer.clone() for buffer in buffers]
    try:
        yield
    except BaseException:
        for buffer, value in zip(buffers, before, strict=True):
            buffer.copy_(value)
        raise


def _find_non_finite(terms: Mapping[str, float], optimizer: Optimizer) -> str | None:
    for name, value in terms.items():
        if not math.isfinite(value):
            return f"the {name} term of the loss became {value}"
    gradients = (p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None)
    if not all(math.isfinite(gradient.sum()) for gradient in gradients):
        return "the gradient of the loss became NaN or infinite"
    return None


@dataclass
class Run:
    """The state of one call of `fit`."""

    method: Method
    batches: Batches
    validation: Batches | None
    optimizer: Optimizer
    schedule: Schedule
    epochs: int
    patience: int | None
    checkpoints: Checkpoints | None
    history: History = field(default_factory=History)
    best: dict[str, Tensor] | None = None
    settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rates = [group["lr"] for group in self.optimizer.param_groups]
        sources = [self.batches] if self.validation is None else [self.batches, self.validation]
        self.generators = [generator for source in sources for generator in source.generators]

    def resume(self, given: dict[str, Any]) -> None:
        """Restore the state of an earlier run with the same settings, if there is one."""
        if self.checkpoints is None:
            return
        self.settings = {**self._settings(), **given}
        state = self.checkpoints.read(self.settings)
        if state is None:
            return
        with building_from(self.checkpoints.path):
            restore(state, self.method, self.optimizer, self.generators)
            self.history = History(**state["history"])
            self.best = state["best"]

    def train(self, progress: bool | None) -> History:
        """Train to the end. The method is ready to predict afterwards, even after an error."""
        self.method.train()
        try:
            with ProgressBar(self.epochs, progress) as bar:
                while not self._is_done():
                    self._epoch()
                    bar.update(self.history.epochs, self.history.latest())
                    self._checkpoint()
            if self.best is not None:
                self.method.load_tensors(self.best)
            self.method.finish(self.batches.shuffled)
        finally:
            self.method.eval()
        return self.history

    def _epoch(self) -> None:
        started = time.perf_counter()
        totals: dict[str, float] = {}
        seen = 0
        for x, y, weights in self._scheduled(self.batches.weighted()):
            with weighted(self.method, weights):
                terms = take_step(self.method, self.optimizer, x, y, self.history.epochs + 1)
            for name, value in terms.items():
                totals[name] = totals.get(name, 0.0) + value * len(x)
            seen += len(x)
        self.method.after_epoch(self.batches.shuffled)
        self.history.record({name: total / seen for name, total in totals.items()})
        self._validate()
        self.history.seconds += time.perf_counter() - started

    def _scheduled(self, batches: Iterable[_Batch]) -> Iterator[_Batch]:
        """The batches; the learning rate and the method's progress are set before each one."""
        for index, batch in enumerate(batches):
            factor = self.schedule((self.history.epochs + index / self.batches.num_batches) / self.epochs)
            self.method.progress = (self.history.epochs + (index + 1) / self.batches.num_batches) / self.epochs
            for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
                group["lr"] = rate * factor
            yield batch

    def _validate(self) -> None:
        if self.validation is None:
            return
        with torch.random.fork_rng(devices=[]):
            logs = [
                self.method.predict(x, _VALIDATION_SAMPLES).log_prob(self.method.target_rows(y))
                for x, y in self.validation.ordered()
            ]
        value = self.validation.mean(torch.cat(logs))
        if math.isnan(value):
            raise NonFiniteLossError(
                f"the validation log-likelihood became nan in epoch {self.history.epochs}: lower the learning rate."
            )
        best = self.history.best_validation
        self.history.validation.append(value)
        if best is None or value > best:
            self.history.best_epoch = self.history.epochs
            self.best = copy_tensors(self.method.tensors()) if self.patience is not None else None

    def _is_done(self) -> bool:
        best = self.history.best_epoch
        waited = self.patience is not None and best is not None and self.history.epochs - best >= self.patience
        return waited or self.history.epochs >= self.epochs

    def _checkpoint(self) -> None:
        if self.checkpoints is not None and (self.checkpoints.is_due or self._is_done()):
            state = capture(self.method, self.optimizer, self.generators)
            self.checkpoints.write({**state, "history": asdict(self.history), "best": self.best}, self.settings)

    def _settings(self) -> dict[str, Any]:
        """Everything that must not change between a checkpoint and its continuation."""
        config, held_out = self.method.config(), self.validation
        groups = [{k: v for k, v in group.items() if k != "params"} for group in self.optimizer.param_groups]
        return {
            **config["settings"],
            "method": config["class"],
            "parameters": self.method.network.architecture(),
            "num_data": self.batches.num_data,
            "data": self.batches.fingerprint,
            "context_data": self.method.fingerprint(),
            "validation": None if held_out is None else (held_out.num_examples, held_out.fingerprint),
            "optimizer": {"class": type(self.optimizer).__name__, "groups": groups},
            "schedule": [self.schedule(quarter / 4) for quarter in range(5)],
            "epochs": self.epochs,
            "patience": self.patience,
        }
