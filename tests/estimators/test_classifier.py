import numpy as np
import pytest
from sklearn.datasets import load_wine

from fsvi.calibration import APS, TemperatureScaling
from fsvi.estimators import FSVIClassifier

FAST = {"epochs": 20, "lr": 0.05, "batch_size": 32, "num_samples": 10, "random_state": 0}


@pytest.fixture(scope="module")
def data():
    generator = np.random.default_rng(0)
    x = generator.normal(size=(600, 2))
    y = np.array(["a", "b", "c"])[np.digitize(x[:, 0] + 0.5 * generator.normal(size=600), [-0.5, 0.5])]
    return x, y


@pytest.fixture(scope="module")
def model(data):
    x, y = data
    return FSVIClassifier("map", **FAST).fit(x[:200], y[:200])


def test_balanced_classes_count_the_same():
    generator = np.random.default_rng(0)
    x = np.concatenate([generator.normal(-0.5, 1, (190, 1)), generator.normal(0.5, 1, (10, 1))])
    y = np.repeat(["many", "few"], [190, 10])
    plain, balanced = (FSVIClassifier("map", **FAST, class_weight=weight).fit(x, y) for weight in (None, "balanced"))
    assert (plain.predict(x) == "few").mean() < 0.05 < 0.1 < (balanced.predict(x) == "few").mean()
    given = FSVIClassifier("map", **FAST, class_weight={"few": 200 / 20, "many": 200 / 380}).fit(x, y)
    np.testing.assert_allclose(given.predict_proba(x), balanced.predict_proba(x), atol=1e-6)


def test_sets_without_calibration_hold_the_most_probable_classes(model, data):
    x = data[0][200:]
    probabilities, sets = model.predict_proba(x), model.predict_set(x, alpha=0.2)
    assert (sets[np.arange(len(x)), probabilities.argmax(1)]).all()
    inside = (probabilities * sets).sum(1)
    smallest = np.where(sets, probabilities, 2).min(1)
    assert (inside >= 0.8 - 1e-12).all() and (inside - smallest < 0.8).all()


@pytest.mark.parametrize("steps", [None, [TemperatureScaling(), APS()]])
def test_calibrated_sets_keep_their_promise(data, steps):
    x, y = data
    model = FSVIClassifier("map", **FAST).fit(x[:200], y[:200]).calibrate(x[200:400], y[200:400], steps)
    sets = model.predict_set(x[400:], alpha=0.1)
    hits = sets[np.arange(200), np.searchsorted(model.classes_, y[400:])].mean()
    assert 0.82 < hits <= 1 and sets.sum(1).mean() < 3  # 0.9, give or take three standard errors of both samples
    assert model.fit(x[:200], y[:200]).calibration_ is None


def test_a_few_rows_without_an_error_leave_doubt():
    """Held-out rows that are all right do not say that the next ones will be."""
    x, y = load_wine(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    seen, new = order[:39], order[39:]
    p = FSVIClassifier(random_state=0).fit(x[seen], y[seen]).predict_proba(x[new])
    assert -np.log(p[np.arange(len(new)), y[new]]).mean() < 0.3
