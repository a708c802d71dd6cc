"""The overall progress of many runs: a bar on a terminal, otherwise a part of each line."""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from fsvi.parallel import Workers
from fsvi.training.progress import is_watched

_MINUTE, _HOUR = 60.0, 3600.0


class SweepProgress:
    """Counts runs and estimates the time left.

    Args:
        total: The number of runs.
        existing: How many of them exist already.
        workers: The processes that train; None if it is this one, which shows a bar for each training.
        tell: A function that shows a line of text.
    """

    def __init__(self, total: int, existing: int, workers: Workers | None, tell: Callable[[str], None]) -> None:
        self.total, self.existing, self.failed, self.done = total, existing, 0, existing
        self.jobs = 1 if workers is None else workers.jobs
        self._tell = tell
        self._started = time.perf_counter()
        self._watched = workers is not None and is_watched()
        columns = (TextColumn("runs"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
        self._bar = Progress(*columns, console=Console(stderr=True), disable=not self._watched)
        self._task = self._bar.add_task(self.text, total=total, completed=existing)

    @property
    def text(self) -> str:
        """How many runs are running and have failed, and the time left."""
        left = self.total - self.done
        parts = [f"{min(self.jobs, left)} running"] if left else []
        parts += [f"{self.failed} failed"] if self.failed else []
        made = self.done - self.existing
        if left and made:
            seconds = (time.perf_counter() - self._started) / made * left
            parts.append(f"about {format_duration(seconds)} left")
        return ", ".join(parts)

    def tell(self, text: str) -> None:
        """Show a line of text."""
        self._tell(text)

    def advance(self, text: str, runs: int, failed: bool) -> None:
        """Runs have ended.

        Args:
            text: What to say about them.
            runs: How many.
            failed: Whether they failed.
        """
        self.done += runs
        self.failed += runs * failed
        state = self.text
        self._bar.update(self._task, completed=self.done, description=state)
        more = f" ({state})" if state and not self._watched else ""
        self._tell(f"[{self.done}/{self.total}] {text}{more}")

    def __enter__(self) -> SweepProgress:
        if self.existing:
            self._tell(f"{self.existing} of {self.total} results exist already.")
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()


def format_duration(seconds: float) -> str:
    """A readable duration, such as "5 min"."""
    if seconds < _MINUTE:
        return f"{seconds:.0f} s"
    return f"{seconds / _MINUTE:.0f} min" if seconds < _HOUR else f"{seconds / _HOUR:.1f} h"
