"""p(y|f): how targets arise from the network's outputs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

import torch
from torch import Tensor, nn

from fsvi.errors import InvalidInputError
from fsvi.networks.functional import is_transformed
from fsvi.predictive import Predictive
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
    has_probit: ClassVar[bool] = False
    """whether probabilities are sigmoids or a softmax of outputs, so that `Laplace` can average them in closed form"""
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
        """The predictive distribution of function draws `f` (samples, n, outputs)."""

    def observed(self, y: Tensor) -> Tensor | None:
        """Which examples have a target, (n,); None if all have one. The others do not count in `nll`."""
        return None

    def num_observed(self, y: Tensor) -> int | Tensor:
        """The number of examples that have a target; a tensor where it must be counted, so that no device waits."""
        observed = self.observed(y)
        return len(y) if observed is None else observed.sum().clamp_min(1)

    def average(self, losses: Tensor, observed: Tensor | None = None) -> Tensor:
        """The mean of losses (..., n) over the examples that are `observed`, each multiplied by its weight if any."""
        losses = losses if self.weights is None else losses * self.weights
        if observed is None:
            return losses.mean()
        shares = observed.to(losses.dtype).mean().clamp_min(1 / max(1, len(observed)))
        return losses.mean() / shares

    def fisher_root(self, f: Tensor, y: Tensor | None = None) -> Tensor:
        """S, (n, outputs, columns), with S Sᵀ the Fisher information of `f` (n, outputs) in a target: its curvature.

        Args:
            f: Outputs, (n, outputs).
            y: Targets; those that are missing have no curvature. None if all are present.
        """
        raise InvalidInputError(f"{type(self).__name__} has no `fisher_root`, which methods with curvature need.")


@contextmanager
def weighted(module: nn.Module, weights: Tensor | None) -> Iterator[None]:
    """While a step is made, let all likelihoods in `module` know the weights of the minibatch's examples."""
    likelihoods = [] if weights is None else [part for part in module.modules() if isinstance(part, Likelihood)]
    for likelihood in likelihoods:
        likelihood.weights = weights
    try:
        yield
    finally:
        for likelihood in likelihoods:
            likelihood.weights = None


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
        kind = type(self).__name__
        if y.is_complex():
            raise InvalidInputError(f"targets have type {y.dtype}; {kind} needs real numbers.")
        targets = self.num_targets(num_outputs)
        y = y if y.is_floating_point() else y.float()
        y = y.unsqueeze(1) if y.dim() == 1 else y
        if y.dim() != 2 or y.shape[1] != targets:
            raise InvalidInputError(f"targets have shape {tuple(y.shape)}; this network predicts (n, {targets}).")
        if bool(y.isinf().any()):
            raise InvalidInputError(f"targets have {int(y.isinf().sum())} infinite values: clean or drop those rows.")
        if bool(y.isnan().all()):
            raise InvalidInputError("all targets are NaN: at least one must be present.")
        return y

    def present(self, roots: Tensor, y: Tensor | None) -> Tensor:
        """Diagonal roots (n, targets) of the Fisher information as matrices, 0 for targets that are missing."""
        return (roots if y is None else torch.where(y.isnan(), 0.0, roots)).diag_embed()
