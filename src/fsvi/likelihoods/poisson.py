"""Counts."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch import distributions as D

from fsvi.errors import InvalidInputError
from fsvi.likelihoods.base import as_numbers, precise
from fsvi.likelihoods.numbers import NumberLikelihood, NumericPredictive

_TAIL = 1e-10
"""the probability of larger counts that the CRPS leaves out"""


class Poisson(NumberLikelihood):
    """Counts 0, 1, 2, …, one per output of the network; the outputs are the logs of their means.

    NaN is a missing count.

    Examples:
        >>> x = torch.linspace(-1, 1, 50)[:, None]
        >>> net = fsvi.networks.mlp(1, (20,), 1)
        >>> y = torch.poisson((1 + x).exp())
        >>> method = fsvi.MAP(net, fsvi.Poisson())
        >>> history = fsvi.fit(method, (x, y), epochs=20, seed=0)
        >>> method.predict(x).quantile([0.05, 0.95]).shape
        torch.Size([2, 50, 1])
    """

    def check_targets(self, y: Tensor, num_outputs: int) -> Tensor:
        """Counts as floats (n, outputs)."""
        y = super().check_targets(y, num_outputs)
        wrong = ~y.isnan() & ((y < 0) | (y != y.floor()))
        if bool(wrong.any()):
            raise InvalidInputError(f"targets hold {y[wrong][0]:.4g}; Poisson needs whole numbers of at least 0.")
        return y

    def losses(self, f: Tensor, y: Tensor) -> Tensor:
        """e^f − y f + log y!."""
        return f.exp() - y * f + torch.lgamma(y + 1)

    def predictive(self, f: Tensor) -> PoissonPredictive:
        """Mixture of Poisson distributions."""
        return PoissonPredictive(f)

    def fisher_root(self, f: Tensor, y: Tensor | None = None) -> Tensor:
        """The root of the mean of every count."""
        return self.present((0.5 * f).exp(), y)


class PoissonPredictive(NumericPredictive):
    """Counts: a mixture over draws of Poisson distributions.

    Args:
        log_rates: The draws' outputs, log E[y|f], (samples, n, targets).
    """

    def __init__(self, log_rates: Tensor) -> None:
        self.samples = precise(log_rates).exp()
        self.check_variance()

    def given_function(self) -> D.Poisson:
        """The Poisson distribution of each draw."""
        return D.Poisson(self.samples, validate_args=False)

    def point(self) -> Tensor:
        """E[y], rounded to a count, (n, targets)."""
        return self.mean.round()

    def cdf(self, y: Any, below: bool = False) -> Tensor:
        """P(Y ≤ y), (n, targets), for any real y."""
        y = as_numbers(y, self.samples)
        last = y.ceil() - 1 if below else y.floor()
        chance = torch.special.gammaincc((last + 1).clamp_min(1), self.samples.to(last.dtype))
        return torch.where(last < 0, 0.0, chance).mean(0)

    def one_quantile(self, q: float) -> Tensor:
        """The smallest count with a distribution function of at least `q`, by bisection."""
        low = torch.full_like(self.mean, -1.0)
        high = self.samples.amax(0).ceil() + 1
        while bool((short := self.cdf(high) < q).any()):
            high = torch.where(short, 2 * high, high)
        while bool((high - low > 1).any()):
            middle = ((low + high) / 2).floor()
            enough = self.cdf(middle) >= q
            low, high = torch.where(enough, low, middle), torch.where(enough, middle, high)
        return high

    def crps(self, y: Any) -> Tensor:
        """Σₖ (F(k) − 1[k ≥ y])² over counts k, (n, targets), which is the integral of a step function."""
        y = as_numbers(y, self.samples)
        last = torch.maximum(self.one_quantile(1 - _TAIL).max(), y.nan_to_num(0.0).max())
        total = torch.zeros_like(y)
        for count in range(int(last) + 1):
            step = (count >= y).to(y.dtype)
            total = total + (self.cdf(torch.full_like(y, count)) - step).square()
        return torch.where(y.isnan(), y, total)

    def constant_nll(self, y: Tensor) -> float | None:
        """That of one Poisson distribution with the mean of the counts."""
        y = y.double().reshape(-1, y.shape[-1])
        logs = D.Poisson(y.nanmean(0).clamp_min(1e-12), validate_args=False).log_prob(y.nan_to_num(0.0))
        return -float(torch.where(y.isnan(), 0.0, logs).sum(-1).mean())
