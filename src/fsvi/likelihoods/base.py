"""p(y|f): how targets arise from the network's outputs.

Outputs have the shape (samples, n, outputs). A network with outputs at every position of an input, as of a text or an
image, has (samples, n, positions..., outputs). Predictions and targets have positions in the same place.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

from torch import Tensor, nn

from fsvi.errors import InvalidInputError
from fsvi.likelihoods.predictive import Predictive
from fsvi.serialization import Configurable


class Likelihood(Configurable, nn.Module, ABC):
    """The distribution of a target given the network's outputs f at its input.

    A likelihood of your own needs `check_targets`, `nll` and `predictive`. Constructor arguments are kept as attributes
    of the same name, so that files can describe it.
    """

    takes_weights: ClassVar[bool] = False
    """whether `nll` averages with the `weights` of a minibatch's examples, by `average`"""
    is_numeric: ClassVar[bool] = False
    """whether targets are numbers: some methods have other defaults for them"""
    weights: Tensor | None = None
    """weights (n,) of the examples of the minibatch in hand, 1 on average over all data; None: all are equal"""

    def bind(self, num_outputs: int) -> None:
        """Get ready for a network with this number of outputs; the method that uses the likelihood calls it."""

    @abstractmethod
    def check_targets(self, y: Tensor, num_outputs: int) -> Tensor:
        """The targets in the form that `nll` takes, or an error that says what is wrong with them."""

    @abstractmethod
    def nll(self, f: Tensor, y: Tensor) -> Tensor:
        """−log p(y|f), a scalar: summed over targets, averaged by `average` over everything else.

        Args:
            f: Outputs, (..., n, outputs).
            y: Targets that `check_targets` returned.
        """

    @abstractmethod
    def predictive(self, f: Tensor) -> Predictive:
        """The predictive distribution of function draws `f` (samples, n, positions..., outputs)."""

    def observed(self, y: Tensor) -> Tensor | None:
        """Which examples or positions have a target; None if all have one. The others do not count in `nll`."""
        return None

    def num_observed(self, y: Tensor) -> int | Tensor:
        """The number of examples or positions that have a target; a tensor where it must be counted."""
        observed = self.observed(y)
        return len(y) if observed is None else observed.sum()

    def average(self, losses: Tensor, observed: Tensor | None = None) -> Tensor:
        """The mean of losses (..., n) over the examples that are `observed`, each multiplied by its weight if any."""
        losses = losses if self.weights is None else losses * self.weights
        if observed is None:
            return losses.mean()
        shares = observed.to(losses.dtype).mean().clamp_min(1 / max(1, observed.numel()))
        return losses.mean() / shares

    def fisher_root(self, f: Tensor, y: Tensor | None = None) -> Tensor:
        """S, (n, outputs, columns), with S Sᵀ the Fisher information of `f` (n, outputs) in a target: its curvature.

        Args:
            f: Outputs, (n, outputs).
            y: Targets; those that are missing have no curvature. None if all are present.
        """
        raise InvalidInputError(f"{type(self).__name__} has no `fisher_root`, which methods with curvature need.")


@contextmanager
def weighted(module: nn.Module, weights: Tensor) -> Iterator[None]:
    """While a step is made, let all likelihoods in `module` know the weights of the minibatch's examples."""
    likelihoods = [part for part in module.modules() if isinstance(part, Likelihood)]
    for likelihood in likelihoods:
        likelihood.weights = weights
    try:
        yield
    finally:
        for likelihood in likelihoods:
            likelihood.weights = None
