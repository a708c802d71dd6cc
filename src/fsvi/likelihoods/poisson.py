"""Counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch import distributions as D

from fsvi.errors import InvalidInputError
from fsvi.likelihoods.numbers import MixturePredictive, NumberLikelihood
from fsvi.likelihoods.predictive import as_numbers, precise

_TAIL = 1e-10
"""the probability of larger counts that the CRPS leaves out"""


class Poisson(NumberLikelihood):
    """Counts 0, 1, 2, …, one per output of the network; the outputs are the logs of their means.

    NaN is a missing count.

    Examples:
        >>> f = torch.zeros(10, 4, 1)  # outputs of 10 draws of the function at 4 inputs
        >>> fsvi.Poisson().predictive(f).quantile(0.95)[0]
        tensor([3.])
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


class PoissonPredictive(MixturePredictive):
    """Counts: a mixture over draws of Poisson distributions.

    Args:
        log_rates: The draws' outputs, log E[y|f], (samples, n, targets).
    """

    def __init__(self, log_rates: Tensor) -> None:
        super().__init__(D.Poisson, rate=precise(log_rates).exp())

    def cdf(self, y: Any, below: bool = False) -> Tensor:
        """P(Y ≤ y), (n, targets), for any real y."""
        y = as_numbers(y, self.samples)
        last = y.ceil() - 1 if below else y.floor()
        chance = torch.special.gammaincc((last + 1).clamp_min(1), self.samples.to(last.dtype))
        return torch.where(last < 0, 0.0, chance).mean(0)

    def quantile(self, q: float | Sequence[float]) -> Tensor:
        """The smallest count with a distribution function of at least `q`, of each target by itself."""
        return super().quantile(q).floor()

    def crps(self, y: Any) -> Tensor:
        """Σₖ (F(k) − 1[k ≥ y])² over counts k, (n, targets), which is the integral of a step function."""
        y = as_numbers(y, self.samples)
        last = torch.maximum(self.quantile(1 - _TAIL).max(), y.nan_to_num(0.0).max())
        total = torch.zeros_like(y)
        for count in range(int(last) + 1):
            step = (count >= y).to(y.dtype)
            total = total + (self.cdf(torch.full_like(y, count)) - step).square()
        return torch.where(y.isnan(), y, total)
