"""`fsvi predict` for arrays: predictions of a saved method for inputs in a file, and which of them to refer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from fsvi.cli.files import Columns, read_examples, read_inputs
from fsvi.errors import InvalidInputError
from fsvi.likelihoods import Predictive, concatenate
from fsvi.referral import Referral
from fsvi.scoring.arrays import Sampling, Trained, as_inputs, table_of
from fsvi.serialization import building_from

_ROWS = 10_000
"""Inputs predicted at a time, all their draws in memory."""


@dataclass(frozen=True)
class Predictions:
    """Predictions for a file.

    Attributes:
        columns: A table with one row per input.
        referral: The rule that decided which predictions to keep; None if all are kept.
    """

    columns: Columns
    referral: Referral | None

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    @property
    def kept(self) -> int:
        """The number of predictions to keep."""
        return int((self.columns["decision"] == "keep").sum()) if self.referral else len(self)

    def document(self) -> dict[str, Any]:
        """A summary of the table for other programs."""
        if self.referral is None:
            return {"inputs": len(self)}
        return {
            "inputs": len(self),
            "kept": self.kept,
            "referred": len(self) - self.kept,
            "referral": self.referral.to_dict(),
        }

    def __str__(self) -> str:
        if self.referral is None:
            return f"{len(self)} predictions."
        referred = len(self) - self.kept
        return f"{len(self)} predictions: {self.kept} to keep, {referred} to refer. {self.referral}"


def predict_file(method: Trained, inputs: Path, sampling: Sampling, referral: Referral | None = None) -> Predictions:
    """Predict the inputs in a file, and decide which predictions to keep.

    Args:
        method: The model.
        inputs: The file.
        sampling: How to predict.
        referral: The rule that decides; None keeps all.
    """
    with building_from(inputs):
        x = as_inputs(method, read_inputs(inputs), inputs)
        tables = [table_of(p, referral) for p in _predict(method, x, sampling)]
    return Predictions({name: np.concatenate([table[name] for table in tables]) for name in tables[0]}, referral)


def calibrate(method: Trained, path: Path, sampling: Sampling, target_accuracy: float, confidence: float) -> Referral:
    """Choose the threshold for referral on held-out inputs x and labels y in a .npz file.

    Args:
        method: The model.
        path: The file.
        sampling: How to predict.
        target_accuracy: The accuracy that the kept predictions should have.
        confidence: The confidence with which they have it.
    """
    x, y = read_examples(path)
    with building_from(path):
        inputs = as_inputs(method, x, path)
        parts = [p.summary() for p in _predict(method, inputs, sampling)]
        if parts[0].is_numeric:
            raise InvalidInputError("the model predicts real numbers: --refer-for is for classes, so leave it out.")
        return Referral(concatenate(parts), y, target_accuracy, confidence)


def _predict(method: Trained, x: Tensor, sampling: Sampling) -> Iterator[Predictive]:
    """Predictions for one part of the inputs at a time: all draws for a large file would not fit into memory."""
    rows = max(sampling.batch_size, _ROWS // sampling.batch_size * sampling.batch_size)
    for part in x.split(rows):
        yield method.predict(part, sampling.samples, sampling.seed, sampling.batch_size)
