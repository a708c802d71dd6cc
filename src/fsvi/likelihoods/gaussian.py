"""Real targets with Gaussian noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import Any

import torch
from torch import Tensor
from torch import distributions as D

from fsvi.errors import InvalidInputError
from fsvi.likelihoods.numbers import MixturePredictive, NumberLikelihood
from fsvi.likelihoods.predictive import as_numbers, precise
from fsvi.validation import as_tensor, check_fraction, check_positive


class Gaussian(NumberLikelihood):
    """Real targets with Gaussian noise. NaN is a missing target.

    Args:
        noise: The standard deviation of the noise, one number or one per output.
        learn_noise: Whether the noise is learned, one value per output, starting at `noise`.
        heteroscedastic: Read the noise from the network instead: two outputs per target, first all the means, then all
            the log variances.
        least_noise: The least value of a learned noise. With few data, it could shrink to the errors that remain on the
            training data.

    Examples:
        >>> f = torch.zeros(10, 4, 1)  # outputs of 10 draws of the function at 4 inputs
        >>> fsvi.Gaussian(noise=0.5).predictive(f).std[0]
        tensor([0.5000])
    """

    log_noise: Tensor
    """½ log(noise² − least_noise²)"""

    def __init__(
        self,
        noise: float | Sequence[float] = 0.1,
        learn_noise: bool = False,
        heteroscedastic: bool = False,
        least_noise: float = 0.0,
    ) -> None:
        super().__init__()
        values = as_tensor("noise", noise).float()
        if values.dim() > 1 or not bool((values > 0).all() and values.isfinite().all()):
            raise InvalidInputError(f"noise={noise} must be positive: it is the standard deviation of the noise.")
        if heteroscedastic and learn_noise:
            raise InvalidInputError("heteroscedastic noise comes from the network: leave learn_noise out.")
        self.least_noise = check_positive("least_noise", least_noise, zero=True)
        if self.least_noise and not (learn_noise and bool((values > self.least_noise).all())):
            raise InvalidInputError(
                f"least_noise={least_noise} is for a noise that is learned and starts above it: pass learn_noise=True "
                f"and a larger noise than {noise}, or leave it out."
            )
        self._noise = noise
        self.learn_noise = learn_noise
        self.heteroscedastic = heteroscedastic
        self._set(values)

    def bind(self, num_outputs: int) -> None:
        """One noise per output."""
        if self.heteroscedastic and num_outputs % 2:
            raise InvalidInputError(
                f"heteroscedastic noise needs two outputs per target; the network has {num_outputs}."
            )
        if self.heteroscedastic:
            return
        given = torch.as_tensor(self._noise, dtype=torch.float32)
        if given.dim() == 1 and len(given) != num_outputs:
            raise InvalidInputError(f"noise has {len(given)} values for a network with {num_outputs} outputs.")
        self._set(given.expand(num_outputs))

    @property
    def noise(self) -> Tensor:
        """The standard deviation of the noise, one per output."""
        return self._log_noise().detach().exp()

    def check_targets(self, y: Tensor, num_outputs: int) -> Tensor:
        """Targets as floats (n, targets); each has two outputs if the noise is an output, too."""
        return super().check_targets(y, num_outputs // 2 if self.heteroscedastic else num_outputs)

    def losses(self, f: Tensor, y: Tensor) -> Tensor:
        """−log N(y; f, noise²)."""
        mean, log_noise = self._moments(f)
        squared = (y - mean).square() * (-2 * log_noise).exp()
        return (0.5 * squared + log_noise + 0.5 * math.log(2 * math.pi)).expand(mean.shape)

    def predictive(self, f: Tensor) -> GaussianPredictive:
        """Mixture of Gaussians."""
        mean, log_noise = self._moments(f)
        return GaussianPredictive(mean.detach(), (2 * log_noise.detach()).exp())

    def fisher_root(self, f: Tensor, y: Tensor | None = None) -> Tensor:
        """1/noise for every mean, and √½ for every log variance where those are outputs."""
        mean, log_noise = self._moments(f)
        roots = (-log_noise.detach()).exp().expand(mean.shape)
        if not self.heteroscedastic:
            return self.present(roots, y)
        roots = torch.cat([roots, torch.full_like(roots, 0.5**0.5)], dim=-1)
        return self.present(roots, None if y is None else torch.cat([y, y], dim=-1))

    def _moments(self, f: Tensor) -> tuple[Tensor, Tensor]:
        if not self.heteroscedastic:
            return f, self._log_noise()
        mean, log_variance = f.chunk(2, dim=-1)
        return mean, 0.5 * log_variance

    def _log_noise(self) -> Tensor:
        """log noise, a smooth function of the parameter, so that a noise close to the least one can grow again."""
        if not self.least_noise:
            return self.log_noise
        least = torch.full_like(self.log_noise, math.log(self.least_noise))
        return 0.5 * torch.logaddexp(2 * self.log_noise, 2 * least)

    def _set(self, noise: Tensor) -> None:
        log_noise = 0.5 * (noise.square() - self.least_noise**2).log() if self.least_noise else noise.log()
        self.learnable("log_noise", log_noise, self.learn_noise)


class GaussianPredictive(MixturePredictive):
    """Real targets: draws of the mean, and the variance of the noise around each.

    Args:
        samples: The draws of the mean, (samples, n, targets).
        noise_variance: (targets,), or like `samples` when the noise depends on the input.
    """

    def __init__(self, samples: Tensor, noise_variance: Tensor) -> None:
        variance = precise(noise_variance)
        super().__init__(D.Normal, loc=samples, scale=variance.clamp_min(torch.finfo(variance.dtype).tiny).sqrt())

    @property
    def noise_variance(self) -> Tensor:
        """(samples, n, targets)."""
        return self.parameters["scale"].square()

    def cdf(self, y: Any, below: bool = False) -> Tensor:
        """1/S Σₛ Φ((y − fₛ)/σₛ), (n, targets), more exact in the tails than `D.Normal.cdf`."""
        return torch.special.ndtr((as_numbers(y, self.samples) - self.samples) / self.parameters["scale"]).mean(0)

    def crps(self, y: Any) -> Tensor:
        """1/S Σₛ A(y − fₛ, σₛ²) − 1/(2S²) Σₛₜ A(fₛ − fₜ, σₛ² + σₜ²), with A(m, v) = E|N(m, v)| (Grimit et al. 2006)."""
        y, samples, noise = as_numbers(y, self.samples), self.samples, self.noise_variance
        between = torch.zeros_like(y)
        for f, variance in zip(samples, noise, strict=True):
            between += _mean_absolute(f - samples, variance + noise).mean(0)
        return _mean_absolute(y - samples, noise).mean(0) - 0.5 * between / len(samples)

    def interval(self, level: float = 0.95) -> tuple[Tensor, Tensor]:
        """That of the Gaussian with the mixture's mean and variance: quantiles of the mixture take longer."""
        reach = self.std * NormalDist().inv_cdf((1 + check_fraction("level", level)) / 2)
        return self.mean - reach, self.mean + reach


def _mean_absolute(mean: Tensor, variance: Tensor) -> Tensor:
    """E|N(mean, variance)| = 2σ φ(m/σ) + m (2Φ(m/σ) − 1)."""
    std = variance.sqrt()
    z = mean / std
    density = (-0.5 * z.square()).exp() / math.sqrt(2 * math.pi)
    return 2 * std * density + mean * torch.erf(z / math.sqrt(2))
