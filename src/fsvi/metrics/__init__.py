"""The quality of predictions: accuracy and proper scores, calibration, detection, referral, regression.

Everywhere, `p` is a prediction, or for classes also a tensor of their probabilities (n, classes); `y` is what was true:
labels (n,) or targets (n, targets).

Examples:
    >>> p, y = torch.tensor([[0.9, 0.1], [0.2, 0.8]]), torch.tensor([0, 1])
    >>> fsvi.metrics.accuracy(p, y), round(fsvi.metrics.nll(p, y), 3)
    (1.0, 0.164)
"""

from fsvi.metrics.classification import (
    ReferralCurve,
    Reliability,
    accuracy,
    aurc,
    brier,
    ece,
    evaluate_classification,
    nll,
    referral_curve,
    reliability,
)
from fsvi.metrics.detection import Detection, auroc, evaluate_ood, ood, uncertainty
from fsvi.metrics.regression import coverage, crps, evaluate_regression, log_likelihood, rmse, unstandardize

__all__ = [
    "Detection",
    "ReferralCurve",
    "Reliability",
    "accuracy",
    "aurc",
    "auroc",
    "brier",
    "coverage",
    "crps",
    "ece",
    "evaluate_classification",
    "evaluate_ood",
    "evaluate_regression",
    "log_likelihood",
    "nll",
    "ood",
    "referral_curve",
    "reliability",
    "rmse",
    "uncertainty",
    "unstandardize",
]
