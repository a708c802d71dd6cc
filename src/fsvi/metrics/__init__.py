"""The quality of predictions: accuracy and proper scores, calibration, detection, referral, regression."""

from fsvi.metrics.calibration import Reliability, ece, reliability
from fsvi.metrics.detection import Detection, Roc, auroc, ood, roc, uncertainty
from fsvi.metrics.evaluate import evaluate_classification, evaluate_ood, evaluate_regression
from fsvi.metrics.regression import Scale, coverage, crps, log_likelihood, rmse, unstandardize
from fsvi.metrics.scoring import accuracy, brier, nll
from fsvi.metrics.selective import ReferralCurve, aurc, referral_curve

__all__ = [
    "Detection",
    "ReferralCurve",
    "Reliability",
    "Roc",
    "Scale",
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
    "roc",
    "uncertainty",
    "unstandardize",
]
