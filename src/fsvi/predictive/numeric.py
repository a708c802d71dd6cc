"""Predictions of numbers: mixtures over draws of any `torch.distributions` family."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch import distributions as D

from fsvi.predictive.base import Predictive, as_numbers, log_mean_exp, precise
from fsvi.validation import check_fraction

_BISECTIONS = 60
"""halvings of the interval around a quantile: more than the bits of a float64"""
_NODES = 200
"""points of the quadrature on each side of the target"""
_LEVEL = 0.95


class NumericPredictive(Predictive):
    """Numbers; a class of your own needs `samples` and `given_function`."""

    score_name = "standard deviation"
    is_numeric = True

    @abstractmethod
    def given_function(self) -> D.Distribution:
        """The distribution of targets given each draw of the function, with batch shape (samples, n, targets)."""

    @property
    def variance(self) -> Tensor:
        """Var[y] = E[Var[y|f]] + Var[E[y|f]], (n, targets)."""
        return self.given_function().variance.mean(0) + self.function_variance

    def log_prob(self, y: Any) -> Tensor:
        """log 1/S Σₛ Π_q p(y_q|fₛ(x)), (n,); targets that are NaN are left out."""
        y = as_numbers(y, self.samples)
        missing = y.isnan()
        logs = self.given_function().log_prob(torch.where(missing, self.mean.to(y.dtype), y))
        return log_mean_exp(torch.where(missing, 0.0, logs).sum(-1))

    @property
    def score(self) -> Tensor:
        """The predictive standard deviation, (n,): the root of the variance averaged over targets."""
        return self.variance.mean(-1).sqrt()

    def distribution(self) -> D.MixtureSameFamily:
        """The mixture over draws of independent targets, with events (targets,)."""
        moved = self.mapped(lambda values: values.movedim(0, 1))
        components = D.Independent(moved.given_function(), 1)
        weights = D.Categorical(logits=self.samples.new_zeros(len(self), self.num_draws), validate_args=False)
        return D.MixtureSameFamily(weights, components, validate_args=False)

    def noisy(self, draws: Tensor, generator: torch.Generator) -> Tensor:
        """Targets per draw and input, (len(draws), n, targets)."""
        chosen = self.draws(draws.to(self.samples.device)).given_function()
        with torch.random.fork_rng(devices=[]):  # torch.distributions has no generator argument
            torch.manual_seed(int(torch.randint(2**62, (), generator=generator)))
            return chosen.sample()

    def cdf(self, y: Any, below: bool = False) -> Tensor:
        """The mean over draws of P(Y ≤ y|fₛ), (n, targets)."""
        return self.given_function().cdf(as_numbers(y, self.samples)).mean(0)

    def one_quantile(self, q: float) -> Tensor:
        """By bisection between the least and the largest quantile over draws."""
        low, high = self.bracket(q)
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2
            enough = self.cdf(middle) >= q
            low, high = torch.where(enough, low, middle), torch.where(enough, middle, high)
        return high

    def bracket(self, q: float) -> tuple[Tensor, Tensor]:
        """Two values (n, targets) with the quantile between them."""
        quantiles = self.given_function().icdf(self.samples.new_tensor(q))
        return quantiles.amin(0), quantiles.amax(0)

    def crps(self, y: Any) -> Tensor:
        """By Gauss–Legendre quadrature of F² below y and of (1 − F)² above, each half-line mapped to (0, 1)."""
        y = as_numbers(y, self.samples)
        unit = self.variance.sqrt() + (y - self.mean).abs()
        nodes, weights = np.polynomial.legendre.leggauss(_NODES)
        total = torch.zeros_like(y)
        for node, weight in zip((nodes + 1) / 2, weights / 2, strict=True):
            step, slope = node / (1 - node), 1 / (1 - node) ** 2
            squares = self.cdf(y - step * unit).square() + (1 - self.cdf(y + step * unit)).square()
            total = total + weight * slope * squares
        return total * unit

    def interval(self, level: float = 0.95) -> tuple[Tensor, Tensor]:
        """The central interval with probability `level`, (n, targets) each."""
        tail = (1 - check_fraction("level", level)) / 2
        return self.one_quantile(tail), self.one_quantile(1 - tail)

    def columns(self) -> dict[str, Tensor]:
        """The mean, the standard deviation with the noise, and the 95% interval of every target."""
        mean, (lower, upper) = self.mean, self._bounds()
        parts = {"mean": mean, "std": self.variance.sqrt(), "lower": lower, "upper": upper}
        targets = mean.shape[1]
        return {
            name if targets == 1 else f"{name}_{target}": values[:, target]
            for target in range(targets)
            for name, values in parts.items()
        }

    def graph_outputs(self) -> dict[str, Tensor]:
        """The mean of every target, and its standard deviation with the noise."""
        return {"mean": self.mean, "std": self.variance.sqrt()}

    def _bounds(self) -> tuple[Tensor, Tensor]:
        """The interval in a table."""
        return self.interval(_LEVEL)


class MixturePredictive(NumericPredictive):
    """Numbers whose distribution given a draw of the function is of a family of `torch.distributions`.

    It serves likelihoods of your own: `MixturePredictive(torch.distributions.Laplace, loc=f, scale=scale)`.

    Args:
        family: The class, such as `torch.distributions.Laplace`.
        parameters: Its arguments, each of shape (samples, n, targets) or smaller, as in broadcasting.
    """

    family: Callable[..., D.Distribution]
    parameters: dict[str, Tensor]

    def __init__(self, family: Callable[..., D.Distribution], **parameters: Tensor) -> None:
        self.family = family
        self._keep(parameters)

    def _keep(self, parameters: dict[str, Tensor]) -> None:
        """Give all parameters the shape (samples, n, targets)."""
        shape = torch.broadcast_shapes(*(values.shape for values in parameters.values()))
        self.parameters = {name: precise(values.detach()).expand(shape) for name, values in parameters.items()}

    @property
    def samples(self) -> Tensor:  # type: ignore[override]
        """(samples, n, targets): each draw's mean of the targets."""
        return self.given_function().mean

    def given_function(self) -> D.Distribution:
        """The family with each draw's parameters."""
        return self.family(**self.parameters, validate_args=False)
