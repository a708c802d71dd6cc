"""The training loop."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from fsvi.errors import InvalidInputError, NonFiniteLossError
from fsvi.methods.base import Method
from fsvi.networks.compiling import timing_compilation, uncompile_module
from fsvi.networks.devices import forked_random
from fsvi.serialization import building_from, digest
from fsvi.training.batches import Batches
from fsvi.training.callbacks import Callback, TrainingState, callback_name
from fsvi.training.checkpoints import Checkpoints, capture, copy_tensors, flatten, restore
from fsvi.training.distributed import Ranks, run_name
from fsvi.training.history import History
from fsvi.training.progress import ProgressBar
from fsvi.training.rates import Rates
from fsvi.training.step import Batch, Stepper

_VALIDATION_SAMPLES = 16


@dataclass
class Run:
    """The state of one call of `fit`."""

    method: Method
    batches: Batches
    validation: Batches | None
    stepper: Stepper
    rates: Rates
    epochs: int
    patience: int | None
    checkpoints: Checkpoints | None
    ranks: Ranks = field(default_factory=Ranks)
    accumulate: int = 1
    callbacks: list[Callback] = field(default_factory=list)
    history: History = field(default_factory=History)
    best: dict[str, Tensor] | None = None
    settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        sources = [self.batches] if self.validation is None else [self.batches, self.validation]
        self.generators = [generator for source in sources for generator in source.generators]
        self.steps_per_epoch = math.ceil(self.batches.num_batches / self.accumulate)
        self.state = TrainingState(self.method, self.optimizer, self.history, self.epochs)

    @property
    def optimizer(self) -> Optimizer:
        """The stepper's optimizer."""
        return self.stepper.optimizer

    def check(self, given: dict[str, Any], examples: tuple[Any, Tensor]) -> None:
        """Collect the settings; processes that train together must have the same ones, and the same data."""
        if self.checkpoints is not None or self.ranks.size > 1:
            self.settings = {**self._settings(), **given}
        if self.ranks.size > 1:
            sample = {"targets": digest({"y": examples[1]}), "num_examples": self.batches.num_examples}
            states = [digest({"": generator.get_state()}) for generator in self.generators]
            self.ranks.check_same(flatten({**self.settings, **sample, "generators": states}))

    def resume(self, is_asked: bool = True) -> None:
        """Restore the state of an earlier run with the same settings, if there is one.

        Args:
            is_asked: Whether the user wants to resume, and not only torchrun, which has restarted this run.
        """
        if self.checkpoints is None:
            return
        checkpoints, settings = self.checkpoints, self.settings
        state = self.ranks.from_main(lambda: checkpoints.read(settings))
        if state is None:
            return
        if not is_asked and state.get("run") != run_name():  # torchrun has restarted another run than the checkpoint's
            raise InvalidInputError(f"{checkpoints.path} exists: pass resume=True, or choose another folder.")
        with building_from(checkpoints.path):
            restore(state, self.method, self.optimizer, self.generators)
            self.ranks.restore_random(
                state.get("ranks"), settings["seed"], self.method.device, len(state["history"]["loss"])
            )
            self.history = self.state.history = History(**state["history"])
            self.best = state["best"]
            self._restore_options(state.get("options", {}))

    def train(self, progress: bool | None) -> History:
        """Train to the end. The method is ready to predict afterwards, even after an error."""
        self.method.train()
        timing = nullcontext() if self.stepper.compile is None else timing_compilation(self._count_compilation)
        try:
            self._call("on_train_begin")
            with ProgressBar(self.epochs, progress if self.ranks.is_main else False) as bar, timing:
                while not self._is_done():
                    self._epoch()
                    bar.update(self.history.epochs, self.history.latest())
                    self._checkpoint()
            if self.best is not None:
                self.method.load_tensors(self.best)
            self.ranks.check_state(self.method)
            self.method.finish(self.batches.shuffled)
            self.ranks.share(self.method)
        finally:
            self.method.eval()
            for learner in self.method.learners():
                uncompile_module(learner.net)
            self._call("on_train_end")
        return self.history

    def _count_compilation(self, seconds: float) -> None:
        self.history.compile_seconds += seconds

    def _epoch(self) -> None:
        started = time.perf_counter()
        totals: dict[str, float] = {}
        seen = 0
        self.batches.set_epoch(self.history.epochs)
        for batches in self._scheduled(_grouped(self.batches.weighted(), self.accumulate)):
            self.state.terms = self.stepper(batches, self.history.epochs + 1)
            self.rates.after_step()
            self.state.step += 1
            self._call("on_step_end")
            for name, value in self.state.terms.items():
                totals[name] = totals.get(name, 0.0) + value * self.stepper.examples
            seen += self.stepper.examples
        self.ranks.settle(self.method)
        self.method.after_epoch(self.batches.shuffled)
        self.history.record({name: total / seen for name, total in totals.items()})
        self._validate()
        self.rates.after_epoch(-self.history.validation[-1] if self.history.validation else self.history.loss[-1])
        self.history.seconds += time.perf_counter() - started
        self.state.epoch = self.history.epochs
        self._call("on_epoch_end")
        if self.callbacks:
            self.state.stopped = self.ranks.agree(self.state.stopped)

    def _scheduled(self, steps: Iterable[list[Batch]]) -> Iterator[list[Batch]]:
        """The minibatches of each step; the learning rate and the method's progress are set before it."""
        for index, batches in enumerate(steps):
            self.rates.before_step((self.history.epochs + min(1.0, index / self.steps_per_epoch)) / self.epochs)
            done = min(1.0, (index + 1) / self.steps_per_epoch)
            self.method.progress = (self.history.epochs + done) / self.epochs
            yield batches

    def _call(self, name: str) -> None:
        for callback in self.callbacks:
            if self.ranks.is_main or callback.every_process:
                getattr(callback, name)(self.state)

    def _validate(self) -> None:
        if self.validation is None:
            return
        with forked_random(self.method.device):
            self._share_order()
            logs = [self.ranks.map_rows(self._log_prob, x, y) for x, y in self.validation.ordered()]
        value = self.validation.mean(torch.cat(self.ranks.joined_rows(logs)))
        if math.isnan(value):
            raise NonFiniteLossError(
                f"the validation log-likelihood became nan in epoch {self.history.epochs}: lower the learning rate."
            )
        best = self.history.best_validation
        self.history.validation.append(value)
        if best is None or value > best:
            self.history.best_epoch = self.history.epochs
            self.best = copy_tensors(self.method.tensors()) if self.patience is not None else None

    def _log_prob(self, x: Any, y: Tensor) -> Tensor:
        return self.method.predict(x, _VALIDATION_SAMPLES).log_prob(self.method.target_rows(y))

    def _share_order(self) -> None:
        """Let processes that share the validation data read them in the same order."""
        if self.ranks.size > 1:
            torch.default_generator.manual_seed(self.history.epochs)

    def _is_done(self) -> bool:
        best = self.history.best_epoch
        waited = self.patience is not None and best is not None and self.history.epochs - best >= self.patience
        return waited or self.state.stopped or self.history.epochs >= self.epochs

    # Checkpoints ----------------------------------------------------------------------------------------------------

    def _checkpoint(self) -> None:
        if self.checkpoints is None or not self.ranks.agree(self.checkpoints.is_due or self._is_done()):
            return
        self.ranks.check_state(self.method)
        ranks = self.ranks.random_states(self.method.device)
        if self.ranks.is_main:
            state = capture(self.method, self.optimizer, self.generators)
            more = {"history": asdict(self.history), "best": self.best, "options": self._option_states()}
            self.checkpoints.write({**state, **more, "ranks": ranks, "run": run_name()}, self.settings)

    def _option_states(self) -> dict[str, Any]:
        return {
            "step": self.state.step,
            "stopped": self.state.stopped,
            "rates": self.rates.state(),
            "stepper": self.stepper.state(),
            "callbacks": [callback.state_dict() for callback in self.callbacks],
        }

    def _restore_options(self, states: dict[str, Any]) -> None:
        self.state.epoch = self.history.epochs
        self.state.step = states.get("step", self.history.epochs * self.steps_per_epoch)
        self.state.stopped = states.get("stopped", False)
        self.rates.load_state(states.get("rates", {}))
        self.stepper.load_state(states.get("stepper", {}))
        for callback, state in zip(self.callbacks, states.get("callbacks", []), strict=True):
            callback.load_state_dict(state)

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
            "schedule": self.rates.settings(),
            "epochs": self.epochs,
            "patience": self.patience,
            **self._chosen_options(),
        }

    def _chosen_options(self) -> dict[str, Any]:
        """Options that differ from their defaults, so that checkpoints without these options can be continued."""
        chosen = {
            "clip_norm": self.stepper.clip_norm,
            "precision": self.stepper.precision,
            "compile": self.stepper.compile,
            "accumulate": None if self.accumulate == 1 else self.accumulate,
            "callbacks": [callback_name(callback) for callback in self.callbacks] or None,
            "device": None if self.method.device.type == "cpu" else self.method.device.type,
        }
        return {name: value for name, value in chosen.items() if value is not None}


def _grouped(batches: Iterator[Batch], size: int) -> Iterator[list[Batch]]:
    """The minibatches of each step: `size` of them, the last ones of an epoch perhaps fewer."""
    while group := list(islice(batches, size)):
        yield group
