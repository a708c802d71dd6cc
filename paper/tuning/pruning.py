"""When a trial is given up: it is worse than the others at the same point, takes much longer, or time is up."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from fsvi.errors import FSVIError, InvalidInputError
from fsvi.training.callbacks import Callback, TrainingState

if TYPE_CHECKING:
    from optuna import Trial
    from optuna.trial import FrozenTrial

REPORTS = 10
"""How many times a training reports its validation."""
STARTUP, WARMUP = 5, 3
"""Trials that must have ended before any is pruned, and the first report that can prune one."""
SLOW = 5.0
"""A trial is pruned after this many times the median time of the complete ones."""


class OutOfTimeError(FSVIError):
    """The time budget was used up during a trial."""


class Watch(Callback):
    """A callback that ends a hopeless trial.

    Args:
        trial: The trial; it receives the reports.
        limit: The most seconds that the trial may take; None for no limit.
        deadline: When time is up, by `time.monotonic`; None for never.
    """

    def __init__(self, trial: Trial, limit: float | None, deadline: float | None) -> None:
        self.trial, self.limit, self.deadline = trial, limit, deadline
        self.score: Callable[[], float] = lambda: 0.0
        self._earlier: list[float] = []
        self._started = time.monotonic()
        self._reported = 0

    def begin(self, score: Callable[[], float], earlier: Sequence[float] = ()) -> None:
        """Watch another training of the same trial.

        Args:
            score: The mean log-likelihood of held-out data at this moment.
            earlier: The values of the trainings before.
        """
        self.score, self._earlier, self._reported = score, list(earlier), 0

    def on_step_end(self, state: TrainingState) -> None:
        """Look at the clock."""
        self.check_time()

    def on_epoch_end(self, state: TrainingState) -> None:
        """Report."""
        self.report(state.epoch, state.epochs)

    def check_time(self) -> None:
        """Raise if the trial takes too long."""
        from optuna import TrialPruned

        now = time.monotonic()
        if self.deadline is not None and now > self.deadline:
            raise OutOfTimeError("the time budget was used up.")
        if self.limit is not None and now - self._started > self.limit:
            raise TrialPruned(f"it took longer than {self.limit:.0f} s, {SLOW:g} times the median")

    def report(self, epoch: int, epochs: int) -> None:
        """Report the held-out log-likelihood at ten moments of training; raise if the median of others is better.

        Args:
            epoch: The number of epochs done.
            epochs: The number of all epochs.
        """
        from optuna import TrialPruned

        self.check_time()
        moment = epoch * REPORTS // epochs
        if moment <= self._reported or epoch >= epochs:
            return
        self._reported = moment
        with suppress(InvalidInputError):  # some methods cannot predict before training has ended
            scores = [*self._earlier, self.score()]
            self.trial.report(sum(scores) / len(scores), REPORTS * len(self._earlier) + moment)
            if self.trial.should_prune():
                raise TrialPruned(f"at {moment / REPORTS:.0%} of training it was worse than the median of the others")


def time_limit(trials: Sequence[FrozenTrial]) -> float | None:
    """The most seconds that a trial may take; None as long as too few are complete.

    Args:
        trials: The trials so far.
    """
    complete = [each.duration for each in trials if each.state.name == "COMPLETE" and each.duration is not None]
    if len(complete) < STARTUP:
        return None
    return SLOW * statistics.median(duration.total_seconds() for duration in complete)


def parse_duration(text: str) -> float:
    """The seconds in a text such as "90", "30m" or "1.5h"."""
    units = {"s": 1, "m": 60, "h": 3600, "d": 86400}
    number, unit = (text[:-1], text[-1]) if text and text[-1] in units else (text, "s")
    try:
        seconds = float(number) * units[unit]
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise InvalidInputError(f"time_budget={text!r} must be a time such as 90 (seconds), 30m or 2h.")
    return seconds
