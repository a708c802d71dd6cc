"""What all likelihoods and predictions of numbers share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch import distributions as D
from torch.utils._python_dispatch import TorchDispatchMode

from fsvi.errors import InvalidInputError
from fsvi.likelihoods.base import Likelihood, Predictive, as_numbers, check_defined, log_mean_exp, precise
from fsvi.networks.calls import is_transformed
from fsvi.networks.devices import make_generator
from fsvi.validation import check_fraction

_BISECTIONS = 60
"""halvings of the interval around a quantile: more than the bits of a float64"""
_NODES = 200
"""points of the quadrature on each side of the target"""
_LEVEL = 0.95


class _Drawing(TorchDispatchMode):
    """All random numbers come from one generator, since torch.distributions would take torch's global one."""

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self._own = {"generator": generator}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        func = getattr(func.overloadpacket, "generator", func)
        takes = any(argument.name == "generator" for argument in func._schema.arguments)
        return func(*args, **{**(kwargs or {}), **(self._own if takes else {})})


class NumberLikelihood(Likelihood):
    """Numbers, one per target, that are independent given the outputs. NaN is a missing target.

    A class of your own needs `losses` and `predictive`. `check_targets` accepts all real numbers.
    """

    takes_weights = True
    is_numeric = True

    def num_targets(self, num_outputs: int) -> int:
        """The number of targets per input; one per output."""
        return num_outputs

    @abstractmethod
    def losses(self, f: Tensor, y: Tensor) -> Tensor:
        """−log p(y|f) of every target by itself, (..., n, targets)."""

    def nll(self, f: Tensor, y: Tensor) -> Tensor:
        """Summed over the targets that are present, averaged over examples that have any."""
        missing = y.isnan()
        # On an accelerator, this check would wait for the device.
        if y.device.type == "cpu" and not is_transformed() and not bool(missing.any()):
            return self.average(self.losses(f, y).sum(-1))
        losses = self.losses(f, torch.where(missing, 0.0, y))
        losses = torch.where(missing, 0.0, losses).sum(-1)
        return self.average(losses, ~missing.all(-1))

    def observed(self, y: Tensor) -> Tensor | None:
        """Examples with at least one target."""
        return ~y.isnan().all(-1)

    def check_targets(self, y: Tensor, num_outputs: int) -> Tensor:
        """Targets as floats (n, targets)."""
        if y.is_complex():
            raise InvalidInputError(f"targets have type {y.dtype}; {type(self).__name__} needs real numbers.")
        targets = self.num_targets(num_outputs)
        y = y if y.is_floating_point() else y.float()
        y = y.unsqueeze(1) if y.dim() == 1 else y
        if y.dim() != 2 or y.shape[1] != targets:
            raise InvalidInputError(f"targets have shape {tuple(y.shape)}; this network predicts (n, {targets}).")
        if bool(y.isinf().any()):
            raise InvalidInputError(f"targets have {int(y.isinf().sum())} infinite values: clean or drop those rows.")
        return y

    def present(self, roots: Tensor, y: Tensor | None) -> Tensor:
        """Diagonal roots (n, targets) of the Fisher information as matrices, 0 for targets that are missing."""
        return (roots if y is None else torch.where(y.isnan(), 0.0, roots)).diag_embed()


class NumericPredictive(Predictive):
    """Numbers; a class of your own needs `samples` and `given_function`."""

    score_name = "standard deviation"
    is_numeric = True
    outputs_name = "targets"

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

    def noisy(self, draws: Tensor, generator: torch.Generator) -> Tensor:
        """Targets per draw and input, (len(draws), n, targets)."""
        chosen = self.draws(draws.to(self.samples.device)).given_function()
        with _Drawing(make_generator(int(torch.randint(2**62, (), generator=generator)), self.samples.device)):
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
        unit = self.std + (y - self.mean).abs()
        nodes, weights = np.polynomial.legendre.leggauss(_NODES)
        total = torch.zeros_like(y)
        for node, weight in zip((nodes + 1) / 2, weights / 2, strict=True):
            step, slope = node / (1 - node), 1 / (1 - node) ** 2
            squares = self.cdf(y - step * unit).square() + (1 - self.cdf(y + step * unit)).square()
            total = total + weight * slope * squares
        return total * unit

    def interval(self, level: float = _LEVEL) -> tuple[Tensor, Tensor]:
        """The central interval with probability `level`, (n, targets) each."""
        tail = (1 - check_fraction("level", level)) / 2
        return self.one_quantile(tail), self.one_quantile(1 - tail)

    def columns(self) -> dict[str, Tensor]:
        """The mean, the standard deviation with the noise, and the 95% interval of every target."""
        p = self.rows()
        lower, upper = p.table_interval()
        parts = {"mean": p.mean, "std": p.std, "lower": lower, "upper": upper}
        targets = p.mean.shape[1]
        return {
            name if targets == 1 else f"{name}_{target}": values[:, target]
            for target in range(targets)
            for name, values in parts.items()
        }

    def table_interval(self) -> tuple[Tensor, Tensor]:
        """The interval in a table, (n, targets) each."""
        return self.interval()

    def check_variance(self) -> None:
        """Refuse predictions whose mean or variance overflowed."""
        if self.samples.numel() > 0:
            check_defined(self.variance, axis=0)

    def graph_outputs(self) -> dict[str, Tensor]:
        """The mean of every target, and its standard deviation with the noise."""
        return {"mean": self.mean, "std": self.std}


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
        shape = torch.broadcast_shapes(*(values.shape for values in parameters.values()))
        self.parameters = {name: precise(values.detach()).expand(shape) for name, values in parameters.items()}
        for values in self.parameters.values():
            check_defined(values)

    @property
    def samples(self) -> Tensor:  # type: ignore[override]
        """(samples, n, targets): each draw's mean of the targets."""
        return self.given_function().mean

    def given_function(self) -> D.Distribution:
        """The family with each draw's parameters."""
        return self.family(**self.parameters, validate_args=False)
