"""The classifier."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted

from fsvi.calibration import APS, LAC
from fsvi.calibration.conformal import check_alpha
from fsvi.errors import InvalidInputError
from fsvi.estimators.base import Estimator
from fsvi.estimators.rows import merge_rows


@dataclass(repr=False, eq=False)
class FSVIClassifier(ClassifierMixin, Estimator):  # type: ignore[misc]
    """A classifier that knows what it does not know; labels may be numbers or strings.

    Its parameters are those of `Estimator`, and:

    Args:
        class_weight: How much the rows of each class count: a dictionary from labels to weights, "balanced" for weights
            that make all classes count the same, or None for 1.

    Attributes:
        classes_: The labels, sorted.

    Examples:
        >>> from sklearn.datasets import make_moons
        >>> X, y = make_moons(200, noise=0.2, random_state=0)
        >>> model = fsvi.FSVIClassifier(epochs=30, random_state=0).fit(X, y)
        >>> near, far = model.predict_proba([[1.0, 0.5], [-9.0, 9.0]]).max(axis=1)
        >>> bool(near > far)  # surer among the data than away from them
        True
    """

    class_weight: Mapping[Any, float] | str | None = None

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> FSVIClassifier:
        """Train on inputs (n, columns) and labels (n,).

        Args:
            X: The inputs.
            y: The labels.
            sample_weight: How many times each row counts, (n,): a weight of 2 is the same as having the row twice.
        """
        x, y, weights = self._gather(X, y, sample_weight)
        check_classification_targets(y)
        self.classes_, labels = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise InvalidInputError(f"y holds one class only, {self.classes_.tolist()[0]!r}: at least two are needed.")
        if self.class_weight == "balanced":
            weights = weights * (weights.sum() / (len(self.classes_) * np.bincount(labels, weights)))[labels]
        else:
            weights = weights * compute_sample_weight(self.class_weight, y)
        self._train(*merge_rows(x, labels, weights))
        return self

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Probability of each of `classes_`, averaged over draws of the function, (n, classes)."""
        probabilities = torch.cat([self._calibrated(part).mean.double() for part in self._parts(X)])
        return (probabilities / probabilities.sum(1, keepdim=True)).numpy()

    def predict(self, X: Any) -> NDArray[Any]:
        """The most probable class, (n,)."""
        best = self.predict_proba(X).argmax(1)
        labels: NDArray[Any] = self.classes_[best]
        return labels

    def calibrate(self, X: Any, y: Any, steps: Sequence[Any] | None = None) -> FSVIClassifier:
        """Learn from held-out rows how large prediction sets must be, and with scalings, how to correct probabilities.

        From then on, `predict_set` keeps its promise for rows of the same kind, and scalings apply to all predictions.

        Args:
            X: Inputs that were not used for training.
            y: Their labels.
            steps: Steps of `fsvi.calibration`; None for sets of at least one class by the LAC score. With a few hundred
                rows or more, `[TemperatureScaling(), LAC()]` also corrects probabilities; with few, all of which may be
                right by chance, a temperature would make the model too sure.
        """
        labels = self._as_indices(y)
        self._fit_calibration(X, labels, [LAC(nonempty=True)] if steps is None else steps)
        return self

    def predict_set(self, X: Any, alpha: float = 0.1) -> NDArray[np.bool_]:
        """Which of `classes_` to expect, (n, classes): as many as it takes to be right for a share 1 − `alpha` of rows.

        After `calibrate` with a conformal step, this holds for rows exchangeable with the calibration rows. Without it,
        these are the most probable classes whose probabilities sum to 1 − `alpha`, and nothing is promised.

        Args:
            X: Rows.
            alpha: The share of rows for which the set may miss the label.
        """
        check_alpha(alpha)
        if self._is_conformal and self.calibration_ is not None:
            return torch.cat([self.calibration_.sets(part, alpha) for part in self._parts(X)]).numpy()
        probabilities = torch.as_tensor(self.predict_proba(X))
        before = APS().class_scores(probabilities) - probabilities  # what more probable classes sum to
        return (before < 1 - alpha).numpy()

    def _as_indices(self, y: Any) -> NDArray[np.int64]:
        """Labels as their places in `classes_`."""
        check_is_fitted(self)
        y = np.asarray(y)
        unknown = y[~np.isin(y, self.classes_)]
        if len(unknown):
            raise InvalidInputError(
                f"the label {unknown.tolist()[0]!r} is none of those in training: {self.classes_.tolist()}."
            )
        return np.searchsorted(self.classes_, y)
