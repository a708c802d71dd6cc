"""A progress bar for terminals, silence elsewhere."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from types import TracebackType

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


class ProgressBar:
    """Epochs done, the loss's terms and the time left."""

    def __init__(self, epochs: int, show: bool | None = None) -> None:
        visible = sys.stderr.isatty() and not os.environ.get("CI") if show is None else show
        columns = (
            TextColumn("epoch"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.description}"),
            TimeRemainingColumn(),
        )
        self._bar = Progress(*columns, disable=not visible, transient=False)
        self._task = self._bar.add_task("", total=epochs)

    def update(self, epoch: int, values: Mapping[str, float]) -> None:
        """Show the state after `epoch` epochs."""
        text = " ".join(f"{name} {value:.4g}" for name, value in values.items())
        self._bar.update(self._task, completed=epoch, description=text)

    def __enter__(self) -> ProgressBar:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._bar.stop()
