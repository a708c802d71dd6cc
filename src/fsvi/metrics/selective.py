"""Selective prediction: what is gained by referring the most uncertain inputs to somebody who knows."""

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
"""of how many inputs are kept: (1 − 0.7) · 10 is 3.0000000000000004, and a fourth input is not meant"""


@dataclass(frozen=True)
class ReferralCurve:
    """What the inputs that are kept are worth when a share of all, the most uncertain ones, is referred.

    Attributes:
        rate: Share referred, (rates,).
        accuracy: Accuracy of what is kept, (rates,); NaN where nothing is.
        auroc: With two classes, AUROC of the second class's probability on what is kept, (rates,); NaN where only one
            of the classes is left, and None with more than two.
    """

    rate: Tensor
    accuracy: Tensor
    auroc: Tensor | None


def referral_curve(p: Probabilities, y: Any, uncertainty: Any = None, rates: Sequence[float] = _RATES) -> ReferralCurve:
    """Accuracy, and AUROC where there are two classes, against the share of inputs referred.

    `uncertainty` (n,) says who is referred first; None takes `Predictive.score`, or the entropy of
    probabilities. A share that falls among equally uncertain inputs keeps each with the same chance, and the curve
    is what is expected then: the order of the data does not matter.
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
    """Area under the risk-coverage curve, 1/n Σₖ (share of errors among the k most certain); lower is better.

    1 − aurc is the area under accuracy against referral rate (Geifman and El-Yaniv 2017). `uncertainty` and ties are
    treated as in `referral_curve`.
    """
    probabilities, y = check_predictions(p, y)
    errors = (probabilities.argmax(1) != y).double()
    _, group, size = _check_uncertainty(p, uncertainty).unique(return_inverse=True, return_counts=True)
    share = torch.zeros(len(size), dtype=errors.dtype).index_add_(0, group, errors) / size
    expected = share.repeat_interleave(size).cumsum(0)
    return float((expected / torch.arange(1, len(y) + 1)).mean())


def _kept(scores: Tensor, rate: float) -> Tensor:
    """The chance that each input is kept, (n,): 1 below the threshold, 0 above, equal among those that tie on it."""
    _, group, size = scores.unique(return_inverse=True, return_counts=True)
    before = (size.cumsum(0) - size).double()
    num = round((1 - rate) * len(scores), _DIGITS)
    return ((num - before) / size).clamp(0, 1)[group]


def _auroc(y: Tensor, score: Tensor, weight: Tensor) -> float:
    from sklearn.metrics import roc_auc_score  # takes longer to import than all of fsvi

    kept = weight > 0
    if len(y[kept].unique()) < 2:
        return math.nan
    return float(roc_auc_score(y[kept], score[kept], sample_weight=weight[kept]))


def _check_uncertainty(p: Any, uncertainty: Any) -> Tensor:
    scores = total_uncertainty(p) if uncertainty is None else check_scores("uncertainty", uncertainty)
    if len(scores) != len(p):
        raise InvalidInputError(f"there are {len(p)} predictions, but {len(scores)} uncertainties.")
    return scores
