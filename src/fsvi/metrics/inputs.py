"""Checks of the inputs of metrics: class probabilities, labels and scores.

Metrics are computed in float64 on the CPU, so that sums over a large test set stay accurate.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import torch
from torch import Tensor

from fsvi.errors import InvalidInputError
from fsvi.likelihoods import Predictive
from fsvi.validation import as_tensor, check_labels, check_type

Probabilities: TypeAlias = Predictive | Tensor
"""A prediction of classes, or its class probabilities (n, classes)."""

_ROUNDING = 1e-3
"""The tolerance for sums of probabilities; half precision passes."""


def check_predictions(p: Any, y: Any) -> tuple[Tensor, Tensor]:
    """Class probabilities (n, classes) and labels (n,).

    Args:
        p: Predictions, or class probabilities.
        y: Labels.
    """
    probabilities = check_probabilities(p)
    y = check_labels(as_tensor("y", y).cpu(), probabilities.shape[1])
    if len(y) != len(probabilities):
        raise InvalidInputError(f"there are {len(probabilities)} predictions, but {len(y)} labels.")
    return probabilities, y


def check_probabilities(p: Any) -> Tensor:
    """Class probabilities (n, classes), n ≥ 1, each row a distribution."""
    given = p.class_probabilities() if isinstance(p, Predictive) else p
    values = as_tensor("p", given, torch.float64).detach().cpu()
    if values.dim() != 2 or 0 in values.shape:
        raise InvalidInputError(f"p has shape {tuple(values.shape)}; probabilities (n, classes) are needed, n ≥ 1.")
    wrong = ((values < 0) | ~values.isfinite()).any(1) | ((values.sum(1) - 1).abs() > _ROUNDING)
    if bool(wrong.any()):
        row = int(wrong.nonzero()[0])
        raise InvalidInputError(f"row {row} of p is {values[row].tolist()}, not probabilities that sum to 1.")
    return values


def check_scores(name: str, scores: Any) -> Tensor:
    """Finite scores (n,), n ≥ 1.

    Args:
        name: The argument's name, for the error.
        scores: What the user gave.
    """
    values = as_tensor(name, scores, torch.float64).detach().cpu()
    if values.dim() != 1 or len(values) == 0:
        raise InvalidInputError(f"{name} has shape {tuple(values.shape)}; one score per input is needed, (n,), n ≥ 1.")
    if not bool(values.isfinite().all()):
        raise InvalidInputError(f"{name} has {int((~values.isfinite()).sum())} NaN or infinite values.")
    return values


def check_prediction(p: Any) -> Predictive:
    """A prediction with at least one input."""
    check_type("p", p, Predictive, "a prediction of classes or numbers, such as method.predict(x)")
    if p.mean.shape[0] == 0:  # `len` would fix the number of examples in a graph that is exported
        raise InvalidInputError("p has no predictions: at least one is needed.")
    prediction: Predictive = p
    return prediction


def total_uncertainty(p: Any) -> Tensor:
    """The default ranking of inputs: `Predictive.score`, or the entropy where `p` are plain probabilities."""
    if isinstance(p, Predictive):
        return check_scores("p.score", check_prediction(p).score)
    return torch.special.entr(check_probabilities(p)).sum(1)
