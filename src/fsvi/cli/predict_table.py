"""`fsvi predict` for tables: a model that `fsvi fit` made, and new rows in a CSV or Parquet file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fsvi.cli.predict import Predictions, Sampling, make_net, table_of
from fsvi.errors import InvalidInputError
from fsvi.estimators import FSVIClassifier
from fsvi.estimators.base import Estimator
from fsvi.networks.devices import find_device
from fsvi.predictive import Predictive, concatenate
from fsvi.referral import Referral
from fsvi.serialization import building_from
from fsvi.tables import Table, read_chunks, read_table
from fsvi.tables.table import label

_ROWS = 10_000
_ALPHA = 0.05
_MOST_TOLD = 20
Tell = Callable[[str], None]


def load_estimator(path: Path, net: str | None, device: str | None = None) -> Any:
    """The estimator in a file.

    Args:
        path: The file.
        net: Names the function that makes the network, as `module:function`; None uses the file's description of it.
        device: Where to predict; None for the CPU.
    """
    estimator = Estimator.load(path, None if net is None else make_net(net))
    if device is not None:
        estimator.method_.to(find_device(device))
    return estimator


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
                if not parts:
                    _tell_unknown(model, file.table, tell)
                encoded, surprises = model.encoder_.examine(file.table)
                _tell_once(surprises, told, tell)
                columns = _columns(model, model._standardized(encoded), sampling, referral)
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
        parts = [_predict(model, part, sampling).summary() for part in model._standardized(encoded).split(_ROWS)]
        return Referral(concatenate(parts), model._as_indices(np.array(labels)), target_accuracy, confidence)


def _tell_unknown(model: Any, table: Table, tell: Tell) -> None:
    """Name columns that the model does not know."""
    unknown = [name for name in model.encoder_.check_names(table.names) if name != model.target_name_]
    if unknown:
        tell(f"Not used, because the model does not know them: columns {', '.join(map(repr, unknown))}.")


def _tell_once(surprises: list[str], told: set[str], tell: Tell) -> None:
    """Tell what is new; counts differ from part to part, so a column's first sentence stands for all."""
    for sentence in surprises:
        column = " ".join(sentence.split(" ")[:4])
        if column not in told and len(told) < _MOST_TOLD:
            told.add(column)
            tell(sentence)


def _predict(model: Any, inputs: Any, sampling: Sampling) -> Predictive:
    p: Predictive = model._calibrated(model._in_target_units(model._predict(inputs, sampling.samples, sampling.seed)))
    return p


def _columns(model: Any, inputs: Any, sampling: Sampling, referral: Referral | None) -> dict[str, NDArray[Any]]:
    raw = model._in_target_units(model._predict(inputs, sampling.samples, sampling.seed))
    columns = table_of(model._calibrated(raw), referral)
    if not raw.is_numeric:
        columns["label"] = model.classes_[columns["label"]]
        if model._is_conformal:
            columns["set_95"] = _set_names(model, model.calibration_.sets(raw, _ALPHA).numpy())
    elif model._is_conformal:
        intervals = model.calibration_.intervals(raw, _ALPHA)
        columns["lower"], columns["upper"] = intervals.lower[:, 0].numpy(), intervals.upper[:, 0].numpy()
    return columns


def _set_names(model: Any, sets: NDArray[np.bool_]) -> NDArray[Any]:
    """Prediction sets as text: the classes with bars between them."""
    return np.array(["|".join(model.classes_[row].tolist()) for row in sets], dtype=object)
