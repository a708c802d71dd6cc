"""Detection: separate two kinds of inputs by a score, such as inputs in and out of distribution."""

# scikit-learn is imported inside functions, because its import takes longer than that of fsvi.
from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from fsvi.errors import InvalidInputError
from fsvi.likelihoods import Predictive
from fsvi.metrics.checks import check_scores
from fsvi.validation import as_tensor, check_choice, check_labels, check_type

UNCERTAINTIES = ("entropy", "expected_entropy", "mutual_information", "own")
"""Uncertainty scores by name. "own" is the score that the method's authors use, `Predictive.score`."""

_ACCEPTED = 0.95


class Detection(NamedTuple):
    """How well a score separates inputs out of distribution from inputs in distribution.

    Attributes:
        auroc: The probability that an input out of distribution scores higher than one in it; ties count half.
        aupr: The average precision with inputs out of distribution as positives.
        aupr_in: The average precision with inputs in distribution as positives, detected by low scores.
        fpr95: The fraction of inputs out of distribution that a threshold accepts which accepts 95% of the others.
    """

    auroc: float
    aupr: float
    aupr_in: float
    fpr95: float


def uncertainty(p: Predictive, kind: str = "entropy") -> Tensor:
    """One score per input, (n,), or per position, (n, positions...), larger for less certain ones.

    Args:
        p: Predictions. Those of numbers have no entropies.
        kind: "entropy" (total uncertainty), "expected_entropy" (the part that would remain if the function were known),
            "mutual_information" (the part due to the unknown function) or "own" (`Predictive.score`, which the
            method's authors use).
    """
    check_choice("kind", kind, UNCERTAINTIES)
    check_type("p", p, Predictive, "a prediction such as method.predict(x)")
    scores: Tensor = p.score if kind == "own" else getattr(p, kind)()
    return scores


def evaluate_ood(p_in: Predictive, p_out: Predictive) -> dict[str, float]:
    """Every field of `Detection` for every uncertainty score: `auroc_entropy`, `aupr_mutual_information`, …"""
    found = {kind: ood(uncertainty(p_in, kind), uncertainty(p_out, kind)) for kind in UNCERTAINTIES}
    return {f"{name}_{kind}": value for kind, each in found.items() for name, value in each._asdict().items()}


def ood(in_scores: Any, out_scores: Any) -> Detection:
    """Detection of inputs or positions out of distribution by a score that should be higher for them."""
    from sklearn.metrics import average_precision_score, roc_curve

    inside = check_scores("in_scores", as_tensor("in_scores", in_scores).flatten())
    outside = check_scores("out_scores", as_tensor("out_scores", out_scores).flatten())
    scores = torch.cat([inside, outside])
    is_out = torch.arange(len(scores)).ge(len(inside)).long()
    passed, accepted, _ = roc_curve(1 - is_out, -scores, drop_intermediate=False)
    return Detection(
        auroc=auroc(is_out, scores),
        aupr=float(average_precision_score(is_out, scores)),
        aupr_in=float(average_precision_score(1 - is_out, -scores)),
        fpr95=float(passed[accepted >= _ACCEPTED][0]),
    )


def auroc(labels: Any, scores: Any) -> float:
    """The area under the ROC curve: the probability that a positive scores higher than a negative; ties count half.

    Args:
        labels: 0 (negative) or 1 (positive), (n,).
        scores: Scores that should be higher for positives, (n,).
    """
    from sklearn.metrics import roc_auc_score

    values, labels = check_scores("scores", scores), check_labels(as_tensor("labels", labels).cpu(), num_classes=2)
    if len(labels) != len(values):
        raise InvalidInputError(f"there are {len(values)} scores, but {len(labels)} labels.")
    if bool((labels == labels[0]).all()):
        raise InvalidInputError(f"all {len(labels)} labels are {int(labels[0])}: a ROC curve needs both classes.")
    return float(roc_auc_score(labels, values))
