"""The regressor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import RegressorMixin
from sklearn.utils.validation import _check_y
from torch import Tensor

from fsvi.calibration import ConformalIntervals
from fsvi.calibration.conformal import check_alpha
from fsvi.estimators.base import Estimator
from fsvi.estimators.rows import Scaler, merge_rows
from fsvi.metrics.regression import unstandardize


class FSVIRegressor(RegressorMixin, Estimator):  # type: ignore[misc]
    """A regressor that says how sure it is, for one target or several.

    Its parameters are those of `Estimator`. Everything that it predicts is in the targets' own units. The noise is
    Gaussian and depends on the row as far as held-out rows support it. Targets that are never negative, such as prices
    and counts, have intervals that begin at zero at the earliest; `std` and the mean do not know this bound. An upper
    bound is not used.

    Attributes:
        is_positive_: Whether no training target was negative.

    Examples:
        >>> from sklearn.datasets import load_diabetes
        >>> X, y = load_diabetes(return_X_y=True)
        >>> model = fsvi.FSVIRegressor(epochs=5, random_state=0).fit(X, y)
        >>> mean, std = model.predict(X, return_std=True)
        >>> std.shape
        (442,)
    """

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> FSVIRegressor:
        """Train on inputs (n, columns) and targets (n,) or (n, targets).

        Args:
            X: The inputs.
            y: The targets.
            sample_weight: How many times each row counts, (n,): a weight of 2 is the same as having the row twice.
        """
        x, y, weights = self._gather(X, y, sample_weight, multi_output=True, y_numeric=True)
        self.target_shape_ = y.shape[1:]
        x, y, weights = merge_rows(x, y.reshape(len(y), -1), weights)
        self.target_scaler_ = Scaler.learn(y, weights)
        self.is_positive_ = bool((y >= 0).all())
        self._train(x, self.target_scaler_.transform(y), weights)
        return self

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """E[y], in the targets' shape.

        Args:
            X: Rows.
            return_std: Whether to return a pair with the standard deviation of y, noise included.
        """
        parts = (self._calibrated(part) for part in self._parts(X))
        moments = [(part.mean, part.variance.sqrt()) for part in parts]
        mean, std = (self._shaped(torch.cat(parts)) for parts in zip(*moments, strict=True))
        return (mean, std) if return_std else mean

    def calibrate(self, X: Any, y: Any, steps: Sequence[Any] | None = None) -> FSVIRegressor:
        """Learn from held-out rows how wide intervals must be.

        From then on, `predict_interval` keeps its promise for rows of the same kind.

        Args:
            X: Inputs that were not used for training.
            y: Their targets, (n,) or (n, targets).
            steps: Steps of `fsvi.calibration`; None for conformal intervals, as wide as a multiple of the predictive
                standard deviation.
        """
        targets = _check_y(y, multi_output=True, y_numeric=True)
        steps = [ConformalIntervals()] if steps is None else steps
        self._fit_calibration(X, targets.reshape(len(targets), -1), steps)
        return self

    def predict_interval(self, X: Any, alpha: float = 0.1) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The lower and upper ends of prediction intervals, each in the targets' shape.

        After `calibrate` with a conformal step, this holds for rows exchangeable with the calibration rows. Without it,
        the ends are those of a Gaussian with the predicted mean and standard deviation, and nothing is promised.

        Args:
            X: Rows.
            alpha: The share of targets that may lie outside.
        """
        check_alpha(alpha)
        if self._is_conformal and self.calibration_ is not None:
            intervals = [self.calibration_.intervals(part, alpha) for part in self._parts(X)]
        else:
            intervals = [self._calibrated(part).interval(1 - alpha) for part in self._parts(X)]
        lower, upper = (self._bounded(self._shaped(torch.cat(ends))) for ends in zip(*intervals, strict=True))
        return lower, upper

    def _bounded(self, ends: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.maximum(ends, 0.0) if self.is_positive_ else ends

    def _predict(self, inputs: Tensor, num_samples: int) -> Any:
        return unstandardize(super()._predict(inputs, num_samples), self.target_scaler_)

    def _shaped(self, values: Tensor) -> NDArray[np.float64]:
        return values.double().reshape(len(values), *self.target_shape_).numpy()

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags
