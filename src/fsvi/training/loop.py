"""The training loop itself."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from fsvi.errors import NonFiniteLossError
from fsvi.methods.base import Method
from fsvi.serialization import building_from
from fsvi.training.batches import Batches
from fsvi.training.checkpoints import Checkpoints, capture, copy_tensors, restore
from fsvi.training.history import History
from fsvi.training.optimizers import Schedule
from fsvi.training.progress import ProgressBar
from fsvi.training.step import take_step

_VALIDATION_SAMPLES = 16


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
        """Take over the state of an earlier run with the same settings, if there is one."""
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
        """Train to the end, and leave the method ready to predict, whatever happens."""
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
        for x, y in self._scheduled(self.batches.shuffled()):
            for name, value in take_step(self.method, self.optimizer, x, y, self.history.epochs + 1).items():
                totals[name] = totals.get(name, 0.0) + value * len(x)
            seen += len(x)
        self.method.after_epoch(self.batches.shuffled)
        self.history.record({name: total / seen for name, total in totals.items()})
        self._validate()
        self.history.seconds += time.perf_counter() - started

    def _scheduled(self, batches: Iterable[tuple[Tensor, Tensor]]) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches, with the learning rate and the method's progress set before each."""
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
            logs = [self.method.predict(x, _VALIDATION_SAMPLES).log_prob(y) for x, y in self.validation.ordered()]
        value = float(torch.cat(logs).mean())
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
        """What must be the same for a run to be the same: method, network, data, optimiser, schedule."""
        config = self.method.config()
        groups = [{k: v for k, v in group.items() if k != "params"} for group in self.optimizer.param_groups]
        return {
            **config["settings"],
            "method": config["class"],
            "parameters": self.method.network.architecture(),
            "num_data": self.batches.num_data,
            "data": self.batches.fingerprint,
            "context_data": self.method.fingerprint(),
            "validation": None if self.validation is None else (self.validation.num_data, self.validation.fingerprint),
            "optimizer": {"class": type(self.optimizer).__name__, "groups": groups},
            "schedule": [self.schedule(quarter / 4) for quarter in range(5)],
            "epochs": self.epochs,
            "patience": self.patience,
        }
