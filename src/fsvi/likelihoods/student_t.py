"""Real targets with outliers."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from fsvi.errors import InvalidInputError
from fsvi.likelihoods.base import NumberLikelihood
from fsvi.predictive import StudentTPredictive
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
        self._set(1)

    def config(self) -> dict[str, object]:
        """The constructor's arguments; learned values are saved with the tensors."""
        settings = {"scale": self._scale, "df": self._df, "learn_scale": self.learn_scale, "learn_df": self.learn_df}
        return {"class": self.class_name(), "settings": settings}

    def bind(self, num_outputs: int) -> None:
        """One scale and one number of degrees of freedom per output."""
        self._set(num_outputs)

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
        z = (y - f) * (-self.log_scale).exp()
        tail = 0.5 * (df + 1) * torch.log1p(z.square() / df)
        constant = torch.lgamma(0.5 * df) - torch.lgamma(0.5 * (df + 1)) + 0.5 * (math.pi * df).log()
        return tail + constant + self.log_scale

    def predictive(self, f: Tensor) -> StudentTPredictive:
        """Mixture of t distributions."""
        return StudentTPredictive(f.detach(), self.scale, self.df)

    def fisher_root(self, f: Tensor, y: Tensor | None = None) -> Tensor:
        """√((df + 1)/(df + 3)) / scale for every location."""
        roots = ((self.df + 1) / (self.df + 3)).sqrt() / self.scale
        return self.present(roots.to(f).expand(f.shape), y)

    def _freedom(self) -> Tensor:
        return _LEAST_DF + self.log_excess.exp()

    def _set(self, num_outputs: int) -> None:
        for name, value, learned in (
            ("log_scale", math.log(self._scale), self.learn_scale),
            ("log_excess", math.log(self._df - _LEAST_DF), self.learn_df),
        ):
            old = getattr(self, name, None)
            values = torch.full((num_outputs,), value) if old is None else old.detach().new_full((num_outputs,), value)
            if learned:
                setattr(self, name, nn.Parameter(values))
            else:
                self.register_buffer(name, values)
