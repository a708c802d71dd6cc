"""Scaling: a number, or one per target, fitted on held-out rows, that corrects how confident predictions are.

Class probabilities are scaled draw by draw, before they are averaged. A temperature below 1, fitted where there are
data, would otherwise sharpen the average far from them, where disagreement of the draws is all that says "unknown".
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fsvi.errors import InvalidInputError
from fsvi.likelihoods import Predictive
from fsvi.metrics.checks import check_numbers, check_predictions, check_scores, exact
from fsvi.serialization import Configurable
from fsvi.validation import check_positive

_LIMIT = 20.0
"""Scales stay between 1/20 and 20: without errors among the held-out rows, the best temperature would be 0."""
_GRID = 17
"""Starting points per search; the likelihood of a mixture may have more than one minimum."""


class Rescaling(Configurable, ABC):
    """A correction of predictions that gives held-out targets the highest likelihood."""

    @abstractmethod
    def fit(self, p: Any, y: Any) -> Rescaling:
        """Choose the scale from held-out predictions `p` and their targets `y`."""

    @abstractmethod
    def __call__(self, p: Any) -> Predictive:
        """The scaled prediction, with the same draws."""


class TemperatureScaling(Rescaling):
    """Divides every draw's logits by one temperature: p(y|x) = 1/S Σₛ softmax(fₛ(x) / T) (Guo et al. 2017).

    T above 1 makes predictions less confident, T below 1 more confident. It is searched between 1/20 and 20.

    Args:
        temperature: T; None until `fit` has found it.
    """

    def __init__(self, temperature: float | None = None) -> None:
        self.temperature = None if temperature is None else check_positive("temperature", temperature)

    def fit(self, p: Predictive, y: Any) -> TemperatureScaling:
        """Minimize the mean negative log-likelihood of held-out labels `y`."""
        _, y, observed = check_predictions(p, y)
        p = exact(p).rows()[observed.flatten()]
        self.temperature = _best_scale(lambda temperature: p.tempered(temperature).log_prob(y))
        return self

    def __call__(self, p: Predictive) -> Predictive:
        """The prediction at this temperature."""
        return p.tempered(check_fitted(self, self.temperature))


class VarianceScaling(Rescaling):
    """Multiplies the predictive standard deviation of each real target by a factor; the mean stays.

    Draws move to m + k (fₛ − m), where m is their mean, and the noise variance becomes k² σ². So the whole variance
    grows by k², near the data and far from them.

    Args:
        factor: k, (targets,); None until `fit` has found it.
    """

    def __init__(self, factor: Any = None) -> None:
        self.factor = None if factor is None else check_scores("factor", factor)

    def fit(self, p: Predictive, y: Any) -> VarianceScaling:
        """Minimize the mean negative log-likelihood of held-out targets `y`, each target by itself."""
        p, y = check_numbers(p, y)
        best = [_best_factor(p.column(target), y[:, target]) for target in range(y.shape[1])]
        self.factor = torch.tensor(best, dtype=torch.float64)
        return self

    def __call__(self, p: Predictive) -> Predictive:
        """The prediction with scaled standard deviations."""
        return _widened(p, check_fitted(self, self.factor).to(p.samples))


def check_fitted(step: Any, value: Any) -> Any:
    """What a step has learned, or the error that it has not."""
    if value is None:
        raise InvalidInputError(f"{type(step).__name__} is not fitted: call fit(p, y) with held-out rows first.")
    return value


def _widened(p: Predictive, factor: Any) -> Predictive:
    return p.moved(p.mean + factor * (p.samples - p.mean), factor)


def _best_factor(p: Predictive, y: Tensor) -> float:
    return _best_scale(lambda factor: _widened(p, factor).log_prob(y))


def _best_scale(log_prob: Callable[[float], Tensor]) -> float:
    """The scale of the highest mean likelihood: the best point of a grid, refined between its neighbors."""
    from scipy.optimize import minimize_scalar  # takes long to import

    def loss(log_scale: float) -> float:
        return -float(log_prob(math.exp(log_scale)).mean())

    grid = torch.linspace(-math.log(_LIMIT), math.log(_LIMIT), _GRID, dtype=torch.float64).tolist()
    losses = [loss(point) for point in grid]
    best = losses.index(min(losses))
    if not math.isfinite(losses[best]):
        raise InvalidInputError("p gives a held-out target probability 0, which no scaling changes.")
    ends = grid[max(best - 1, 0)], grid[min(best + 1, _GRID - 1)]
    return math.exp(minimize_scalar(loss, bounds=ends, method="bounded", options={"xatol": 1e-9}).x)
