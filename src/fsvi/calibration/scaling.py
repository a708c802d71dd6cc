"""Scaling: a few numbers, fitted on held-out rows, that correct how confident predictions are.

Class probabilities are scaled draw by draw, before they are averaged. A temperature below 1, fitted where there are
data, would otherwise sharpen the average far from them, where disagreement of the draws is all that says "unknown".
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fsvi.errors import InvalidInputError
from fsvi.likelihoods import CategoricalPredictive, Predictive
from fsvi.metrics.checks import check_numbers, check_predictions, check_scores
from fsvi.serialization import Configurable
from fsvi.validation import check_positive

if TYPE_CHECKING:
    from typing_extensions import Self

_LIMIT = 20.0
"""Scales stay between 1/20 and 20: without errors among the held-out rows, the best temperature would be 0."""
_GRID = 17
"""Starting points per search; the likelihood of a mixture may have more than one minimum."""


class Rescaling(Configurable, ABC):
    """A correction of predictions, fitted on held-out rows."""

    @abstractmethod
    def fit(self, p: Any, y: Any) -> Self:
        """Choose the scale that gives held-out targets `y` the highest likelihood under predictions `p`.

        Args:
            p: Held-out predictions.
            y: Their targets.
        """

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

    def fit(self, p: Predictive, y: Any) -> Self:
        """Minimize the mean negative log-likelihood of held-out labels `y`."""
        self.temperature = _best_temperature(*_observed(p, y))
        return self

    def __call__(self, p: Predictive) -> Predictive:
        """The prediction at this temperature."""
        return p.with_class_logits(p.class_log_probs() / check_fitted(self, self.temperature))


class VectorScaling(Rescaling):
    """Scales and shifts every draw's log-probabilities, class by class: softmax(a ⊙ log pₛ + b) (Guo et al. 2017).

    It can also correct classes that are predicted too often, at the price of two numbers per class. Every class has to
    occur among the held-out labels; use it with at least tens of rows per class.

    Args:
        scale: a, (classes,), each between 1/20 and 20; None until `fit` has found it.
        bias: b, (classes,), with mean 0; None until `fit` has found it.
    """

    def __init__(self, scale: Any = None, bias: Any = None) -> None:
        self.scale = None if scale is None else check_scores("scale", scale)
        self.bias = None if bias is None else check_scores("bias", bias)

    def fit(self, p: Predictive, y: Any) -> Self:
        """Minimize the mean negative log-likelihood of held-out labels `y`, starting at the best temperature."""
        log_probs, y = _observed(p, y)
        absent = sorted(set(range(log_probs.shape[-1])) - set(y.tolist()))
        if absent:
            raise InvalidInputError(
                f"class {absent[0]} does not occur among the {len(y)} held-out labels, so VectorScaling would rule it "
                "out: give more rows or use TemperatureScaling."
            )
        self.scale, self.bias = _best_vectors(log_probs, y)
        return self

    def __call__(self, p: Predictive) -> Predictive:
        """The prediction with every class scaled and shifted."""
        log_probs = p.class_log_probs()
        scale, bias = (check_fitted(self, value).to(log_probs) for value in (self.scale, self.bias))
        return p.with_class_logits(log_probs * scale + bias)


class VarianceScaling(Rescaling):
    """Multiplies the predictive standard deviation of each real target by a factor; the mean stays.

    Draws move to m + k (fₛ − m), where m is their mean, and the noise variance becomes k² σ². So the whole variance
    grows by k², near the data and far from them.

    Args:
        factor: k, (targets,); None until `fit` has found it.
    """

    def __init__(self, factor: Any = None) -> None:
        self.factor = None if factor is None else check_scores("factor", factor)

    def fit(self, p: Predictive, y: Any) -> Self:
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
    return _best_scale(lambda factor: -float(_widened(p, factor).log_prob(y).mean()))


def _best_scale(loss: Callable[[float], float]) -> float:
    """The scale of the lowest loss: the best point of a grid, refined between its neighbors."""
    from scipy.optimize import minimize_scalar  # takes long to import

    grid = torch.linspace(-math.log(_LIMIT), math.log(_LIMIT), _GRID, dtype=torch.float64).tolist()
    losses = [loss(math.exp(point)) for point in grid]
    best = losses.index(min(losses))
    if not math.isfinite(losses[best]):
        raise InvalidInputError("p gives a held-out target probability 0, which no scaling changes.")
    ends = grid[max(best - 1, 0)], grid[min(best + 1, _GRID - 1)]
    options = {"xatol": 1e-9}
    return math.exp(minimize_scalar(lambda x: loss(math.exp(x)), bounds=ends, method="bounded", options=options).x)


def _best_temperature(log_probs: Tensor, y: Tensor) -> float:
    return _best_scale(lambda scale: -float(CategoricalPredictive(log_probs / scale).log_prob(y).mean()))


def _best_vectors(log_probs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The scale and the bias of the lowest loss; a shift of all biases changes nothing, so they get mean 0."""
    from scipy.optimize import minimize

    def loss(values: Any) -> tuple[float, Any]:
        vector = torch.tensor(values, requires_grad=True)
        scale, bias = vector.chunk(2)
        value = -CategoricalPredictive(log_probs * scale + bias).log_prob(y).mean()
        (gradient,) = torch.autograd.grad(value, vector)
        return value.item(), gradient.numpy()

    classes = log_probs.shape[-1]
    first = [1 / _best_temperature(log_probs, y)] * classes + [0.0] * classes
    bounds = [(1 / _LIMIT, _LIMIT)] * classes + [(-_LIMIT, _LIMIT)] * classes
    options = {"maxiter": 1000, "ftol": 1e-13, "gtol": 1e-8}
    found = minimize(loss, first, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    scale, bias = torch.as_tensor(found.x).chunk(2)
    return scale.clone(), bias - bias.mean()


def _observed(p: Predictive, y: Any) -> tuple[Tensor, Tensor]:
    """Every draw's log-probabilities (samples, n, classes) in float64 where there is a label, and the labels."""
    log_probs = p.class_log_probs().detach().cpu().double()
    _, y, observed = check_predictions(p, y)
    return log_probs[:, observed], y
