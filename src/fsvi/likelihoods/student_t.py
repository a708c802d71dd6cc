"""Real targets with outliers."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch import distributions as D

from fsvi.errors import InvalidInputError
from fsvi.likelihoods.numbers import MixturePredictive, NumberLikelihood
from fsvi.likelihoods.predictive import as_numbers
from fsvi.validation import check_positive

_LEAST_DF = 2.0
"""where the variance becomes infinite"""


class StudentT(NumberLikelihood):
    """Real targets with noise from a Student's t distribution, whose heavy tails forgive outliers.

    NaN is a missing target.

    Args:
        scale: Where learning the scale of the noise starts, one value per output.
        df: The degrees of freedom, above 2, so that the noise has a variance. Small numbers have heavier tails; at 30
            the noise is almost Gaussian.
        learn_scale: Whether the scale is learned.
        learn_df: Whether the degrees of freedom are learned, one value per output. It takes hundreds of examples.

    Examples:
        >>> f = torch.zeros(10, 4, 1)  # outputs of 10 draws of the function at 4 inputs
        >>> fsvi.StudentT().predictive(f).quantile([0.05, 0.95]).shape
        torch.Size([2, 4, 1])
    """

    log_scale: Tensor
    log_excess: Tensor
    """log(df − 2)"""

    def __init__(self, scale: float = 0.5, df: float = 4.0, learn_scale: bool = True, learn_df: bool = False) -> None:
        super().__init__()
        self._scale, self._df = check_positive("scale", scale), check_positive("df", df)
        if df <= _LEAST_DF:
            raise InvalidInputError(f"df={df} must be above {_LEAST_DF:.0f}: otherwise the noise has no variance.")
        self.learn_scale = learn_scale
        self.learn_df = learn_df
        self.bind(1)

    def bind(self, num_outputs: int) -> None:
        """One scale and one number of degrees of freedom per output."""
        self.learnable("log_scale", torch.full((num_outputs,), math.log(self._scale)), self.learn_scale)
        self.learnable("log_excess", torch.full((num_outputs,), math.log(self._df - _LEAST_DF)), self.learn_df)

    @property
    def scale(self) -> Tensor:
        """The scale of the noise, one per output."""
        return self.log_scale.detach().exp()

    @property
    def df(self) -> Tensor:
        """The degrees of freedom, one per output."""
        return self._freedom().detach()

    def losses(self, f: Tensor, y: Tensor) -> Tensor:
        """−log of the t density of y at location f."""
        df = self._freedom()
        constant = torch.lgamma(df / 2) - torch.lgamma((df + 1) / 2) + 0.5 * (math.pi * df).log() + self.log_scale
        return constant + (df + 1) / 2 * torch.log1p(((y - f) / self.log_scale.exp()).square() / df)

    def predictive(self, f: Tensor) -> StudentTPredictive:
        """Mixture of t distributions."""
        return StudentTPredictive(f.detach(), self.scale, self.df)

    def fisher_root(self, f: Tensor, y: Tensor | None = None) -> Tensor:
        """√((df + 1)/(df + 3)) / scale for every location."""
        roots = ((self.df + 1) / (self.df + 3)).sqrt() / self.scale
        return self.present(roots.to(f).expand(f.shape), y)

    def _freedom(self) -> Tensor:
        return _LEAST_DF + self.log_excess.exp()


class StudentTPredictive(MixturePredictive):
    """Real targets with heavy tails: a mixture over draws of Student's t distributions.

    The distribution function and quantiles are computed by SciPy on the CPU, because PyTorch does not have them.

    Args:
        samples: The draws of the location, (samples, n, targets).
        scale: The scale of the noise, (targets,).
        df: The degrees of freedom, (targets,), above 2.
    """

    def __init__(self, samples: Tensor, scale: Tensor, df: Tensor) -> None:
        super().__init__(D.StudentT, loc=samples, scale=scale.to(samples), df=df.to(samples))

    # In operations that export and every device have; those of torch.distributions assign to masks.
    @property
    def samples(self) -> Tensor:
        """The draws of the location, (samples, n, targets)."""
        return self.parameters["loc"]

    @property
    def variance(self) -> Tensor:
        """Var[y] = E[scale²·df/(df − 2)] + Var[f], (n, targets)."""
        df, scale = self.parameters["df"], self.parameters["scale"]
        return (scale.square() * df / (df - 2)).mean(0) + self.function_variance

    def cdf(self, y: Any, below: bool = False) -> Tensor:
        """1/S Σₛ T((y − fₛ)/scale), (n, targets), with T the t distribution's own."""
        from scipy.special import stdtr  # takes long to import

        y = as_numbers(y, self.samples)
        z = (y - self.samples) / self.parameters["scale"]
        df, z = (values.detach().cpu().double().numpy() for values in (self.parameters["df"], z))
        return torch.as_tensor(stdtr(df, z)).mean(0).to(y)
