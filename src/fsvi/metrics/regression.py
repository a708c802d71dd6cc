"""How good predictions of real targets are, with the mixture over draws as the predictive distribution.

Prediction and targets are in the same units. A network trained on standardised targets predicts standardised ones:
`unstandardize` takes its prediction back to the original units, where all of these are to be reported.
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
    """How targets were standardised, z = (y − mean) / std, by one number or one for each target."""

    @property
    def mean(self) -> Any:
        """What was taken away."""

    @property
    def std(self) -> Any:
        """What was divided by."""


def unstandardize(p: GaussianPredictive, scale: Scale) -> GaussianPredictive:
    """A prediction of standardised targets in the targets' original units."""
    check_gaussian(p)
    mean, std = (as_tensor(name, getattr(scale, name)).to(p.samples) for name in ("mean", "std"))
    if not bool((std > 0).all() and std.isfinite().all() and mean.isfinite().all()):
        raise InvalidInputError(f"the scale has mean={scale.mean} and std={scale.std}: std must be above 0.")
    return GaussianPredictive(p.samples * std + mean, p.noise_variance * std.square())


def rmse(p: GaussianPredictive, y: Any) -> float:
    """√ of the mean of (E[y] − y)², over inputs and targets: of the mean prediction, not the mean over draws."""
    p, y = check_targets(p, y)
    return float((p.mean - y).square().mean().sqrt())


def log_likelihood(p: GaussianPredictive, y: Any) -> float:
    """Mean over inputs of log p(y|x), the log of the mean density over draws, in nats."""
    p, y = check_targets(p, y)
    return float(p.log_prob(y).mean())


def coverage(p: GaussianPredictive, y: Any, level: float = 0.95) -> float:
    """Share of targets inside the central interval that should hold a share `level` of them.

    y is inside exactly where the distribution function 1/S Σₛ Φ((y − fₛ)/σₛ) lies between (1 − level)/2 and
    (1 + level)/2, so that no quantile of the mixture has to be found. Where σₛ is 0 that function jumps at fₛ, and y is
    inside if the jump reaches in: an exact prediction is its own interval.
    """
    tail = (1 - check_fraction("level", level)) / 2
    p, y = check_targets(p, y)
    z = (y - p.samples) / p.noise_variance.sqrt()
    below, up_to = (torch.special.ndtr(torch.where(z.isnan(), end, z)).mean(0) for end in (-math.inf, math.inf))
    return float(((up_to >= tail) & (below <= 1 - tail)).double().mean())


def crps(p: GaussianPredictive, y: Any) -> float:
    """Mean of ∫ (F(t) − 1[t ≥ y])² dt over inputs and targets, F the mixture's distribution function.

    In closed form 1/S Σₛ A(y − fₛ, σₛ²) − 1/(2S²) Σₛₜ A(fₛ − fₜ, σₛ² + σₜ²), where A(m, v) = E|N(m, v)| (Grimit et
    al. 2006). For a prediction without spread it is the absolute error; it has the targets' unit.
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
    """The prediction, and finite targets (n, targets) for it."""
    check_gaussian(p)
    y = as_tensor("y", y, torch.float64).detach().cpu()
    _, num, targets = p.samples.shape
    if num == 0 or y.shape not in ((num, targets), (num,) if targets == 1 else (num, targets)):
        raise InvalidInputError(
            f"targets have shape {tuple(y.shape)}; predicted is {(num, targets)}, of which at least one is needed."
        )
    if not bool(y.isfinite().all()):
        raise InvalidInputError(f"targets hold {int((~y.isfinite()).sum())} NaN or infinite values.")
    samples, noise = (values.detach().cpu().double() for values in (p.samples, p.noise_variance))
    return GaussianPredictive(samples, noise), y.reshape(num, targets)


def check_gaussian(p: Any) -> None:
    """A prediction of real targets."""
    check_type("p", p, GaussianPredictive, "a prediction of real targets, such as method.predict(x) of a regression")
