"""A progress bar on terminals."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


class ProgressBar:
    """The number of epochs done, the terms of the loss and the time left, on standard error.

    Args:
        epochs: The total number of epochs.
        show: Whether to show the bar; None shows it on a terminal.
    """

    def __init__(self, epochs: int, show: bool | None = None) -> None:
        columns = (
            TextColumn("epoch"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.description}"),
            TimeRemainingColumn(),
        )
        visible = is_watched() if show is None else show
        self._bar = Progress(*columns, console=Console(stderr=True), disable=not visible)
        self._task = self._bar.add_task("", total=epochs)

    def update(self, epoch: int, values: Mapping[str, float]) -> None:
        """Show the current state.

        Args:
            epoch: The number of epochs done.
            values: The newest values of the loss and its terms, by name.
        """
        text = " ".join(f"{name} {value:.4g}" for name, value in values.items())
        self._bar.update(self._task, completed=epoch, description=text)

    def __enter__(self) -> ProgressBar:
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()


def is_watched() -> bool:
    """Whether standard error is a terminal that somebody watches."""
    return sys.stderr is not None and sys.stderr.isatty() and not os.environ.get("CI")
