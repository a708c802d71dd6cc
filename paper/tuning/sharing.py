"""Several processes that work on one study: who does which trial, and which trials must be repeated."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paper.runner.locks import alone, is_being_made, lock_path
from paper.tuning.storage import Place

if TYPE_CHECKING:
    from optuna import Study, Trial
    from optuna.trial import FrozenTrial

WORKER, PULSE, AGAIN, REASON = "worker", "pulse", "again", "reason"
"""Attributes of trials: the process that makes it, a sign of life, the trial that it repeats, why it was pruned."""
ENDED = ("COMPLETE", "PRUNED")
"""States of trials that ended by themselves."""
_PULSE_INTERVAL, _STALE_AFTER = 20.0, 90.0


@dataclass
class SharedStudy:
    """A study and the process that works on it.

    A worker holds a lock as long as it lives. A running trial whose worker's lock is free was interrupted. Workers that
    share a database but no folder cannot see each other's locks: the trial of such a worker counts as interrupted if
    it shows no sign of life for 90 seconds.

    Args:
        study: The study.
        place: Its storage.
        reachable: Of the settings of a trial, those that can be asked for again.
        worker: The name of this process.
    """

    study: Study
    place: Place
    reachable: Callable[[Mapping[str, Any]], dict[str, Any]]
    worker: str = field(default_factory=lambda: secrets.token_hex(8))
    _seen: dict[int, tuple[Any, float]] = field(default_factory=dict)

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Hold the lock that shows that this process lives."""
        with alone(self._folder, self._path(self.worker)):
            yield
        self._forget(self.worker)  # not after an error: the lock shows others what was interrupted

    def next_trial(self, trials: int) -> Trial | None:
        """The next trial to make; None if other processes make the last ones. Call it in turn.

        Args:
            trials: The number of trials that the study is to have.
        """
        self.repeat_interrupted()
        if len(self.ended()) + len(self._running()) >= trials:
            return None
        trial = self.study.ask()
        trial.set_user_attr(WORKER, self.worker)
        if self._is_surplus(trial, trials):  # of two workers without a common lock, the later one steps back
            self._fail(trial.number)
            return None
        return trial

    def ended(self) -> list[FrozenTrial]:
        """The trials that ended by themselves, with a value or because they were pruned."""
        return [trial for trial in self.study.trials if trial.state.name in ENDED]

    def repeat_interrupted(self) -> None:
        """Queue the trials of workers again that do not live any more.

        Only once: otherwise settings that kill the process would be tried first every time.
        """
        for trial in self._running():
            if not self._is_interrupted(trial) or not self._fail(trial.number):
                continue
            if AGAIN not in trial.user_attrs:
                self.repeat(trial, {AGAIN: trial.number})
            if trial.user_attrs.get(WORKER, self.worker) != self.worker:
                self._forget(trial.user_attrs[WORKER])

    def repeat(self, trial: FrozenTrial, attributes: Mapping[str, Any]) -> None:
        """Queue the settings of a trial again.

        Args:
            trial: The trial.
            attributes: Attributes of the new trial.
        """
        wanted = trial.system_attrs.get("fixed_params", {})  # of a queued trial, which may have been interrupted early
        self.study.enqueue_trial(self.reachable({**wanted, **trial.params}), user_attrs=dict(attributes))

    def give_back(self, trial: Trial) -> None:
        """End a trial that ran out of time, and queue its settings for the next time."""
        frozen = self.study.trials[trial.number]
        attributes = {name: frozen.user_attrs[name] for name in (AGAIN,) if name in frozen.user_attrs}
        if self._fail(trial.number):
            self.repeat(frozen, attributes)

    @contextmanager
    def pulse(self, trial: Trial) -> Iterator[None]:
        """Show signs of life while a trial runs, if other workers cannot see this one's lock."""
        if self.place.file is not None:
            yield
            return
        stopped = threading.Event()

        def beat() -> None:
            count = 0
            while not stopped.wait(_PULSE_INTERVAL):
                count += 1
                with suppress(Exception):  # the next sign may get through
                    trial.set_user_attr(PULSE, count)

        thread = threading.Thread(target=beat, daemon=True)
        thread.start()
        try:
            yield
        finally:
            stopped.set()
            thread.join()

    def _running(self) -> list[FrozenTrial]:
        return [trial for trial in self.study.trials if trial.state.name == "RUNNING"]

    def _is_interrupted(self, trial: FrozenTrial) -> bool:
        worker = trial.user_attrs.get(WORKER)
        if worker == self.worker:
            return True  # this process makes one trial at a time, and is about to begin another
        if worker is not None and lock_path(self._folder, self._path(worker)).exists():
            return not is_being_made(self._folder, self._path(worker))
        if self.place.file is not None:
            return True  # its lock would be there; without a name, it was killed before it could give one
        return self._is_stale(trial)

    def _is_stale(self, trial: FrozenTrial) -> bool:
        """Whether a trial has shown no sign of life for long, by this process's own clock."""
        sign = trial.user_attrs.get(PULSE)
        before, since = self._seen.get(trial.number, (object(), 0.0))
        if sign != before:
            self._seen[trial.number] = sign, time.monotonic()
            return False
        return time.monotonic() - since > _STALE_AFTER

    def _is_surplus(self, trial: Trial, trials: int) -> bool:
        earlier = [each for each in (*self.ended(), *self._running()) if each.number < trial.number]
        return len(earlier) >= trials

    def _fail(self, number: int) -> bool:
        """End a trial without a value; False if another process has ended it."""
        from optuna.exceptions import UpdateFinishedTrialError
        from optuna.trial import TrialState

        try:
            self.study.tell(number, state=TrialState.FAIL)
        except (UpdateFinishedTrialError, ValueError):
            return False
        return True

    @property
    def _folder(self) -> Path:
        return self.place.lock_folder

    def _path(self, worker: str) -> Path:
        return self._folder / "workers" / worker

    def _forget(self, worker: str) -> None:
        with suppress(OSError):
            lock_path(self._folder, self._path(worker)).unlink(missing_ok=True)
