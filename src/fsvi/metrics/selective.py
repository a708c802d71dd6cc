"""Selective prediction: the benefit of referring the most uncertain inputs to an expert."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fsvi.errors import InvalidInputError
from fsvi.metrics.inputs import Probabilities, check_predictions, check_scores, total_uncertainty

_RATES = tuple(percent / 100 for percent in range(101))
_DIGITS = 6
"""Rounding of the number of inputs kept, because (1 − 0.7) · 10 is 3.0000000000000004."""


@dataclass(frozen=True)
class ReferralCurve:
    """The quality of predictions on the inputs that are kept, if the most uncertain ones are referred.

    Attributes:
        rate: The fraction of inputs referred, (rates,).
        accuracy: The accuracy on the inputs kept, (rates,); NaN if none is kept.
        auroc: With two classes, the AUROC of the second class's probability on the inputs kept, (rates,), NaN if only
            one class is left; None with more than two classes.
    """

    rate: Tensor
    accuracy: Tensor
    auroc: Tensor | None


def referral_curve(p: Probabilities, y: Any, uncertainty: Any = None, rates: Sequence[float] = _RATES) -> ReferralCurve:
    """Accuracy, and AUROC with two classes, against the fraction of inputs referred.

    Equally uncertain inputs are kept with equal probability, and the curve is the expectation. So the order of the data
    does not matter.

    Args:
        p: Predictions, or class probabilities (n, classes).
        y: Labels (n,).
        uncertainty: Scores (n,); the largest are referred first. None is the prediction's own score, or the entropy of
            plain probabilities.
        rates: The fractions to refer.
    """
    probabilities, y = check_predictions(p, y)
    scores = _check_uncertainty(p, uncertainty)
    rate = check_scores("rates", rates)
    if bool(((rate < 0) | (rate > 1)).any()):
        raise InvalidInputError(f"rates={list(rates)} must lie between 0 and 1.")
    kept = [_kept(scores, share) for share in rate.tolist()]
    correct = (probabilities.argmax(1) == y).double()
    accuracy = torch.stack([(weight @ correct) / weight.sum() for weight in kept])
    binary = probabilities.shape[1] == 2
    auroc = torch.tensor([_auroc(y, probabilities[:, 1], weight) for weight in kept]) if binary else None
    return ReferralCurve(rate, accuracy, auroc)


def aurc(p: Probabilities, y: Any, uncertainty: Any = None) -> float:
    """The area under the risk-coverage curve, 1/n Σₖ (fraction of errors among the k most certain); lower is better.

    1 − aurc is the area under the curve of accuracy against referral rate (Geifman and El-Yaniv 2017).

    Args:
        p: Predictions, or class probabilities (n, classes).
        y: Labels (n,).
        uncertainty: Scores (n,); see `referral_curve`.
    """
    probabilities, y = check_predictions(p, y)
    errors = (probabilities.argmax(1) != y).double()
    _, group, size = _check_uncertainty(p, uncertainty).unique(return_inverse=True, return_counts=True)
    share = torch.zeros(len(size), dtype=errors.dtype).index_add_(0, group, errors) / size
    expected = share.repeat_interleave(size).cumsum(0)
    return float((expected / torch.arange(1, len(y) + 1)).mean())


def _kept(scores: Tensor, rate: float) -> Tensor:
    """The probability that each input is kept, (n,): 1 below the threshold, 0 above, equal for ties on it."""
    _, group, size = scores.unique(return_inverse=True, return_counts=True)
    before = (size.cumsum(0) - size).double()
    num = round((1 - rate) * len(scores), _DIGITS)
    return ((num - before) / size).clamp(0, 1)[group]


def _auroc(y: Tensor, score: Tensor, weight: Tensor) -> float:
    from sklearn.metrics import roc_auc_score  # its import takes longer than that of fsvi

    kept = weight > 0
    if len(y[kept].unique()) < 2:
        return math.nan
    return float(roc_auc_score(y[kept], score[kept], sample_weight=weight[kept]))


def _check_uncertainty(p: Any, uncertainty: Any) -> Tensor:
    scores = total_uncertainty(p) if uncertainty is None else check_scores("uncertainty", uncertainty)
    if len(scores) != len(p):
        raise InvalidInputError(f"there are {len(p)} predictions, but {len(scores)} uncertainties.")
    return scores
