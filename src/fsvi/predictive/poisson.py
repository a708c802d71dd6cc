"""Predictions of counts."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch import distributions as D

from fsvi.predictive.base import as_numbers, precise
from fsvi.predictive.numeric import MixturePredictive

_TAIL = 1e-10
"""the probability of larger counts that the CRPS leaves out"""


class PoissonPredictive(MixturePredictive):
    """Counts: a mixture over draws of Poisson distributions.

    Args:
        log_rates: The draws' outputs, log E[y|f], (samples, n, targets).
    """

    family = D.Poisson

    def __init__(self, log_rates: Tensor) -> None:
        self._keep({"rate": precise(log_rates).exp()})

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
        last = torch.maximum(self.one_quantile(1 - _TAIL).max(), y.max())
        total = torch.zeros_like(y)
        for count in range(int(last) + 1):
            step = (count >= y).to(y.dtype)
            total = total + (self.cdf(torch.full_like(y, count)) - step).square()
        return total

    def constant_nll(self, y: Tensor) -> float | None:
        """That of one Poisson distribution with the mean of the counts."""
        y = y.double()
        logs = D.Poisson(y.nanmean(0).clamp_min(1e-12), validate_args=False).log_prob(y.nan_to_num(0.0))
        return -float(torch.where(y.isnan(), 0.0, logs).sum(-1).mean())
