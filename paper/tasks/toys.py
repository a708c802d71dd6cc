"""What the toy tasks share: their sweep, the epochs of each profile, and predictions as lists of a result file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

from fsvi.likelihoods import Predictive
from fsvi.methods import Method
from paper.experiment import Order
from paper.task import Sweep

TOY_SWEEP = Sweep("toy", (("fsvi", None), ("mfvi", None), ("ensemble:map", None)))
_EPOCHS = {"quick": 500, "smoke": 5}


def toy_fit_settings(order: Order, **own: Any) -> dict[str, Any]:
    """A recipe's own settings of `fit`, shortened by the profile and overridden by the order."""
    shortened = {"epochs": _EPOCHS[order.profile]} if order.profile in _EPOCHS else {}
    return {**own, **shortened, **order.fit_settings}


def predict(method: Method, x: Tensor) -> Predictive:
    """The predictive distribution with the number of draws that all toy tasks use."""
    return method.predict(x, num_samples=100, batch_size=8192)


def mean(values: Tensor) -> float:
    """The mean of numbers or truth values."""
    return float(values.float().mean())


def as_lists(values: Mapping[str, Any]) -> dict[str, Any]:
    """Tensors as a result file keeps them, rounded; mappings keep their form, and texts stay texts."""
    return {
        name: as_lists(value)
        if isinstance(value, Mapping)
        else value
        if isinstance(value, str)
        else np.asarray(value.detach().float(), np.float64).round(4).tolist()
        for name, value in values.items()
    }
