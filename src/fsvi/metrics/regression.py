"""The quality of predictions of real targets and counts, in their units; targets that are NaN do not count."""

from __future__ import annotations

from typing import Any

from fsvi.errors import InvalidInputError
from fsvi.likelihoods import Predictive
from fsvi.metrics.checks import P, check_numbers
from fsvi.validation import as_tensor, check_fraction

_LEVELS = (50, 90, 95)


def unstandardize(p: P, scale: Any) -> P:
    """Convert a prediction of standardized targets to the original units, in which metrics should be reported.

    Args:
        p: The prediction.
        scale: How the targets were standardized, z = (y − mean) / std: an object with `mean` and `std`, one number or
            one per target.
    """
    mean, std = (as_tensor(name, getattr(scale, name)).to(p.samples) for name in ("mean", "std"))
    if not bool((std > 0).all() and std.isfinite().all() and mean.isfinite().all()):
        raise InvalidInputError(f"the scale has mean={scale.mean} and std={scale.std}: std must be above 0.")
    return p.moved(p.samples * std + mean, std)


def evaluate_regression(p: Predictive, y: Any, scale: Any = None) -> dict[str, float]:
    """Error, likelihood, CRPS and coverage in the units of `y`.

    Args:
        p: Predictions.
        y: Targets in original units, (n, targets).
        scale: How targets were standardized, if `p` predicts standardized ones.
    """
    p = p if scale is None else unstandardize(p, scale)
    metrics = {"rmse": rmse(p, y), "log_likelihood": log_likelihood(p, y), "crps": crps(p, y)}
    return {**metrics, **{f"coverage_{level}": coverage(p, y, level / 100) for level in _LEVELS}}


def rmse(p: Predictive, y: Any) -> float:
    """The root of the mean of (E[y] − y)² over inputs and targets, with E[y] the mean over draws."""
    p, y = check_numbers(p, y)
    return float((p.mean - y).square().nanmean().sqrt())


def log_likelihood(p: Predictive, y: Any) -> float:
    """The mean over inputs of log p(y|x), the log of the mean density over draws, in nats."""
    p, y = check_numbers(p, y)
    return float(p.log_prob(y).mean())


def coverage(p: Predictive, y: Any, level: float = 0.95) -> float:
    """The fraction of targets inside the central interval with probability `level`.

    y is inside if the distribution function at y is between (1 − level)/2 and (1 + level)/2. Where the function jumps,
    as for counts, y is inside if the jump overlaps these bounds.

    Args:
        p: Predictions.
        y: Targets (n, targets).
        level: The probability of the interval.
    """
    tail = (1 - check_fraction("level", level)) / 2
    p, y = check_numbers(p, y)
    inside = (p.cdf(y) >= tail) & (p.cdf(y, below=True) <= 1 - tail)
    return float(inside[~y.isnan()].double().mean())


def crps(p: Predictive, y: Any) -> float:
    """The mean of ∫ (F(t) − 1[t ≥ y])² dt over inputs and targets, with F the mixture's distribution function.

    It has the units of the targets; for a prediction without spread it is the absolute error.
    """
    p, y = check_numbers(p, y)
    return float(p.crps(y.nan_to_num(0.0))[~y.isnan()].mean())
