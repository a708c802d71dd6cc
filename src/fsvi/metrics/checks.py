"""Checks of the inputs of metrics: predictions with their targets, and scores.

Outputs at every position of an input count as inputs of their own. Missing targets do not count, as in `fsvi.fit`.
Metrics are computed in float64 on the CPU, so that sums over a large test set stay accurate.
"""

from __future__ import annotations

from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor

from fsvi.errors import InvalidInputError
from fsvi.likelihoods import Predictive
from fsvi.likelihoods.predictive import as_labels, as_numbers
from fsvi.validation import as_tensor

Probabilities: TypeAlias = Predictive | Tensor
"""A prediction of classes, or its class probabilities (n, positions..., classes)."""
P = TypeVar("P", bound=Predictive)

_ROUNDING = 1e-3
"""The tolerance for sums of probabilities; half precision passes."""


def check_predictions(p: Any, y: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Class probabilities (rows, classes) and labels (rows,) where there is a label, and where that is."""
    probabilities = check_probabilities(p)
    y, observed = as_labels(as_tensor("y", y).cpu(), probabilities, getattr(p, "ignore_index", None))
    if not bool(observed.any()):
        raise InvalidInputError("y has no labels: at least one is needed.")
    return probabilities[observed], y[observed], observed


def check_probabilities(p: Any) -> Tensor:
    """Class probabilities (n, positions..., classes), n ≥ 1, each row a distribution."""
    given = p.class_probabilities() if isinstance(p, Predictive) else p
    values = as_tensor("p", given, torch.float64).detach().cpu()
    if values.dim() < 2 or 0 in values.shape:
        raise InvalidInputError(f"p has shape {tuple(values.shape)}; probabilities (n, classes) are needed, n ≥ 1.")
    rows = values.flatten(0, -2)
    right = (rows >= 0).all(1) & ((rows.sum(1) - 1).abs() <= _ROUNDING)
    if not bool(right.all()):
        row = int((~right).nonzero()[0])
        raise InvalidInputError(f"row {row} of p is {rows[row].tolist()}, not probabilities that sum to 1.")
    return values


def check_scores(name: str, scores: Any) -> Tensor:
    """Finite scores (n,), n ≥ 1."""
    values = as_tensor(name, scores, torch.float64).detach().cpu()
    if values.dim() != 1 or len(values) == 0:
        raise InvalidInputError(f"{name} has shape {tuple(values.shape)}; one score per input is needed, (n,), n ≥ 1.")
    if not bool(values.isfinite().all()):
        raise InvalidInputError(f"{name} has {int((~values.isfinite()).sum())} NaN or infinite values.")
    return values


def check_numeric(p: P) -> P:
    """A prediction of numbers, in float64 on the CPU."""
    if not isinstance(p, Predictive) or not p.is_numeric:
        raise InvalidInputError(f"p is a {type(p).__name__}, not a prediction of real targets or counts.")
    return exact(p)


def exact(p: P) -> P:
    """A prediction in float64 on the CPU."""
    return p.mapped(lambda values: values.detach().to("cpu", torch.float64))


def check_numbers(p: P, y: Any) -> tuple[P, Tensor]:
    """Predictions of numbers in float64 at inputs or positions with any target, and these targets (rows, targets)."""
    p = check_numeric(p)
    y = as_numbers(as_tensor("y", y, torch.float64).detach().cpu(), p.mean[None]).flatten(0, -2)
    if bool(y.isinf().any()):
        raise InvalidInputError(f"targets have {int(y.isinf().sum())} infinite values.")
    observed = ~y.isnan().all(1)
    if not bool(observed.any()):
        raise InvalidInputError(f"there are {len(p)} predictions, but no targets: at least one is needed.")
    return p.rows()[observed], y[observed]
