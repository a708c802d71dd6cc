"""Predictions of an estimator in a file for the rows of tables."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fsvi.estimators.base import Estimator
from fsvi.likelihoods import Predictive
from fsvi.networks.devices import find_device
from fsvi.referral import Referral
from fsvi.scoring.arrays import Sampling, make_net, table_of

_ALPHA = 0.05
_MOST_TOLD = 20


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


def unknown_columns(model: Any, names: Collection[str]) -> str | None:
    """One sentence about columns that the model does not use, or None; a table that lacks some is refused.

    Args:
        model: The estimator.
        names: The columns of a table.
    """
    unknown = [name for name in model.encoder_.check_names(names) if name != model.target_name_]
    if not unknown:
        return None
    return f"Not used, because the model does not know them: columns {', '.join(map(repr, unknown))}."


def predict_rows(model: Any, inputs: Any, sampling: Sampling) -> Predictive:
    """The prediction in the targets' units, calibrated if the model is.

    Args:
        model: The estimator.
        inputs: Rows as the network takes them.
        sampling: How to predict.
    """
    p: Predictive = model._calibrated(model._in_target_units(model._predict(inputs, sampling.samples, sampling.seed)))
    return p


def row_columns(model: Any, inputs: Any, sampling: Sampling, referral: Referral | None) -> dict[str, NDArray[Any]]:
    """Predictions as columns of a table: labels by their names, conformal sets or intervals after a calibration.

    Args:
        model: The estimator.
        inputs: Rows as the network takes them.
        sampling: How to predict.
        referral: The rule that decides which predictions to keep; None adds no such column.
    """
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
    return np.array(["|".join(map(str, model.classes_[row].tolist())) for row in sets], dtype=object)


def tell_once(surprises: Iterable[str], told: set[str], tell: Callable[[str], object]) -> None:
    """Tell what is new; counts differ from part to part, so a column's first sentence stands for all.

    Args:
        surprises: Sentences.
        told: What was told already; grows.
        tell: A function that shows a line of text.
    """
    for sentence in surprises:
        column = " ".join(sentence.split(" ")[:4])
        if column not in told and len(told) < _MOST_TOLD:
            told.add(column)
            tell(sentence)
