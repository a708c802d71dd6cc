"""Callbacks that write the progress of training to files.

Any other logger takes three lines, for example for Weights & Biases:

    def log(state):
        wandb.log(state.history.latest(), step=state.epoch)

    fsvi.fit(method, (x, y), callbacks=[log])
"""

from __future__ import annotations

import csv
import io
import os
from pathlib import Path

from fsvi.errors import InvalidInputError
from fsvi.serialization import write_bytes
from fsvi.training.callbacks import Callback, TrainingState


class CSV(Callback):
    """One row per epoch in a CSV file: the epoch, the loss, its terms and the validation result.

    The file is written again at the end of each epoch, so a resumed training leaves no row out or twice.

    Args:
        path: The file, which is replaced if it exists.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def on_epoch_end(self, state: TrainingState) -> None:
        """Write all rows."""
        history = state.history
        columns = {"loss": history.loss, **history.terms, "val": history.validation}
        columns = {name: values for name, values in columns.items() if values}
        rows = zip(range(1, history.epochs + 1), *columns.values(), strict=True)
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([["epoch", *columns], *rows])
        write_bytes(self.path, text.getvalue().encode())


class TensorBoard(Callback):
    """Writes the loss, its terms, the validation result and the learning rate of each epoch for TensorBoard.

    It needs the package `tensorboard`.

    Args:
        folder: The folder of the run.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise InvalidInputError(
                "fsvi.loggers.TensorBoard needs the package tensorboard: pip install tensorboard."
            ) from error
        self.folder = os.fspath(folder)
        self._open = SummaryWriter

    def on_train_begin(self, state: TrainingState) -> None:
        """Open the file; values of steps that are made again after an interruption are replaced."""
        self._writer = self._open(self.folder, purge_step=state.step if state.step else None)

    def on_epoch_end(self, state: TrainingState) -> None:
        """Write the epoch's means, at the number of steps done."""
        for name, value in {**state.history.latest(), "lr": state.lr}.items():
            self._writer.add_scalar(f"epoch/{name}", value, state.step)

    def on_train_end(self, state: TrainingState) -> None:
        """Close the file."""
        self._writer.close()
