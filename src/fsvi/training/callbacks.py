"""Callbacks: functions of the user that `fit` calls while it trains."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch.optim import Optimizer

from fsvi.errors import InvalidInputError
from fsvi.methods.base import Method
from fsvi.training.history import History


@dataclass
class TrainingState:
    """What a callback sees.

    Attributes:
        method: The method that is trained.
        optimizer: Its optimizer.
        history: The record so far.
        epochs: The number of epochs that were asked for.
        epoch: The number of epochs done.
        step: The number of optimizer steps done.
        terms: The terms of the last step's loss, by name.
        stopped: Whether a callback has asked to stop.
    """

    method: Method
    optimizer: Optimizer
    history: History
    epochs: int
    epoch: int = 0
    step: int = 0
    terms: dict[str, float] = field(default_factory=dict)
    stopped: bool = False

    @property
    def lr(self) -> float:
        """The learning rate of the first parameter group."""
        return float(self.optimizer.param_groups[0]["lr"])

    def stop(self) -> None:
        """End training after the current epoch."""
        self.stopped = True


class Callback:
    """A base class for callbacks: override what you need.

    A plain function of the state is a callback too: it is called at the end of each epoch. A callback may call
    `state.stop()`. A callback that remembers something returns it from `state_dict`, as numbers, strings, lists, dicts
    and tensors; checkpoints keep it, and a resumed training calls `load_state_dict`.

    When several processes train together, the first one calls the callback, unless `every_process` is set. Set it for
    a callback that changes the training, such as a setting of the method.
    """

    every_process = False
    """whether every process calls the callback, or only the first one"""

    def on_train_begin(self, state: TrainingState) -> None:
        """Training starts or resumes."""

    def on_step_end(self, state: TrainingState) -> None:
        """An optimizer step was made."""

    def on_epoch_end(self, state: TrainingState) -> None:
        """An epoch has ended, and its validation."""

    def on_train_end(self, state: TrainingState) -> None:
        """Training has ended, also after an error."""

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint must keep."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""


def check_callbacks(callbacks: Sequence[Callback | Callable[[TrainingState], object]] | None) -> list[Callback]:
    """Callbacks, where a function becomes the `on_epoch_end` of one."""
    if not isinstance(callbacks, (list, tuple, type(None))):
        raise InvalidInputError(f"callbacks is a {type(callbacks).__name__}: pass a list of callbacks or functions.")
    made: list[Callback] = []
    for index, given in enumerate(callbacks or ()):
        if isinstance(given, type) or not (isinstance(given, Callback) or callable(given)):
            raise InvalidInputError(
                f"callbacks[{index}]={given!r} is not an fsvi.training.Callback or a function of the state."
            )
        made.append(given if isinstance(given, Callback) else Callback())
        if not isinstance(given, Callback):
            made[-1].on_epoch_end = given  # type: ignore[method-assign]
    return made


def callback_name(callback: Callback) -> str:
    """A name by which a checkpoint knows the callback."""
    inner = callback.on_epoch_end if type(callback) is Callback else type(callback)
    return getattr(inner, "__qualname__", type(inner).__name__)
