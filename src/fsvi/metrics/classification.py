"""The quality of class probabilities: accuracy, proper scores, calibration, and the benefit of referral."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from fsvi.errors import InvalidInputError
from fsvi.likelihoods import Predictive
from fsvi.metrics.checks import Probabilities, check_predictions, check_scores
from fsvi.validation import as_tensor, check_count

_RATES = tuple(percent / 100 for percent in range(101))
_DIGITS = 6
"""Rounding of the number of inputs kept, because (1 − 0.7) · 10 is 3.0000000000000004."""


@dataclass(frozen=True)
class Reliability:
    """Inputs grouped by confidence, the largest class probability; empty bins have NaN.

    Attributes:
        confidence: The mean confidence per bin, (bins,).
        accuracy: The fraction of right answers per bin, (bins,).
        count: The number of inputs per bin, (bins,).
        edges: Bin b is (edges[b], edges[b + 1]], (bins + 1,).
    """

    confidence: Tensor
    accuracy: Tensor
    count: Tensor
    edges: Tensor

    @property
    def ece(self) -> float:
        """Σ_b n_b/n |accuracy_b − confidence_b|, the expected calibration error."""
        gaps = (self.accuracy - self.confidence).abs().nan_to_num(0.0)
        return float((self.count * gaps).sum() / self.count.sum())


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


def evaluate_classification(p: Probabilities, y: Any) -> dict[str, float]:
    """Accuracy, proper scores, calibration and selective prediction.

    With two classes there is also `auroc`, which is NaN if one of them does not occur.
    """
    metrics = {
        "accuracy": accuracy(p, y),
        "nll": nll(p, y),
        "brier": brier(p, y),
        "ece_10": ece(p, y, bins=10),
        "ece_15": ece(p, y, bins=15),
        "ece_adaptive": ece(p, y, bins=15, adaptive=True),
        "aurc": aurc(p, y),
    }
    whole = referral_curve(p, y, rates=[0.0]).auroc
    return metrics if whole is None else {**metrics, "auroc": float(whole)}


def accuracy(p: Probabilities, y: Any) -> float:
    """The fraction of inputs whose most probable class is right; of equally probable classes, the first counts."""
    probabilities, y, _ = check_predictions(p, y)
    return float((probabilities.argmax(1) == y).double().mean())


def nll(p: Probabilities, y: Any) -> float:
    """The mean of −log p(y|x) in nats, with p(y|x) = 1/S Σₛ p(y|fₛ(x)): the log of the mean over draws.

    It is infinite if a label has probability 0. Predictions have log probabilities, so tiny probabilities that would
    underflow stay finite.
    """
    probabilities, labels, observed = check_predictions(p, y)
    if isinstance(p, Predictive):
        return -float(p.log_prob(y).cpu()[observed].double().mean())
    return -float(probabilities.gather(1, labels[:, None]).log().mean())


def brier(p: Probabilities, y: Any) -> float:
    """The mean of Σ_c (p_c − 1[y = c])² (Brier 1950), from 0 to 2, because the sum is over all classes."""
    probabilities, y, _ = check_predictions(p, y)
    return float((probabilities - one_hot(y, probabilities.shape[1])).square().sum(1).mean())


def reliability(p: Probabilities, y: Any, bins: int = 15, adaptive: bool = False) -> Reliability:
    """The reliability diagram: confidence and accuracy per bin.

    Inputs of equal confidence share a bin, so the order of the data does not matter. Adaptive bins that would be empty
    for this reason are left out.

    Args:
        p: Predictions, or class probabilities (n, classes).
        y: Labels (n,).
        bins: The number of bins.
        adaptive: Whether bins have about equal counts instead of equal widths.
    """
    check_count("bins", bins)
    probabilities, y, _ = check_predictions(p, y)
    confidence, predicted = probabilities.max(1)
    edges = _quantiles(confidence, bins) if adaptive else torch.linspace(0, 1, bins + 1, dtype=confidence.dtype)
    index = torch.bucketize(confidence, edges[1:-1])
    count, confident, right = (
        torch.zeros(len(edges) - 1, dtype=confidence.dtype).index_add_(0, index, values)
        for values in (torch.ones_like(confidence), confidence, (predicted == y).double())
    )
    return Reliability(confident / count, right / count, count.long(), edges)


def ece(p: Probabilities, y: Any, bins: int = 15, adaptive: bool = False) -> float:
    """Expected calibration error of the most probable class (Guo et al. 2017).

    Args:
        p: Predictions, or class probabilities (n, classes).
        y: Labels (n,).
        bins: The number of bins.
        adaptive: Whether bins have about equal counts; see `reliability`.
    """
    return reliability(p, y, bins, adaptive).ece


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
    probabilities, y, observed = check_predictions(p, y)
    scores = _ranking(p, probabilities, observed, uncertainty)
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
    probabilities, y, observed = check_predictions(p, y)
    errors, scores = (probabilities.argmax(1) != y).double(), _ranking(p, probabilities, observed, uncertainty)
    _, group, size = scores.unique(return_inverse=True, return_counts=True)
    share = torch.zeros(len(size), dtype=errors.dtype).index_add_(0, group, errors) / size
    expected = share.repeat_interleave(size).cumsum(0)
    return float((expected / torch.arange(1, len(errors) + 1)).mean())


def _quantiles(values: Tensor, bins: int) -> Tensor:
    """Bin edges with about equal counts of `values` between them: the last value of each bin, without repetitions."""
    ends = (torch.arange(1, bins + 1) * len(values) + bins - 1) // bins
    return torch.cat([values.new_zeros(1), values.sort().values[ends - 1].unique()])


def _ranking(p: Any, probabilities: Tensor, observed: Tensor, uncertainty: Any) -> Tensor:
    """The scores by which inputs with a label are referred, (rows,)."""
    if uncertainty is None and not isinstance(p, Predictive):
        return torch.special.entr(probabilities).sum(1)
    scores = as_tensor("uncertainty", p.score if uncertainty is None else uncertainty).detach().cpu()
    if scores.shape != observed.shape:
        wanted = tuple(observed.shape)
        raise InvalidInputError(f"uncertainty has shape {tuple(scores.shape)}; these predictions need {wanted}.")
    return check_scores("uncertainty", scores[observed])


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
