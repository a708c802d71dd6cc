"""One training loop for every method."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from os import PathLike
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from fsvi.errors import NonFiniteLossError
from fsvi.methods.method import Method
from fsvi.training.batches import Batches, as_batches
from fsvi.training.checkpoints import Checkpoints, capture, copy_tensors, restore
from fsvi.training.optimizers import Schedule, make_optimizer, make_schedule
from fsvi.training.progress import ProgressBar
from fsvi.validation import check_count, check_positive

_VALIDATION_SAMPLES = 16


@dataclass
class History:
    """What happened, one entry an epoch: the loss and its terms averaged over the epoch's examples, and more."""

    loss: list[float] = field(default_factory=list)
    terms: dict[str, list[float]] = field(default_factory=dict)
    validation: list[float] = field(default_factory=list)
    """mean log-likelihood of the validation set"""
    best_epoch: int | None = None
    """the epoch, from 1, whose parameters were kept, where a validation set chose it"""
    seconds: float = 0.0

    @property
    def epochs(self) -> int:
        """How many epochs were trained."""
        return len(self.loss)

    def record(self, means: Mapping[str, float]) -> None:
        """Add an epoch."""
        self.loss.append(sum(means.values()))
        for name, value in means.items():
            self.terms.setdefault(name, []).append(value)


def fit(
    method: Method,
    data: Any,
    *,
    epochs: int = 1000,
    batch_size: int = 128,
    lr: float = 1e-3,
    optimizer: Any = "adam",
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

    The same seed gives the same bits on a CPU. With `validation` data the mean log-likelihood is recorded every epoch;
    `patience` epochs without a better one end training and bring the best parameters back. With `checkpoint`, a
    folder, the state is kept at ends of epochs at least `checkpoint_interval` seconds apart, and `resume=True` goes on
    from it to the same bits as if nothing had happened. torch's global random state is left as it was found.
    """
    check_count("epochs", epochs)
    check_count("batch_size", batch_size)
    check_positive("lr", lr)
    if patience is not None:
        check_count("patience", patience)
    if device is not None:
        method.to(device)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        run = _Run(method, as_batches(method, data, batch_size), epochs, lr, optimizer, make_schedule(schedule))
        if validation is not None:
            run.validation = method.check_batch(*validation)
            run.patience = patience
        if checkpoint is not None:
            settings = dict(epochs=epochs, batch_size=batch_size, lr=lr, seed=seed, num_data=run.batches.num_data)
            settings |= dict(optimizer=str(optimizer), method=type(method).__name__)
            run.checkpoints = Checkpoints(checkpoint, checkpoint_interval, settings)  # type: ignore[arg-type]
            run.resume() if resume else run.checkpoints.refuse_existing()
        return run.train(progress)


class _Run:
    """The state of one call of `fit`."""

    def __init__(
        self, method: Method, batches: Batches, epochs: int, lr: float, optimizer: Any, schedule: Schedule
    ) -> None:
        self.method, self.batches, self.epochs, self.schedule = method, batches, epochs, schedule
        method.begin(batches.inputs(), batches.num_data)
        self.optimizer: Optimizer = make_optimizer(method, optimizer, lr)
        self.rates = [group["lr"] for group in self.optimizer.param_groups]
        self.history = History()
        self.validation: tuple[Tensor, Tensor] | None = None
        self.patience: int | None = None
        self.best: dict[str, Tensor] | None = None
        self.checkpoints: Checkpoints | None = None

    def train(self, progress: bool | None) -> History:
        self.method.train()
        with ProgressBar(self.epochs, progress) as bar:
            while self.history.epochs < self.epochs and not self._out_of_patience():
                started = time.perf_counter()
                self._epoch()
                self.history.seconds += time.perf_counter() - started
                bar.update(self.history.epochs, {name: values[-1] for name, values in self._shown().items()})
                self._checkpoint()
        if self.best is not None:
            self.method.load_tensors(self.best)
        self.method.finish(self.batches.shuffled)
        self.method.eval()
        return self.history

    def resume(self) -> None:
        assert self.checkpoints is not None
        state = self.checkpoints.read()
        if state is None:
            return
        restore(state, self.method, self.optimizer, self.batches)
        self.history = History(**state["history"])
        self.best = state["best"]

    def _epoch(self) -> None:
        totals: dict[str, float] = {}
        for x, y in self._scheduled(self.batches.shuffled()):
            self.optimizer.zero_grad(set_to_none=True)
            terms = {name: float(term.detach()) for name, term in self.method.backward(x, y).items()}
            self._check_finite(terms)
            self.optimizer.step()
            self.method.after_step()
            for name, value in terms.items():
                totals[name] = totals.get(name, 0.0) + value * len(x)
        self.method.after_epoch(self.batches.shuffled)
        self.history.record({name: total / self.batches.num_data for name, total in totals.items()})
        self._validate()

    def _scheduled(self, batches: Iterable[tuple[Tensor, Tensor]]) -> Iterable[tuple[Tensor, Tensor]]:
        """The batches, with the learning rate set before each."""
        seen = self.history.epochs * self.batches.num_data
        for x, y in batches:
            factor = self.schedule(seen / (self.epochs * self.batches.num_data))
            for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
                group["lr"] = rate * factor
            yield x, y
            seen += len(x)

    def _check_finite(self, terms: Mapping[str, float]) -> None:
        for name, value in terms.items():
            if not math.isfinite(value):
                rate = self.optimizer.param_groups[0]["lr"]
                raise NonFiniteLossError(
                    f"the {name} term of the loss became {value} in epoch {self.history.epochs + 1}: "
                    f"lower the learning rate (now {rate:.3g}), or check the data's scale; no step was made."
                )

    def _validate(self) -> None:
        if self.validation is None:
            return
        x, y = self.validation
        predictive = self.method.predict(x, num_samples=_VALIDATION_SAMPLES)
        self.history.validation.append(float(predictive.log_prob(y).mean()))
        if self.history.validation[-1] >= max(self.history.validation):
            self.history.best_epoch = self.history.epochs
            self.best = copy_tensors(self.method.tensors()) if self.patience is not None else None

    def _out_of_patience(self) -> bool:
        best = self.history.best_epoch
        return self.patience is not None and best is not None and self.history.epochs - best >= self.patience

    def _checkpoint(self) -> None:
        if self.checkpoints is None:
            return
        last = self.history.epochs == self.epochs or self._out_of_patience()
        state = capture(self.method, self.optimizer, self.batches)
        self.checkpoints.write({**state, "history": asdict(self.history), "best": self.best}, force=last)

    def _shown(self) -> dict[str, list[float]]:
        shown = {"loss": self.history.loss, **self.history.terms}
        return {**shown, "val": self.history.validation} if self.history.validation else shown
