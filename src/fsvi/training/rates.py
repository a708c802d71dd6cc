"""Learning rates during training: a factor that follows the progress, or a scheduler of torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from fsvi.errors import InvalidInputError
from fsvi.validation import check_choice, check_positive, first_line

Schedule = Callable[[float], float]
"""A function from the fraction of training done, 0..1, to a factor on the learning rate."""
MakeScheduler = Callable[[Optimizer], LRScheduler]
"""A function from the optimizer to a torch scheduler."""


class Rates:
    """Sets the learning rates of an optimizer while it trains."""

    def __init__(self, optimizer: Optimizer, schedule: Any) -> None:
        self._optimizer, self._schedule = optimizer, schedule
        self._rates = [group["lr"] for group in optimizer.param_groups]
        self._every_step = type(schedule) is every_step
        self._scheduler: LRScheduler | None = None
        if isinstance(schedule, every_step):
            self._scheduler = _made(schedule.make, optimizer)
            self.settings: Any = {"every_step": self._every_step, **self.state()}
        else:
            self.step(0.0)
            self.settings = [schedule(quarter / 4) for quarter in range(5)]

    def step(self, done: float) -> None:
        """A step was made, after which the fraction `done` of training is done."""
        if self._scheduler is None:
            factor = self._schedule(done)
            for group, rate in zip(self._optimizer.param_groups, self._rates, strict=True):
                group["lr"] = rate * factor
        elif self._every_step:
            self._advance()

    def after_epoch(self, loss: float) -> None:
        """An epoch has ended with this loss, of the validation data if there are any."""
        if isinstance(self._scheduler, ReduceLROnPlateau):
            self._scheduler.step(loss)
        elif self._scheduler is not None and not self._every_step:
            self._advance()

    def state(self) -> dict[str, Any]:
        """What a checkpoint must keep."""
        return {} if self._scheduler is None else _without_callables(self._scheduler.state_dict())

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""
        if self._scheduler is not None:
            self._scheduler.load_state_dict({**self._scheduler.state_dict(), **state})

    def _advance(self) -> None:
        assert self._scheduler is not None
        try:
            self._scheduler.step()
        except ValueError as error:  # a scheduler that was told a smaller number of steps
            name = type(self._scheduler).__name__
            raise InvalidInputError(f"schedule: {name} cannot go on: {first_line(error)}.") from error


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


class _EveryEpoch(every_step):
    """A torch scheduler that makes its step after each epoch."""


def cosine(final: float = 0.05) -> Schedule:
    """The paper's schedule: from 1 to `final` along half a cosine.

    Args:
        final: The factor on the learning rate at the end of training.
    """
    return lambda done: final + (1 - final) * 0.5 * (1 + math.cos(math.pi * min(done, 1.0)))


def check_schedule(schedule: Any) -> Any:
    """The schedule: a function of the fraction done, or one of the optimizer in `every_step` or `_EveryEpoch`."""
    if schedule is None:
        return lambda _: 1.0
    if isinstance(schedule, str):
        check_choice("schedule", schedule, ("cosine",))
        return cosine()
    if isinstance(schedule, every_step):
        return schedule
    if not callable(schedule):
        raise InvalidInputError(
            f'schedule={schedule!r} must be "cosine", None, a function, or a function that makes a torch scheduler.'
        )
    try:
        schedule(0.0)
    except (TypeError, AttributeError, ValueError):  # a factor is a function of a number, which no scheduler accepts
        return _EveryEpoch(schedule)
    for done in (0.0, 0.5, 1.0):
        check_positive(f"schedule({done})", schedule(done), zero=True)
    return schedule


def _made(make: MakeScheduler, optimizer: Optimizer) -> LRScheduler:
    try:
        scheduler = make(optimizer)
    except (TypeError, ValueError, AttributeError, KeyError, ZeroDivisionError) as error:
        raise InvalidInputError(f"schedule={make!r} cannot be made: {first_line(error)}.") from error
    if not isinstance(scheduler, (LRScheduler, ReduceLROnPlateau)):
        kind = type(scheduler).__name__
        raise InvalidInputError(f"schedule={make!r} made a {kind}, not a factor or a scheduler of torch.optim.")
    return scheduler


def _without_callables(state: Any) -> Any:
    """A scheduler's state without functions, which are given again when training resumes."""
    if isinstance(state, Mapping):
        return {name: _without_callables(value) for name, value in state.items() if not callable(value)}
    return [_without_callables(value) for value in state] if isinstance(state, (list, tuple)) else state
