"""A progress bar on terminals."""

from __future__ import annotations

import os
import sys

from fsvi.training.callbacks import Callback, TrainingState


class ProgressBar(Callback):
    """The number of epochs done, the terms of the loss and the time left, on standard error."""

    def __init__(self) -> None:
        # imported here because it draws from Python's global random numbers
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
        self._bar = Progress(TextColumn("epoch"), *columns, console=Console(stderr=True))

    def on_train_begin(self, state: TrainingState) -> None:
        """Start at the epochs that are done already."""
        self._task = self._bar.add_task("", total=state.epochs, completed=state.epoch)
        self._bar.start()

    def on_epoch_end(self, state: TrainingState) -> None:
        """Show the newest values of the loss and its terms."""
        text = " ".join(f"{name} {value:.4g}" for name, value in state.history.latest().items())
        self._bar.update(self._task, completed=state.epoch, description=text)

    def on_train_end(self, state: TrainingState) -> None:
        """Leave the terminal as it was."""
        self._bar.stop()


def is_watched() -> bool:
    """Whether standard error is a terminal that somebody watches."""
    return sys.stderr is not None and sys.stderr.isatty() and not os.environ.get("CI")
