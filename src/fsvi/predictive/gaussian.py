"""Predictions of real targets with Gaussian noise."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch import distributions as D

from fsvi.predictive.base import as_numbers, log_mean_exp, precise
from fsvi.predictive.numeric import NumericPredictive

_TWO_SIDED_95 = 1.959964


class GaussianPredictive(NumericPredictive):
    """Real targets: draws of the mean, and the variance of the noise around each.

    Args:
        samples: The draws of the mean, (samples, n, targets).
        noise_variance: (targets,), or like `samples` when the noise depends on the input.
    """

    def __init__(self, samples: Tensor, noise_variance: Tensor) -> None:
        self.samples = precise(samples)
        self.noise_variance = precise(noise_variance).expand(samples.shape)

    def given_function(self) -> D.Normal:
        """N(f, noise) of each draw."""
        return D.Normal(self.samples, self.noise_variance.sqrt(), validate_args=False)

    @property
    def variance(self) -> Tensor:
        """Var[y] = E[noise] + Var[f], (n, targets)."""
        return self.noise_variance.mean(0) + self.function_variance

    def log_prob(self, y: Any) -> Tensor:
        """log 1/S Σₛ Π_q N(y_q; f_q, noise_q), (n,); targets that are NaN are left out."""
        y = as_numbers(y, self.samples)
        squared = (y - self.samples).square() / self.noise_variance
        logs = -0.5 * (squared + self.noise_variance.log() + math.log(2 * math.pi))
        return log_mean_exp(torch.where(y.isnan(), 0.0, logs).sum(-1))

    def cdf(self, y: Any, below: bool = False) -> Tensor:
        """1/S Σₛ Φ((y − fₛ)/σₛ), (n, targets). If σₛ is 0, the function jumps at fₛ."""
        z = (as_numbers(y, self.samples) - self.samples) / self.noise_variance.sqrt()
        return torch.special.ndtr(torch.where(z.isnan(), -math.inf if below else math.inf, z)).mean(0)

    def bracket(self, q: float) -> tuple[Tensor, Tensor]:
        """The least and the largest quantile over draws."""
        z = torch.special.ndtri(self.samples.new_tensor(q))
        quantiles = self.samples + z * self.noise_variance.sqrt()
        return quantiles.amin(0), quantiles.amax(0)

    def crps(self, y: Any) -> Tensor:
        """1/S Σₛ A(y − fₛ, σₛ²) − 1/(2S²) Σₛₜ A(fₛ − fₜ, σₛ² + σₜ²), with A(m, v) = E|N(m, v)| (Grimit et al. 2006)."""
        y = as_numbers(y, self.samples)
        to_target = _mean_absolute(y - self.samples, self.noise_variance).mean(0)
        between = torch.zeros_like(to_target)
        for f, noise in zip(self.samples, self.noise_variance, strict=True):
            between += _mean_absolute(f - self.samples, noise + self.noise_variance).mean(0)
        return to_target - 0.5 * between / len(self.samples)

    def moved(self, samples: Tensor, factor: Any) -> GaussianPredictive:
        """With these means of the draws, and noise whose standard deviation is multiplied by `factor`."""
        return GaussianPredictive(samples, self.noise_variance * factor**2)

    def _bounds(self) -> tuple[Tensor, Tensor]:
        """The interval of the Gaussian with the mixture's mean and variance: quantiles of the mixture take longer."""
        reach = _TWO_SIDED_95 * self.variance.sqrt()
        return self.mean - reach, self.mean + reach

    def constant_nll(self, y: Tensor) -> float | None:
        """That of one Gaussian."""
        y = y.double()
        squared = (y - y.nanmean(0)).square().nanmean(0).clamp_min(1e-12)
        observed = (~y.isnan()).double().mean(0)
        return float((observed * 0.5 * (2 * math.pi * math.e * squared).log()).nansum())


def _mean_absolute(mean: Tensor, variance: Tensor) -> Tensor:
    """E|N(mean, variance)| = 2σ φ(m/σ) + m (2Φ(m/σ) − 1)."""
    std = variance.sqrt().clamp_min(torch.finfo(variance.dtype).tiny)
    z = mean / std
    density = (-0.5 * z.square()).exp() / math.sqrt(2 * math.pi)
    return 2 * std * density + mean * torch.erf(z / math.sqrt(2))
