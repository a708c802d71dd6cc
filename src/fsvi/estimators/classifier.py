"""The classifier."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted
from torch import nn

from fsvi.calibration import LAC
from fsvi.errors import InvalidInputError
from fsvi.estimators.base import Estimator
from fsvi.estimators.files import labels_from, labels_tree
from fsvi.estimators.rows import merge_rows
from fsvi.likelihoods import CategoricalPredictive
from fsvi.validation import check_fraction


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

    def __init__(
        self,
        method: str = "fsvi",
        *,
        module: nn.Module | Callable[[int, int], nn.Module] | None = None,
        columns: Mapping[str, str] | None = None,
        settings: Mapping[str, Any] | None = None,
        epochs: int | None = None,
        batch_size: int | None = None,
        lr: float | None = None,
        num_samples: int = 100,
        class_weight: Mapping[Any, float] | str | None = None,
        device: str | torch.device | None = None,
        progress: bool | None = False,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        super().__init__(
            method,
            module=module,
            columns=columns,
            settings=settings,
            epochs=epochs,
            batch_size=batch_size,
            lr=lr,
            num_samples=num_samples,
            device=device,
            progress=progress,
            random_state=random_state,
        )
        self.class_weight = class_weight

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
        weights = weights * self._class_weights(y, weights)
        self._train(*merge_rows(x, labels, weights), len(self.classes_), is_classes=True)
        return self

    def _class_weights(self, y: NDArray[Any], weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """The factor of each row by its class; "balanced" looks at the sum of weights of each class."""
        if self.class_weight != "balanced":
            factors: NDArray[np.float64] = compute_sample_weight(self.class_weight, y)
            return factors
        totals = np.array([weights[y == label].sum() for label in self.classes_])
        factors = weights.sum() / (len(totals) * totals)
        return factors[np.searchsorted(self.classes_, y)]

    def predictive(self, X: Any) -> CategoricalPredictive:
        """The predictive distribution: entropies, mutual information, and what `fsvi.metrics` and referral read."""
        prediction: CategoricalPredictive = self._calibrated(self._raw_predictive(X))
        return prediction

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
        check_fraction("alpha", alpha)
        if self._is_conformal and self.calibration_ is not None:
            return torch.cat([self.calibration_.sets(part, alpha) for part in self._parts(X)]).numpy()
        probabilities = self.predict_proba(X)
        order = np.argsort(-probabilities, axis=1)
        ranked = np.take_along_axis(probabilities, order, 1)
        needed = ranked.cumsum(1) - ranked < 1 - alpha
        sets = np.zeros_like(needed)
        np.put_along_axis(sets, order, needed, 1)
        return sets

    def _as_indices(self, y: Any) -> NDArray[np.int64]:
        """Labels as their places in `classes_`."""
        check_is_fitted(self)
        y = np.asarray(y)
        unknown = y[~np.isin(y, self.classes_)]
        if len(unknown):
            raise InvalidInputError(f"the label {unknown[0]!r} is none of those in training: {self.classes_.tolist()}.")
        return np.searchsorted(self.classes_, y)

    def sample_y(self, X: Any, n_samples: int = 1, random_state: Any = 0) -> NDArray[Any]:
        """Labels drawn from functions, (n, n_samples). Labels in one column come from one function.

        Args:
            X: Rows.
            n_samples: The number of functions.
            random_state: The seed of the draws.
        """
        p, draws, generator = self._draws(X, n_samples, random_state)
        probabilities = self._calibrated(p).samples[draws].transpose(0, 1)
        chosen = torch.multinomial(probabilities.flatten(0, 1), 1, generator=generator)
        labels: NDArray[Any] = self.classes_[chosen.reshape(probabilities.shape[:2]).numpy()]
        return labels

    def _target_tree(self) -> dict[str, Any]:
        return {"classes": labels_tree(self.classes_)}

    def _load_target(self, tree: Mapping[str, Any]) -> None:
        self.classes_ = labels_from(tree["classes"])
