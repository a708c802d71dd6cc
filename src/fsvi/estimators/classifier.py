"""The classifier."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import validate_data

from fsvi.errors import InvalidInputError
from fsvi.estimators.base import Estimator
from fsvi.likelihoods import Categorical
from fsvi.predictive import CategoricalPredictive


class FSVIClassifier(ClassifierMixin, Estimator):  # type: ignore[misc]
    """A classifier that knows what it does not know; labels may be numbers or strings.

    Its parameters are those of `Estimator`; the labels, sorted, are `classes_`.

    >>> from sklearn.datasets import make_moons
    >>> X, y = make_moons(200, noise=0.2, random_state=0)
    >>> model = FSVIClassifier(random_state=0).fit(X, y)
    >>> model.predict_proba([[20.0, 20.0]])  # far from all data: about one half each
    """

    def fit(self, X: Any, y: Any) -> FSVIClassifier:
        """Train on inputs (n, features) and labels (n,)."""
        X, y = validate_data(self, X, y, dtype=np.float64, order="C")
        check_classification_targets(y)
        self.classes_, labels = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise InvalidInputError(f"y holds one class only, {self.classes_.tolist()[0]!r}: at least two are needed.")
        self._train(X, labels, Categorical(), len(self.classes_))
        return self

    def predictive(self, X: Any) -> CategoricalPredictive:
        """The predictive distribution: entropies, mutual information, and what `fsvi.metrics` and referral read."""
        prediction: CategoricalPredictive = self._predict(X, self.num_samples)
        return prediction

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Probability of each of `classes_`, averaged over draws of the function, (n, classes)."""
        probabilities = self.predictive(X).mean.double()
        return (probabilities / probabilities.sum(1, keepdim=True)).numpy()

    def predict(self, X: Any) -> NDArray[Any]:
        """The most probable class, (n,)."""
        best = self.predict_proba(X).argmax(1)
        labels: NDArray[Any] = self.classes_[best]
        return labels

    def sample_y(self, X: Any, n_samples: int = 1, random_state: Any = 0) -> NDArray[Any]:
        """Labels drawn from `n_samples` functions, (n, n_samples): those in a column come from one function."""
        p, draws, generator = self._draws(X, n_samples, random_state)
        probabilities = p.samples[draws].transpose(0, 1)
        chosen = torch.multinomial(probabilities.flatten(0, 1), 1, generator=generator)
        labels: NDArray[Any] = self.classes_[chosen.reshape(probabilities.shape[:2]).numpy()]
        return labels
