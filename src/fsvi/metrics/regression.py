"""The quality of predictions of real targets. The predictive distribution is the mixture over draws.

Predictions and targets have the same units. A network trained on standardized targets predicts standardized ones.
`unstandardize` converts its predictions to the original units, in which these metrics should be reported.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from fsvi.errors import InvalidInputError
from fsvi.likelihoods import Predictive
from fsvi.validation import as_tensor, check_fraction, check_type

P = TypeVar("P", bound=Predictive)


class Scale(Protocol):
    """How targets were standardized: z = (y − mean) / std, with one number or one per target."""

    @property
    def mean(self) -> Any:
        """The mean that was subtracted."""

    @property
    def std(self) -> Any:
        """The standard deviation that was divided by."""


def unstandardize(p: P, scale: Scale) -> P:
    """Convert a prediction of standardized targets to the original units.

    Args:
        p: The prediction.
        scale: How the targets were standardized, such as `fsvi.data.Standardize`.
    """
    check_numeric(p)
    mean, std = (as_tensor(name, getattr(scale, name)).to(p.samples) for name in ("mean", "std"))
    if not bool((std > 0).all() and std.isfinite().all() and mean.isfinite().all()):
        raise InvalidInputError(f"the scale has mean={scale.mean} and std={scale.std}: std must be above 0.")
    return p.moved(p.samples * std + mean, std)


def rmse(p: Predictive, y: Any) -> float:
    """The root of the mean of (E[y] − y)² over inputs and targets, with E[y] the mean over draws.

    Args:
        p: Predictions.
        y: Targets (n, targets).
    """
    p, y = check_targets(p, y)
    return float((p.mean - y).square().mean().sqrt())


def log_likelihood(p: Predictive, y: Any) -> float:
    """The mean over inputs of log p(y|x), the log of the mean density over draws, in nats.

    Args:
        p: Predictions.
        y: Targets (n, targets).
    """
    p, y = check_targets(p, y)
    return float(p.log_prob(y).mean())


def coverage(p: Predictive, y: Any, level: float = 0.95) -> float:
    """The fraction of targets inside the central interval with probability `level`.

    y is inside if the distribution function at y is between (1 − level)/2 and (1 + level)/2, so no quantile of the
    mixture is needed. Where the function jumps, as for counts, y is inside if the jump overlaps these bounds: the
    interval of an exact prediction is one point.

    Args:
        p: Predictions.
        y: Targets (n, targets).
        level: The probability of the interval.
    """
    tail = (1 - check_fraction("level", level)) / 2
    p, y = check_targets(p, y)
    return float(((p.cdf(y) >= tail) & (p.cdf(y, below=True) <= 1 - tail)).double().mean())


def crps(p: Predictive, y: Any) -> float:
    """The mean of ∫ (F(t) − 1[t ≥ y])² dt over inputs and targets, with F the mixture's distribution function.

    It has the units of the targets; for a prediction without spread it is the absolute error.

    Args:
        p: Predictions.
        y: Targets (n, targets).
    """
    p, y = check_targets(p, y)
    return float(p.crps(y).mean())


def check_targets(p: Predictive, y: Any) -> tuple[Predictive, Tensor]:
    """The prediction, and finite targets (n, targets) for it.

    Args:
        p: The prediction.
        y: Targets.
    """
    check_numeric(p)
    y = as_tensor("y", y, torch.float64).detach().cpu()
    num, targets = p.mean.shape
    if num == 0 or y.shape not in ((num, targets), (num,) if targets == 1 else (num, targets)):
        raise InvalidInputError(
            f"targets have shape {tuple(y.shape)}; predictions have {(num, targets)}, and at least one is needed."
        )
    if not bool(y.isfinite().all()):
        raise InvalidInputError(f"targets have {int((~y.isfinite()).sum())} NaN or infinite values.")
    return p.detach().to("cpu", torch.float64), y.reshape(num, targets)


def check_numeric(p: Any) -> None:
    """A prediction of numbers."""
    check_type("p", p, Predictive, "a prediction of real targets or counts, such as method.predict(x) of a regression")
    if not p.is_numeric:
        raise InvalidInputError(f"p is a {type(p).__name__}, not a prediction of real targets or counts.")
