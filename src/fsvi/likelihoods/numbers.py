"""What all likelihoods and predictions of numbers share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch import distributions as D

from fsvi.errors import InvalidInputError
from fsvi.likelihoods.base import Likelihood
from fsvi.likelihoods.predictive import Predictive, as_numbers, check_defined
from fsvi.serialization import plain


class NumberLikelihood(Likelihood):
    """Numbers, one per target, that are independent given the outputs. NaN is a missing target.

    A class of your own needs `losses` and `predictive`. `check_targets` accepts all real numbers.
    """

    takes_weights = True
    is_numeric = True

    @abstractmethod
    def losses(self, f: Tensor, y: Tensor) -> Tensor:
        """−log p(y|f) of every target by itself, (..., n, targets)."""

    def nll(self, f: Tensor, y: Tensor) -> Tensor:
        """Summed over the targets that are present, averaged over examples that have any."""
        missing = y.isnan()
        losses = self.losses(f, y.masked_fill(missing, 0.0)).masked_fill(missing, 0.0)
        return self.average(losses.sum(-1), ~missing.all(-1))

    def observed(self, y: Tensor) -> Tensor | None:
        """Examples with at least one target."""
        return ~y.isnan().all(-1)

    def check_targets(self, y: Tensor, num_outputs: int) -> Tensor:
        """Targets as floats (n, targets)."""
        if y.is_complex():
            raise InvalidInputError(f"targets have type {y.dtype}; {type(self).__name__} needs real numbers.")
        y = y if y.is_floating_point() else y.float()
        y = y.unsqueeze(1) if y.dim() == 1 else y
        if y.dim() != 2 or y.shape[1] != num_outputs:
            raise InvalidInputError(f"targets have shape {tuple(y.shape)}; this network predicts (n, {num_outputs}).")
        if bool(y.isinf().any()):
            raise InvalidInputError(f"targets have {int(y.isinf().sum())} infinite values: clean or drop those rows.")
        return y

    def learnable(self, name: str, values: Tensor, is_learned: bool) -> None:
        """Make these values a parameter, or a buffer if they are not learned."""
        if is_learned:
            setattr(self, name, nn.Parameter(values))
        else:
            self.register_buffer(name, values)

    def _setting(self, name: str) -> Any:
        """For files: where a learned value, which is saved with the tensors, has started."""
        return plain(getattr(self, f"_{name}")) if hasattr(self, f"_{name}") else super()._setting(name)

    def present(self, roots: Tensor, y: Tensor | None) -> Tensor:
        """Diagonal roots (n, targets) of the Fisher information as matrices, 0 for targets that are missing."""
        return (roots if y is None else roots.masked_fill(y.isnan(), 0.0)).diag_embed()


class MixturePredictive(Predictive):
    """Numbers whose distribution given a draw of the function is of a family of `torch.distributions`.

    It serves likelihoods of your own: `MixturePredictive(torch.distributions.Laplace, loc=f, scale=scale)`.

    Args:
        family: The class, such as `torch.distributions.Laplace`.
        parameters: Its arguments, each of shape (samples, n, targets) or smaller, as in broadcasting.
    """

    is_numeric = True

    def __init__(self, family: Callable[..., D.Distribution], **parameters: Tensor) -> None:
        super().__init__(family, **parameters)
        check_defined(self.variance[None])

    @property
    def variance(self) -> Tensor:
        """Var[y] = E[Var[y|f]] + Var[E[y|f]], (n, targets)."""
        return self.given_function().variance.mean(0) + self.function_variance

    def cdf(self, y: Any, below: bool = False) -> Tensor:
        """The mean over draws of P(Y ≤ y|fₛ), (n, targets)."""
        return self.given_function().cdf(as_numbers(y, self.samples)).mean(0)
