"""The regressor."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import RegressorMixin
from sklearn.preprocessing import StandardScaler
from sklearn.utils.validation import validate_data
from torch import Tensor

from fsvi.estimators.base import Estimator
from fsvi.likelihoods import Gaussian
from fsvi.metrics.regression import unstandardize
from fsvi.predictive import GaussianPredictive

_NOISE = 0.5
"""Where learning the noise of standardised targets starts."""


class FSVIRegressor(RegressorMixin, Estimator):  # type: ignore[misc]
    """A regressor that says how sure it is, for one target or several; the noise is learned, one for each.

    Its parameters are those of `Estimator`. Everything that it predicts is in the targets' own units.

    >>> from sklearn.datasets import load_diabetes
    >>> X, y = load_diabetes(return_X_y=True)
    >>> mean, std = FSVIRegressor(random_state=0).fit(X, y).predict(X, return_std=True)
    """

    _activation = "relu"

    def fit(self, X: Any, y: Any) -> FSVIRegressor:
        """Train on inputs (n, features) and targets (n,) or (n, targets)."""
        X, y = validate_data(self, X, y, dtype=np.float64, order="C", multi_output=True, y_numeric=True)
        self.target_shape_ = y.shape[1:]
        y = y.reshape(len(y), -1)
        self.target_scaler_ = StandardScaler().fit(y)
        self._train(X, self.target_scaler_.transform(y), Gaussian(_NOISE, learn_noise=True), y.shape[1])
        return self

    def predictive(self, X: Any) -> GaussianPredictive:
        """The predictive distribution: the function's part of the variance, and what `fsvi.metrics` reads."""
        return self._in_units(self._predict(X, self.num_samples))

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """E[y], in the targets' shape; with `return_std` a pair with the standard deviation of y, noise included."""
        p = self.predictive(X)
        mean = self._shaped(p.mean)
        return (mean, self._shaped(p.variance.sqrt())) if return_std else mean

    def sample_y(self, X: Any, n_samples: int = 1, random_state: Any = 0) -> NDArray[np.float64]:
        """Targets drawn from `n_samples` functions, noise included, (n, n_samples) or (n, targets, n_samples).

        Those with the same last index come from one function.
        """
        p, draws, generator = self._draws(X, n_samples, random_state)
        p = self._in_units(p)
        means, noise = p.samples[draws], p.noise_variance[draws].sqrt()
        values = means + noise * torch.randn(means.shape, generator=generator, dtype=means.dtype)
        return values.permute(1, 2, 0).reshape(means.shape[1], *self.target_shape_, n_samples).double().numpy()

    def _in_units(self, p: GaussianPredictive) -> GaussianPredictive:
        return unstandardize(p, SimpleNamespace(mean=self.target_scaler_.mean_, std=self.target_scaler_.scale_))

    def _shaped(self, values: Tensor) -> NDArray[np.float64]:
        return values.double().reshape(len(values), *self.target_shape_).numpy()

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags
