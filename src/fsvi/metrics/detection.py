"""Telling inputs of one kind from those of another by a score; above all, what is out of distribution."""

# scikit-learn is imported where it is used: it takes longer to import than all of fsvi.
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fsvi.errors import InvalidInputError
from fsvi.metrics.inputs import check_categorical, check_scores
from fsvi.predictive import CategoricalPredictive
from fsvi.validation import as_tensor, check_choice, check_labels

UNCERTAINTIES = {
    "entropy": CategoricalPredictive.entropy,
    "expected_entropy": CategoricalPredictive.expected_entropy,
    "mutual_information": CategoricalPredictive.mutual_information,
    "own": lambda p: p.score,
}
"""Uncertainty scores by name. "own" is the score that the method's authors use, `Predictive.score`."""

_ACCEPTED = 0.95


@dataclass(frozen=True)
class Roc:
    """A ROC curve: rates at which negatives and positives score at least each of falling `thresholds`."""

    false_positive_rate: Tensor
    true_positive_rate: Tensor
    thresholds: Tensor


@dataclass(frozen=True)
class Detection:
    """How well a score tells inputs out of distribution from those in it.

    Attributes:
        auroc: Chance that an input out of distribution scores higher than one in it; ties count half.
        aupr: Average precision with inputs out of distribution as the positives.
        aupr_in: The same with inputs in distribution as the positives, found by low scores.
        fpr95: Share of inputs out of distribution that pass as in it when 95% of those in it do.
    """

    auroc: float
    aupr: float
    aupr_in: float
    fpr95: float


def uncertainty(p: CategoricalPredictive, kind: str = "entropy") -> Tensor:
    """One score an input, (n,), larger where less is certain.

    `kind` is "entropy" (all uncertainty), "expected_entropy" (what would remain if the function were known),
    "mutual_information" (what is not known of the function) or "own" (`Predictive.score`, which the method's authors
    use).
    """
    check_choice("kind", kind, UNCERTAINTIES)
    return UNCERTAINTIES[kind](check_categorical(p))


def ood(in_scores: Any, out_scores: Any) -> Detection:
    """Detection of inputs out of distribution by scores that should be higher for them than for those in it."""
    from sklearn.metrics import average_precision_score

    inside, outside = check_scores("in_scores", in_scores), check_scores("out_scores", out_scores)
    scores = torch.cat([inside, outside])
    is_out = torch.cat([torch.zeros(len(inside)), torch.ones(len(outside))]).long()
    accepted = roc(1 - is_out, -scores)
    return Detection(
        auroc=auroc(is_out, scores),
        aupr=float(average_precision_score(is_out, scores)),
        aupr_in=float(average_precision_score(1 - is_out, -scores)),
        fpr95=float(accepted.false_positive_rate[accepted.true_positive_rate >= _ACCEPTED][0]),
    )


def roc(labels: Any, scores: Any) -> Roc:
    """The ROC curve of `scores` for `labels` 0 and 1, every threshold kept."""
    from sklearn.metrics import roc_curve

    curve = roc_curve(*_check_binary(labels, scores), drop_intermediate=False)
    return Roc(*map(torch.as_tensor, curve))


def auroc(labels: Any, scores: Any) -> float:
    """The area under `roc`: the chance that a positive scores higher than a negative, ties counting half."""
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(*_check_binary(labels, scores)))


def _check_binary(labels: Any, scores: Any) -> tuple[Tensor, Tensor]:
    values = check_scores("scores", scores)
    labels = check_labels(as_tensor("labels", labels).cpu(), num_classes=2)
    if len(labels) != len(values):
        raise InvalidInputError(f"there are {len(values)} scores, but {len(labels)} labels.")
    if bool((labels == labels[0]).all()):
        raise InvalidInputError(f"all {len(labels)} labels are {int(labels[0])}: a ROC curve needs both classes.")
    return labels, values
