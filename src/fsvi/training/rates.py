"""Learning rates during training: a factor that follows the progress, or a scheduler of torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from fsvi.errors import InvalidInputError
from fsvi.validation import check_choice, check_positive, first_line

Schedule = Callable[[float], float]
"""A function from the fraction of training done, 0..1, to a factor on the learning rate."""
MakeScheduler = Callable[[Optimizer], LRScheduler]
"""A function from the optimizer to a torch scheduler."""
MakeRates = Callable[[Optimizer], "Rates"]


class Rates:
    """Sets the learning rates of an optimizer; here, they stay as they are."""

    def before_step(self, done: float) -> None:
        """A step follows, after the fraction `done` of training."""

    def after_step(self) -> None:
        """A step was made."""

    def after_epoch(self, loss: float) -> None:
        """An epoch has ended with this loss, of the validation data if there are any."""

    def settings(self) -> Any:
        """Plain values that must not change between a checkpoint and its continuation."""
        return None

    def state(self) -> dict[str, Any]:
        """What a checkpoint must keep."""
        return {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""


class FactorRates(Rates):
    """The initial learning rates times a factor that depends on the fraction of training done.

    Args:
        optimizer: The optimizer.
        schedule: The function from the fraction to the factor.
    """

    def __init__(self, optimizer: Optimizer, schedule: Schedule) -> None:
        self._optimizer, self._schedule = optimizer, schedule
        self._rates = [group["lr"] for group in optimizer.param_groups]

    def before_step(self, done: float) -> None:
        """Set the learning rates."""
        factor = self._schedule(done)
        for group, rate in zip(self._optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate * factor

    def settings(self) -> list[float]:
        """The factor at five times."""
        return [self._schedule(quarter / 4) for quarter in range(5)]


class TorchRates(Rates):
    """A scheduler of torch, which makes a step after each epoch, or after each optimizer step.

    Args:
        optimizer: The optimizer.
        make: The function that makes the scheduler.
        every_step: Whether the scheduler makes its step after each optimizer step.
    """

    def __init__(self, optimizer: Optimizer, make: MakeScheduler, every_step: bool) -> None:
        try:
            scheduler = make(optimizer)
        except (TypeError, ValueError, AttributeError, KeyError, ZeroDivisionError) as error:
            raise InvalidInputError(f"schedule={make!r} cannot be made: {first_line(error)}.") from error
        if not isinstance(scheduler, (LRScheduler, ReduceLROnPlateau)):
            kind = type(scheduler).__name__
            raise InvalidInputError(f"schedule={make!r} made a {kind}, not a factor or a scheduler of torch.optim.")
        self._scheduler, self._every_step = scheduler, every_step
        self._settings = {"class": type(scheduler).__name__, "every_step": every_step, **self.state()}

    def after_step(self) -> None:
        """A step of a scheduler that follows the steps."""
        if self._every_step:
            self._step()

    def after_epoch(self, loss: float) -> None:
        """A step of a scheduler that follows the epochs; one that waits for a plateau is given the loss."""
        if isinstance(self._scheduler, ReduceLROnPlateau):
            self._scheduler.step(loss)
        elif not self._every_step:
            self._step()

    def _step(self) -> None:
        try:
            self._scheduler.step()
        except ValueError as error:  # a scheduler that was told a smaller number of steps
            name = type(self._scheduler).__name__
            raise InvalidInputError(f"schedule: {name} cannot go on: {first_line(error)}.") from error

    def settings(self) -> dict[str, Any]:
        """The class and its state at the start."""
        return self._settings

    def state(self) -> dict[str, Any]:
        """The scheduler's."""
        return _without_callables(self._scheduler.state_dict())

    def load_state(self, state: Mapping[str, Any]) -> None:
        """The scheduler takes its state back."""
        own = self._scheduler.state_dict()
        self._scheduler.load_state_dict({**own, **state})


class every_step:  # noqa: N801 - it reads like a function
    """A torch scheduler that makes its step after each optimizer step: `schedule=fsvi.training.every_step(make)`.

    Args:
        make: A function from the optimizer to the scheduler, such as
            `lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=1000)`.
    """

    def __init__(self, make: MakeScheduler) -> None:
        if not callable(make):
            raise InvalidInputError(f"every_step needs a function from the optimizer to a scheduler, not {make!r}.")
        self.make = make


def cosine(final: float = 0.05) -> Schedule:
    """The paper's schedule: from 1 to `final` along half a cosine.

    Args:
        final: The factor on the learning rate at the end of training.
    """
    return lambda done: final + (1 - final) * 0.5 * (1 + math.cos(math.pi * min(done, 1.0)))


def _factor(schedule: str | Schedule | None) -> Schedule:
    """The factor of a name ("cosine"), of a function, or of None (constant)."""
    if schedule is None:
        return lambda _: 1.0
    if isinstance(schedule, str):
        check_choice("schedule", schedule, ("cosine",))
        return cosine()
    if not callable(schedule):
        raise InvalidInputError(
            f'schedule={schedule!r} must be "cosine", None, a function, or a function that makes a torch scheduler.'
        )
    for done in (0.0, 0.5, 1.0):
        check_positive(f"schedule({done})", schedule(done), zero=True)
    return schedule


def check_schedule(schedule: Any) -> MakeRates:
    """What makes the learning rates of an optimizer, from everything that `fit` accepts as a schedule."""
    if isinstance(schedule, every_step):
        return partial(TorchRates, make=schedule.make, every_step=True)
    if callable(schedule) and _makes_scheduler(schedule):
        return partial(TorchRates, make=schedule, every_step=False)
    return partial(FactorRates, schedule=_factor(schedule))


def _makes_scheduler(schedule: Callable[[Any], Any]) -> bool:
    """Whether a function takes an optimizer: a factor is a function of a number, which no scheduler accepts."""
    inner = schedule.func if isinstance(schedule, partial) else schedule
    if isinstance(inner, type):
        return issubclass(inner, (LRScheduler, ReduceLROnPlateau))
    try:
        schedule(0.0)
    except (TypeError, AttributeError):
        return True
    return False


def _without_callables(state: Mapping[str, Any]) -> dict[str, Any]:
    """The plain part of a scheduler's state; functions are given again when training resumes."""
    return {name: _plain(value) for name, value in state.items() if _is_plain(value)}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def _is_plain(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(map(_is_plain, value.values()))
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (bool, int, float, str))
