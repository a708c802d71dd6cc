"""Counts."""

from __future__ import annotations

import torch
from torch import Tensor

from fsvi.errors import InvalidInputError
from fsvi.likelihoods.base import NumberLikelihood
from fsvi.predictive import PoissonPredictive


class Poisson(NumberLikelihood):
    """Counts 0, 1, 2, …, one per output of the network; the outputs are the logs of their means.

    NaN is a missing count.
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
