"""Callbacks that write the progress of training to files.

Any other logger takes three lines, for example for Weights & Biases:

    def log(state):
        wandb.log(state.history.latest(), step=state.epoch)

    fsvi.fit(method, (x, y), callbacks=[log])
"""

from __future__ import annotations

import csv
import os
from pathlib import Path
from typing import Any

from fsvi.errors import InvalidInputError
from fsvi.training.callbacks import Callback, TrainingState


class CSV(Callback):
    """One row per epoch in a CSV file: the epoch, the learning rate, the loss, its terms and the validation result.

    The file is written again at the end of each epoch, so a resumed training leaves no row out or twice.

    Args:
        path: The file, which is replaced if it exists.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._rates: list[float] = []

    def on_epoch_end(self, state: TrainingState) -> None:
        """Write all rows."""
        self._rates.append(state.lr)
        history = state.history
        columns = {"lr": self._rates, "loss": history.loss, **history.terms, "val": history.validation}
        columns = {name: values for name, values in columns.items() if values}
        rows = zip(range(1, history.epochs + 1), *columns.values(), strict=True)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open(self.path, "w", newline="", encoding="utf-8") as file:
                writer = csv.writer(file)
                writer.writerows([["epoch", *columns], *rows])
        except OSError as error:
            raise InvalidInputError(f"{self.path} cannot be written: {error.strerror}.") from error

    def state_dict(self) -> dict[str, Any]:
        """The learning rates so far."""
        return {"rates": list(self._rates)}

    def load_state_dict(self, state: Any) -> None:
        """Take the learning rates back."""
        self._rates = list(state["rates"])


class TensorBoard(Callback):
    """Writes the loss, its terms, the validation result and the learning rate for TensorBoard.

    It needs the package `tensorboard`.

    Args:
        folder: The folder of the run.
        every: Write the terms of every so many steps too; None writes epochs only.
    """

    def __init__(self, folder: str | os.PathLike[str], every: int | None = None) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise InvalidInputError(
                "fsvi.loggers.TensorBoard needs the package tensorboard: pip install tensorboard."
            ) from error
        self.folder, self.every = os.fspath(folder), every
        self._open = SummaryWriter
        self._writer: Any = None

    def on_train_begin(self, state: TrainingState) -> None:
        """Open the file; values of steps that are made again after an interruption are replaced."""
        self._writer = self._open(self.folder, purge_step=state.step if state.step else None)

    def on_step_end(self, state: TrainingState) -> None:
        """Write the terms of a step."""
        if self.every is not None and state.step % self.every == 0:
            for name, value in state.terms.items():
                self._writer.add_scalar(f"step/{name}", value, state.step)

    def on_epoch_end(self, state: TrainingState) -> None:
        """Write the epoch's means, at the number of steps done."""
        for name, value in {**state.history.latest(), "lr": state.lr}.items():
            self._writer.add_scalar(f"epoch/{name}", value, state.step)

    def on_train_end(self, state: TrainingState) -> None:
        """Close the file."""
        if self._writer is not None:
            self._writer.close()
