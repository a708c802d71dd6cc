import warnings

import joblib
import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_diabetes, make_moons
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures
from sklearn.utils.estimator_checks import check_estimator
from torch import nn

from fsvi.errors import InvalidInputError
from fsvi.estimators import FSVIClassifier, FSVIRegressor

FAST = {
    "epochs": 40,
    "lr": 0.05,
    "batch_size": 32,
    "num_samples": 10,
    "random_state": 0,
}
CHEAP = {"linearize": "conditional", "num_context": 8}

SKIPPED = {"check_array_api_input": "runs only where SCIPY_ARRAY_API=1 was set before scipy was imported"}


@pytest.fixture(scope="module")
def moons():
    return make_moons(120, noise=0.15, random_state=0)


@pytest.fixture(scope="module")
def diabetes():
    X, y = load_diabetes(return_X_y=True)
    return X[:150], y[:150]


@pytest.fixture(scope="module")
def classifier(moons):
    return FSVIClassifier(**FAST, settings=CHEAP).fit(*moons)


@pytest.fixture(scope="module")
def regressor(diabetes):
    return FSVIRegressor(**FAST, settings=CHEAP).fit(*diabetes)


@pytest.mark.parametrize("kind", [FSVIClassifier, FSVIRegressor])
def test_scikit_learn_accepts_it(kind):
    """Every one of scikit-learn's own checks passes; those skipped are named above with the reason."""
    settings = {**FAST, "epochs": 5, "batch_size": 64, "num_samples": 3, "random_state": None}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = check_estimator(kind(**settings, settings=CHEAP), on_fail=None, on_skip=None)
    failed = [result["check_name"] for result in results if result["status"] not in ("passed", "skipped")]
    skipped = {result["check_name"] for result in results if result["status"] == "skipped"}
    assert not failed and skipped <= set(SKIPPED)
    assert len(results) > 40


# Learning -----------------------------------------------------------------------------------------------------------


def test_diabetes_is_predicted_with_honest_intervals():
    X, y = load_diabetes(return_X_y=True)
    train, test, targets, expected = train_test_split(X, y, random_state=0)
    model = FSVIRegressor(epochs=100, batch_size=100, random_state=0).fit(train, targets)
    assert model.score(test, expected) > 0.2  # linear regression: 0.36, MAP on this split: 0.27 to 0.32
    mean, std = model.predict(test, return_std=True)
    inside = np.abs(expected - mean) < 1.96 * std
    assert 0.85 < inside.mean() <= 1 and 30 < std.mean() < 80


# What it returns ----------------------------------------------------------------------------------------------------


def test_std_is_that_of_the_predictive_in_the_targets_units(regressor, diabetes):
    X, y = diabetes
    mean, std = regressor.predict(X, return_std=True)
    np.testing.assert_array_equal(mean, regressor.predict(X))
    raw = regressor.method_.predict(regressor.scaler_.transform(X), 10, seed=regressor.seed_)
    np.testing.assert_allclose(mean, raw.mean[:, 0] * y.std() + y.mean())
    np.testing.assert_allclose(std, raw.variance[:, 0].sqrt() * y.std())


def test_several_targets(diabetes):
    X, y = diabetes
    both = np.stack([y, 1000 - 5 * y], 1)
    model = FSVIRegressor(**FAST, settings=CHEAP).fit(X, both)
    mean, std = model.predict(X, return_std=True)
    assert mean.shape == std.shape == both.shape and model.score(X, both) > 0.3
    assert std[:, 1].mean() / std[:, 0].mean() == pytest.approx(5, rel=0.3)


def test_the_same_random_state_gives_the_same_bits_and_leaves_torch_alone(classifier, moons):
    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    again = clone(classifier).fit(*moons)
    assert torch.equal(torch.random.get_rng_state(), before)
    np.testing.assert_array_equal(again.predict_proba(moons[0]), classifier.predict_proba(moons[0]))
    other = clone(classifier).set_params(random_state=1).fit(*moons)
    assert not np.array_equal(other.predict_proba(moons[0]), classifier.predict_proba(moons[0]))


# With scikit-learn's other parts ------------------------------------------------------------------------------------


def test_search_over_methods_in_a_pipeline(moons):
    model = make_pipeline(PolynomialFeatures(2, include_bias=False), FSVIClassifier(**FAST))
    search = GridSearchCV(model, {"fsviclassifier__method": ["map", "mfvi"]}, cv=2).fit(*moons)
    assert search.best_score_ > 0.75 and search.best_params_["fsviclassifier__method"] in ("map", "mfvi")


@pytest.mark.parametrize("method", ["fsvi", "ensemble:map"])
def test_pickled_models_predict_the_same(method, moons, tmp_path):
    model = FSVIClassifier(method, **{**FAST, "epochs": 5}).fit(*moons)
    joblib.dump(model, tmp_path / "model.joblib")
    again = joblib.load(tmp_path / "model.joblib")
    np.testing.assert_array_equal(again.predict_proba(moons[0]), model.predict_proba(moons[0]))


# What it takes ------------------------------------------------------------------------------------------------------


def test_a_given_network_is_copied(moons):
    net = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 2))
    before = [p.clone() for p in net.parameters()]
    model = FSVIClassifier(**FAST, module=net, settings=CHEAP).fit(*moons)
    assert all(torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True))
    assert model.module is net and model.score(*moons) > 0.8
    assert clone(model).fit(*moons).score(*moons) > 0.8


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method": "fsvy"}, "did you mean 'fsvi'"),
        ({"module": nn.Linear(2, 5)}, "5 outputs"),
        ({"settings": {"num_contexts": 3}}, "did you mean 'num_context'"),
    ],
)
def test_bad_settings(moons, settings, message):
    with pytest.raises(InvalidInputError, match=message):
        FSVIClassifier(**{**FAST, **settings}).fit(*moons)
