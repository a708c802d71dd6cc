"""Conformal prediction intervals: real targets lie inside with a chance of at least 1 − α."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from fsvi.calibration.conformal import quantile
from fsvi.errors import InvalidInputError
from fsvi.likelihoods import Predictive
from fsvi.metrics.regression import check_numeric, check_targets
from fsvi.serialization import Configurable
from fsvi.validation import as_tensor


class Intervals(NamedTuple):
    """An interval per input and target; a target on the edge is inside.

    Attributes:
        lower: Lower ends, (n, targets).
        upper: Upper ends, (n, targets).
    """

    lower: Tensor
    upper: Tensor

    @property
    def width(self) -> Tensor:
        """Upper minus lower end, (n, targets)."""
        return self.upper - self.lower

    def contains(self, y: Any) -> Tensor:
        """Whether each target lies inside, (n, targets)."""
        y = as_tensor("y", y, torch.float64).cpu()
        if y.numel() != self.lower.numel() or len(y) != len(self.lower):
            raise InvalidInputError(f"targets have shape {tuple(y.shape)}; the intervals {tuple(self.lower.shape)}.")
        y = y.reshape(self.lower.shape)
        return (self.lower <= y) & (y <= self.upper)


class ConformalIntervals(Configurable):
    """Intervals E[y] ± q √Var[y], with q a quantile of |y − E[y]| / √Var[y] over the held-out rows.

    They widen where the prediction is unsure. Guaranteed: each target of a new row lies in its interval with a chance
    of at least 1 − α, on average over held-out and new rows, if they are exchangeable; see
    `fsvi.calibration.conformal`. With several targets this holds for each by itself, not for all at once. Not
    guaranteed: coverage for each group or input; coverage after a distribution shift; coverage if the same rows also
    trained, stopped, scaled or selected the model.

    Args:
        scores: |y − E[y]| / √Var[y] of the held-out rows, (n, targets); None until `fit` has computed them.
    """

    def __init__(self, scores: Any = None) -> None:
        self.scores = None if scores is None else _check_residuals(scores)

    def fit(self, p: Predictive, y: Any) -> ConformalIntervals:
        """Keep the scaled residuals of held-out targets `y` under predictions `p`.

        Args:
            p: Held-out predictions.
            y: Their targets.
        """
        p, y = check_targets(p, y)
        mean, std = _moments(p)
        self.scores = ((y - mean).abs() / std).sort(dim=0).values
        return self

    def intervals(self, p: Predictive, alpha: float = 0.1) -> Intervals:
        """The intervals that miss a target with a chance of at most `alpha`, in the units of `p`.

        Args:
            p: Predictions.
            alpha: The largest chance that an interval misses its target.
        """
        if self.scores is None:
            raise InvalidInputError("ConformalIntervals is not fitted: call fit(p, y) with held-out rows first.")
        mean, std = _moments(p)
        if mean.shape[1] != self.scores.shape[1]:
            given, fitted = mean.shape[1], self.scores.shape[1]
            raise InvalidInputError(f"p has {given} targets, but the calibration was fitted on {fitted}.")
        reach = quantile(self.scores, alpha) * std
        return Intervals(mean - reach, mean + reach)

    def config(self) -> dict[str, Any]:
        """The class and its settings; the scores stay a tensor."""
        config = super().config()
        config["settings"]["scores"] = self.scores
        return config


def _moments(p: Any) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of y, (n, targets), in float64; both finite, the latter above 0."""
    check_numeric(p)
    p = p.detach().to("cpu", torch.float64)
    mean, std = p.mean, p.variance.sqrt()
    wrong = ~(mean.isfinite() & std.isfinite() & (std > 0)).all(1)
    if bool(wrong.any()):
        row = int(wrong.nonzero()[0])
        raise InvalidInputError(
            f"row {row} of p has mean {mean[row].tolist()} and standard deviation {std[row].tolist()}: intervals need "
            "finite means and positive standard deviations."
        )
    return mean, std


def _check_residuals(scores: Any) -> Tensor:
    """Finite scores (n, targets), n ≥ 1, none negative, each column sorted."""
    values = as_tensor("scores", scores, torch.float64).detach().cpu()
    if values.dim() != 2 or 0 in values.shape or not bool((values >= 0).all() and values.isfinite().all()):
        raise InvalidInputError(f"scores of shape {tuple(values.shape)} must be (n, targets), finite and at least 0.")
    return values.sort(dim=0).values
