"""Predictions of real targets with outliers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch import distributions as D

from fsvi.predictive.base import as_numbers, precise
from fsvi.predictive.numeric import MixturePredictive

_ITERATIONS = 100


class StudentTPredictive(MixturePredictive):
    """Real targets with heavy tails: a mixture over draws of Student's t distributions.

    The distribution function and quantiles are computed by SciPy on the CPU, because PyTorch does not have them.

    Args:
        samples: The draws of the location, (samples, n, targets).
        scale: The scale of the noise, (targets,).
        df: The degrees of freedom, (targets,), above 2.
    """

    family = D.StudentT

    def __init__(self, samples: Tensor, scale: Tensor, df: Tensor) -> None:
        samples = precise(samples)
        self._keep({"df": df.to(samples), "loc": samples, "scale": scale.to(samples)})

    @property
    def samples(self) -> Tensor:  # type: ignore[override]
        """(samples, n, targets): each draw's location, which is its mean."""
        return self.parameters["loc"]

    @property
    def variance(self) -> Tensor:
        """E[scale² df / (df − 2)] + Var[f], (n, targets)."""
        scale, df = self.parameters["scale"], self.parameters["df"]
        return (scale.square() * df / (df - 2)).mean(0) + self.function_variance

    def cdf(self, y: Any, below: bool = False) -> Tensor:
        """1/S Σₛ T((y − fₛ)/scale), (n, targets), with T the t distribution's own."""
        from scipy.special import stdtr  # takes long to import

        y = as_numbers(y, self.samples)
        z = (y - self.parameters["loc"]) / self.parameters["scale"]
        df, z = (values.detach().cpu().double().numpy() for values in (self.parameters["df"], z))
        return torch.as_tensor(stdtr(df, z)).mean(0).to(y)

    def bracket(self, q: float) -> tuple[Tensor, Tensor]:
        """The least and the largest quantile over draws."""
        from scipy.special import stdtrit

        loc, scale, df = (self.parameters[name] for name in ("loc", "scale", "df"))
        quantiles = loc + scale * torch.as_tensor(stdtrit(df.detach().cpu().double().numpy(), q)).to(loc)
        return quantiles.amin(0), quantiles.amax(0)

    def moved(self, samples: Tensor, factor: Any) -> StudentTPredictive:
        """The prediction with these locations of the draws, and noise whose scale is multiplied by `factor`."""
        return StudentTPredictive(samples, self.parameters["scale"] * factor, self.parameters["df"])

    def constant_nll(self, y: Tensor) -> float | None:
        """That of one t distribution with these degrees of freedom, fitted by expectation maximization."""
        y = y.double()
        df = self.parameters["df"].mean((0, 1)).double()
        loc = y.nanmedian(0).values
        variance = (y - loc).square().nanmean(0).clamp_min(1e-12)
        for _ in range(_ITERATIONS):
            squared = (y - loc).square() / variance
            weight = torch.where(y.isnan(), torch.nan, (df + 1) / (df + squared))
            loc = (weight * y).nansum(0) / weight.nansum(0)
            variance = (weight * (y - loc).square()).nanmean(0).clamp_min(1e-12)
        logs = D.StudentT(df, loc, variance.sqrt(), validate_args=False).log_prob(y)
        return -float(torch.where(y.isnan(), 0.0, logs).sum(-1).mean())
