import warnings

import numpy as np
import pytest
import scipy.stats
import torch
from sklearn.base import BaseEstimator, ClassifierMixin

from calibration_cases import LEVELS, class_predictions
from fsvi.calibration import APS, LAC, conformal
from fsvi.calibration.conformal import uniform_hash
from fsvi.likelihoods import CategoricalPredictive


def prediction(*rows):
    return CategoricalPredictive(torch.tensor(rows, dtype=torch.float64).log()[None])


# Formulas


def test_scores_by_hand():
    p = prediction([0.2, 0.5, 0.3])
    assert LAC().class_scores(p.mean).tolist() == [pytest.approx([0.8, 0.5, 0.7])]
    assert APS().class_scores(p.mean).tolist() == [pytest.approx([1.0, 0.5, 0.8])]
    u = float(uniform_hash(p.mean))
    expected = [1.0 - 0.2 * u, 0.5 - 0.5 * u, 0.8 - 0.3 * u]
    assert APS(randomized=True).class_scores(p.mean).tolist() == [pytest.approx(expected)]


def test_sets_by_hand():
    """Held-out scores 0.1..0.9: with α = 0.2 the 8th of 9 bounds the score, so p(c) ≥ 0.2 is in the set."""
    confidences = np.linspace(0.9, 0.1, 9)
    step = LAC().fit(prediction(*([c, 1 - c] for c in confidences)), [0] * 9)
    assert step.scores.tolist() == pytest.approx(np.linspace(0.1, 0.9, 9))
    fresh = prediction([0.79, 0.21], [0.81, 0.19])
    assert step.sets(fresh, alpha=0.2).tolist() == [[True, True], [True, False]]


def test_nonempty_adds_the_most_probable_class_only():
    p, y = class_predictions(500, confidence=0.2)
    fresh, _ = class_predictions(500, seed=1, confidence=0.2)
    for kind in (LAC, APS):
        usual, filled = (kind(nonempty=nonempty).fit(p, y).sets(fresh, 0.6) for nonempty in (False, True))
        assert not bool(usual.any(1).all()) and bool(filled.any(1).all())
        added = filled & ~usual
        rows = added.any(1)
        assert torch.equal(added[rows].int().argmax(1), fresh.labels()[rows])
        assert added.sum(1).max() == 1 and not bool((usual & ~filled).any())


def test_the_hash_is_uniform_and_of_the_row_alone():
    rows = class_predictions(5000)[0].mean
    u = uniform_hash(rows)
    assert scipy.stats.kstest(u.numpy(), "uniform").pvalue > 1e-3
    assert abs(scipy.stats.spearmanr(u.numpy(), rows[:, 0].numpy()).statistic) < 4 / 5000**0.5
    assert torch.equal(uniform_hash(rows[100:110]), u[100:110])
    assert torch.equal(uniform_hash(rows.flip(0)), u.flip(0))
    assert not bool((uniform_hash(rows[:, [0, 2, 1, 3]]) == u).any()), "every class counts"


# The same as MAPIE


class Given(ClassifierMixin, BaseEstimator):
    """A fitted classifier whose inputs are its probabilities."""

    def __init__(self, classes=4):
        self.classes = classes
        self.classes_ = np.arange(classes)

    def fit(self, X, y):
        return self

    def __sklearn_is_fitted__(self):
        return True

    def predict_proba(self, X):
        return X

    def predict(self, X):
        return X.argmax(1)


def mapie_sets(score, p, y, fresh, **settings):
    """MAPIE's sets for the three levels, (n, classes, levels)."""
    from mapie.classification import SplitConformalClassifier

    levels = [1 - alpha for alpha in LEVELS]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mapie = SplitConformalClassifier(Given(), levels, score, prefit=True, random_state=7)
        mapie.conformalize(p.mean.numpy(), y.numpy())
        return mapie.predict_set(fresh.mean.numpy(), conformity_score_params=settings)[1]


@pytest.mark.parametrize("num", [100, 237])
def test_lac_is_mapies(num):
    p, y = class_predictions(num)
    fresh, _ = class_predictions(400, seed=1)
    expected = mapie_sets("lac", p, y, fresh)
    step = LAC().fit(p, y)
    for index, alpha in enumerate(LEVELS):
        np.testing.assert_array_equal(step.sets(fresh, alpha), expected[:, :, index])


@pytest.mark.parametrize("num", [100, 237])
def test_randomized_aps_is_mapies_with_its_random_numbers(num, monkeypatch):
    """MAPIE draws u from its seed, for held-out and for new rows; the same numbers take the place of the hash."""
    p, y = class_predictions(num)
    fresh, _ = class_predictions(400, seed=1)
    expected = mapie_sets("aps", p, y, fresh, include_last_label="randomized")
    monkeypatch.setattr(
        conformal, "uniform_hash", lambda rows: torch.as_tensor(np.random.RandomState(7).uniform(size=len(rows)))
    )
    step = APS(randomized=True).fit(p, y)
    for index, alpha in enumerate(LEVELS):
        np.testing.assert_array_equal(step.sets(fresh, alpha), expected[:, :, index])
