"""A callback that writes the progress of training to a file.

Any other logger takes three lines, for example for TensorBoard:

    writer = torch.utils.tensorboard.SummaryWriter("run")

    def log(state):
        for name, value in state.history.latest().items():
            writer.add_scalar(name, value, state.epoch)

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
