"""How many rows are scored: a bar on terminals, a line now and then elsewhere."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from fsvi.scoring.partitions import Partition
from fsvi.training.progress import is_watched

_EVERY = 0.5
_LINE_EVERY = 30.0


class RowProgress:
    """Watches partitions while this and other processes score them.

    Args:
        partitions: The partitions to score.
        total: The number of their rows; None if their files do not say it.
        tell: A function that shows a line of text.
        show: Whether to show a bar; None shows it on a terminal.
    """

    def __init__(
        self, partitions: Sequence[Partition], total: int | None, tell: Callable[[str], None], show: bool | None = None
    ) -> None:
        self._waiting = {partition.name: partition for partition in partitions}
        self._files, self._total, self._tell = len(partitions), total, tell
        self._done = self._old = 0
        is_visible = is_watched() if show is None else show
        columns = (BarColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
        self._bar = Progress(*columns, console=Console(stderr=True), disable=not is_visible)
        self._task = self._bar.add_task("", total=total)
        self._says = show is None and not is_visible
        self._begun = self._said = time.monotonic()
        self._lock, self._ended = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def finish(self, name: str, rows: int, is_new: bool = True) -> None:
        """A partition is done.

        Args:
            name: Its name.
            rows: Its number of rows.
            is_new: Whether they were scored now; the speed is that of new rows.
        """
        with self._lock:
            self._waiting.pop(name, None)
            self._done += rows
            self._old += 0 if is_new else rows

    def __enter__(self) -> RowProgress:
        self._bar.start()
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()
        self._update()
        self._bar.stop()

    def _watch(self) -> None:
        while not self._ended.wait(_EVERY):
            self._update()

    def _update(self) -> None:
        with self._lock:
            waiting, done, old = list(self._waiting.values()), self._done, self._old
        rows = done + sum(map(_rows, waiting))
        now = time.monotonic()
        speed = (rows - old) / max(now - self._begun, 1e-9)
        of = "" if self._total is None else f" of {self._total:,}"
        text = f"{rows:,}{of} rows, {self._files - len(waiting)} of {self._files} files, {speed:,.0f} rows per second"
        self._bar.update(self._task, completed=rows, description=text)
        if self._says and now - self._said >= _LINE_EVERY:
            self._said = now
            self._tell(f"{text}.")


def _rows(partition: Partition) -> int:
    """The rows done of a partition that somebody is working on; 0 if nobody is."""
    try:
        return int(partition.progress_path.read_text())
    except (OSError, ValueError):
        return 0
