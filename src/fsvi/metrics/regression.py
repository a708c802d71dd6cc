"""The quality of predictions of real targets. The predictive distribution is the mixture over draws.

Predictions and targets have the same units. A network trained on standardized targets predicts standardized ones.
`unstandardize` converts its predictions to the original units, in which these metrics should be reported.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

import torch
from torch import Tensor

from fsvi.errors import InvalidInputError
from fsvi.predictive import GaussianPredictive
from fsvi.validation import as_tensor, check_fraction, check_type


class Scale(Protocol):
    """How targets were standardized: z = (y − mean) / std, with one number or one per target."""

    @property
    def mean(self) -> Any:
        """The mean that was subtracted."""

    @property
    def std(self) -> Any:
        """The standard deviation that was divided by."""


def unstandardize(p: GaussianPredictive, scale: Scale) -> GaussianPredictive:
    """Convert a prediction of standardized targets to the original units.

    Args:
        p: The prediction.
        scale: How the targets were standardized, such as `fsvi.data.Standardize`.
    """
    check_gaussian(p)
    mean, std = (as_tensor(name, getattr(scale, name)).to(p.samples) for name in ("mean", "std"))
    if not bool((std > 0).all() and std.isfinite().all() and mean.isfinite().all()):
        raise InvalidInputError(f"the scale has mean={scale.mean} and std={scale.std}: std must be above 0.")
    return GaussianPredictive(p.samples * std + mean, p.noise_variance * std.square())


def rmse(p: GaussianPredictive, y: Any) -> float:
    """The root of the mean of (E[y] − y)² over inputs and targets, with E[y] the mean over draws.

    Args:
        p: Predictions.
        y: Targets (n, targets).
    """
    p, y = check_targets(p, y)
    return float((p.mean - y).square().mean().sqrt())


def log_likelihood(p: GaussianPredictive, y: Any) -> float:
    """The mean over inputs of log p(y|x), the log of the mean density over draws, in nats.

    Args:
        p: Predictions.
        y: Targets (n, targets).
    """
    p, y = check_targets(p, y)
    return float(p.log_prob(y).mean())


def coverage(p: GaussianPredictive, y: Any, level: float = 0.95) -> float:
    """The fraction of targets inside the central interval with probability `level`.

    y is inside if the distribution function 1/S Σₛ Φ((y − fₛ)/σₛ) is between (1 − level)/2 and (1 + level)/2, so no
    quantile of the mixture is needed. If σₛ is 0, the function jumps at fₛ, and y is inside if the jump overlaps these
    bounds: the interval of an exact prediction is one point.

    Args:
        p: Predictions.
        y: Targets (n, targets).
        level: The probability of the interval.
    """
    tail = (1 - check_fraction("level", level)) / 2
    p, y = check_targets(p, y)
    z = (y - p.samples) / p.noise_variance.sqrt()
    below, up_to = (torch.special.ndtr(torch.where(z.isnan(), end, z)).mean(0) for end in (-math.inf, math.inf))
    return float(((up_to >= tail) & (below <= 1 - tail)).double().mean())


def crps(p: GaussianPredictive, y: Any) -> float:
    """The mean of ∫ (F(t) − 1[t ≥ y])² dt over inputs and targets, with F the mixture's distribution function.

    The closed form is 1/S Σₛ A(y − fₛ, σₛ²) − 1/(2S²) Σₛₜ A(fₛ − fₜ, σₛ² + σₜ²), with A(m, v) = E|N(m, v)| (Grimit et
    al. 2006). It has the units of the targets; for a prediction without spread it is the absolute error.

    Args:
        p: Predictions.
        y: Targets (n, targets).
    """
    p, y = check_targets(p, y)
    to_target = _mean_absolute(y - p.samples, p.noise_variance).mean()
    draws = zip(p.samples, p.noise_variance, strict=True)
    between = [_mean_absolute(f - p.samples, noise + p.noise_variance).mean() for f, noise in draws]
    return float(to_target - 0.5 * torch.stack(between).mean())


def _mean_absolute(mean: Tensor, variance: Tensor) -> Tensor:
    """E|N(mean, variance)| = 2σ φ(m/σ) + m (2Φ(m/σ) − 1)."""
    std = variance.sqrt().clamp_min(torch.finfo(variance.dtype).tiny)
    z = mean / std
    density = (-0.5 * z.square()).exp() / math.sqrt(2 * math.pi)
    return 2 * std * density + mean * torch.erf(z / math.sqrt(2))


def check_targets(p: GaussianPredictive, y: Any) -> tuple[GaussianPredictive, Tensor]:
    """The prediction, and finite targets (n, targets) for it.

    Args:
        p: The prediction.
        y: Targets.
    """
    check_gaussian(p)
    y = as_tensor("y", y, torch.float64).detach().cpu()
    _, num, targets = p.samples.shape
    if num == 0 or y.shape not in ((num, targets), (num,) if targets == 1 else (num, targets)):
        raise InvalidInputError(
            f"targets have shape {tuple(y.shape)}; predictions have {(num, targets)}, and at least one is needed."
        )
    if not bool(y.isfinite().all()):
        raise InvalidInputError(f"targets have {int((~y.isfinite()).sum())} NaN or infinite values.")
    samples, noise = (values.detach().cpu().double() for values in (p.samples, p.noise_variance))
    return GaussianPredictive(samples, noise), y.reshape(num, targets)


def check_gaussian(p: Any) -> None:
    """A prediction of real targets."""
    check_type("p", p, GaussianPredictive, "a prediction of real targets, such as method.predict(x) of a regression")
