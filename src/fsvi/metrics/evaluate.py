"""All metrics of a task at once, by name."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from fsvi.likelihoods import Predictive
from fsvi.metrics.calibration import ece
from fsvi.metrics.detection import UNCERTAINTIES, ood, uncertainty
from fsvi.metrics.inputs import Probabilities
from fsvi.metrics.regression import Scale, coverage, crps, log_likelihood, rmse, unstandardize
from fsvi.metrics.scoring import accuracy, brier, nll
from fsvi.metrics.selective import aurc, referral_curve

_LEVELS = (50, 90, 95)


def evaluate_classification(p: Probabilities, y: Any) -> dict[str, float]:
    """Accuracy, proper scores, calibration and selective prediction.

    With two classes there is also `auroc`, which is NaN if one of them does not occur.

    Args:
        p: Predictions, or class probabilities (n, classes).
        y: Labels (n,).
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


def evaluate_ood(p_in: Predictive, p_out: Predictive) -> dict[str, float]:
    """Every field of `Detection` for every uncertainty score: `auroc_entropy`, `aupr_mutual_information`, …

    Args:
        p_in: Predictions for inputs in distribution.
        p_out: Predictions for inputs out of distribution.
    """
    found = {kind: ood(uncertainty(p_in, kind), uncertainty(p_out, kind)) for kind in UNCERTAINTIES}
    return {f"{name}_{kind}": value for kind, each in found.items() for name, value in asdict(each).items()}


def evaluate_regression(p: Predictive, y: Any, scale: Scale | None = None) -> dict[str, float]:
    """Error, likelihood, CRPS and coverage in the units of `y`.

    Args:
        p: Predictions.
        y: Targets in original units, (n, targets).
        scale: How targets were standardized, if `p` predicts standardized ones.
    """
    p = p if scale is None else unstandardize(p, scale)
    metrics = {"rmse": rmse(p, y), "log_likelihood": log_likelihood(p, y), "crps": crps(p, y)}
    return {**metrics, **{f"coverage_{level}": coverage(p, y, level / 100) for level in _LEVELS}}
