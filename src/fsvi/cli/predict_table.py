"""`fsvi predict` for tables: a model that `fsvi fit` made, and new rows in a CSV or Parquet file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fsvi.cli.predict import Predictions
from fsvi.errors import InvalidInputError
from fsvi.estimators import FSVIClassifier
from fsvi.likelihoods import concatenate
from fsvi.referral import Referral
from fsvi.scoring.arrays import Sampling
from fsvi.scoring.rows import predict_rows, row_columns, tell_once, unknown_columns
from fsvi.serialization import building_from
from fsvi.tables import read_chunks, read_table
from fsvi.tables.table import label

_ROWS = 10_000
Tell = Callable[[str], None]


def predict_table(
    model: Any, path: Path, sampling: Sampling, tell: Tell, referral: Referral | None = None
) -> Predictions:
    """Predict every row of a file, part by part, and report rows and values that are unlike training.

    The result has a row for each row of the file; its column `line` says which.

    Args:
        model: The estimator.
        path: The table.
        sampling: How to predict.
        tell: A function that shows a line of text.
        referral: The rule that decides which predictions to keep; None keeps all.
    """
    parts: list[dict[str, NDArray[Any]]] = []
    told: set[str] = set()
    with building_from(path):
        for file in read_chunks(path, _ROWS):
            if (sentence := file.skipped_sentence()) is not None:
                tell(sentence)
            if len(file.table):
                if not parts and (sentence := unknown_columns(model, file.table.names)) is not None:
                    tell(sentence)
                encoded, surprises = model.encoder_.examine(file.table)
                tell_once(surprises, told, tell)
                columns = row_columns(model, model._standardized(encoded), sampling, referral)
                parts.append({"line": file.table.lines, **columns})
    if not parts:
        raise InvalidInputError(f"{path} has no row with the right number of fields: nothing can be predicted.")
    return Predictions({name: np.concatenate([part[name] for part in parts]) for name in parts[0]}, referral)


def calibrate_table(model: Any, path: Path, sampling: Sampling, target_accuracy: float, confidence: float) -> Referral:
    """Choose the threshold for referral on held-out rows in a file with the target column.

    Args:
        model: The estimator.
        path: The table.
        sampling: How to predict.
        target_accuracy: The accuracy that the kept predictions should have.
        confidence: The confidence with which they have it.
    """
    if not isinstance(model, FSVIClassifier):
        raise InvalidInputError("the model predicts real numbers: --refer-for is for classes, so leave it out.")
    with building_from(path):
        table = read_table(path).table
        if model.target_name_ not in table.names:
            raise InvalidInputError(f"the column {model.target_name_!r} with the right answers is missing.")
        encoded, _ = model.encoder_.examine(table)
        labels = [label(value) for value in table.columns[model.target_name_].tolist()]
        parts = [predict_rows(model, part, sampling).summary() for part in model._standardized(encoded).split(_ROWS)]
        return Referral(concatenate(parts), model._as_indices(np.array(labels)), target_accuracy, confidence)
