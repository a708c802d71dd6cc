"""Data, weights and parameters of both estimators; scikit-learn's own checks are in test_estimators.py."""

import numpy as np
import pytest

from fsvi.estimators import FSVIClassifier, FSVIRegressor

FAST = {"epochs": 30, "lr": 0.05, "batch_size": 32, "num_samples": 10, "random_state": 0}
pandas = pytest.importorskip("pandas")


@pytest.fixture(scope="module")
def frame():
    generator = np.random.default_rng(0)
    num = 120
    frame = pandas.DataFrame(
        {
            "age": generator.normal(40, 10, num),
            "city": pandas.Categorical(generator.choice(["Oslo", "Rome", "Lima"], num)),
            "member": generator.random(num) > 0.5,
            "joined": pandas.Timestamp("2020-01-01") + pandas.to_timedelta(generator.integers(0, 900, num), "D"),
            "plan": generator.choice(["a", "b", None], num),
        }
    )
    frame.loc[3, "age"] = np.nan
    return frame


@pytest.fixture(scope="module")
def labels(frame):
    return np.where((frame.city == "Oslo") ^ frame.member, "stay", "leave")


@pytest.fixture(scope="module")
def classifier(frame, labels):
    return FSVIClassifier("map", **{**FAST, "epochs": 100}).fit(frame, labels)


def test_frames_of_strings_categories_dates_and_gaps(classifier, frame, labels):
    assert classifier.score(frame, labels) > 0.9
    assert classifier.feature_names_in_.tolist() == list(frame.columns) and classifier.n_features_in_ == 5
    kinds = {column.name: column.kind for column in classifier.encoder_.columns}
    assert kinds == {"age": "number", "city": "category", "member": "category", "joined": "date", "plan": "category"}


def test_unseen_categories_are_warned_of_and_predicted(classifier, frame):
    new = frame[:2].assign(city=["Osla", "Rome"])
    with pytest.warns(UserWarning, match="Osla"):
        assert np.isfinite(classifier.predict_proba(new)).all()


def test_fsvi_is_unsure_about_an_unseen_category(frame, labels):
    model = FSVIClassifier(**{**FAST, "epochs": 150}).fit(frame, labels)
    known = model.predictive(frame).entropy().mean()
    with pytest.warns(UserWarning, match="Atlantis"):
        unknown = model.predictive(frame.assign(city="Atlantis")).entropy().mean()
    assert unknown > 1.5 * known


def test_missing_numbers():
    generator = np.random.default_rng(0)
    x = generator.normal(size=(100, 2))
    y = x[:, 0]
    gaps = x.copy()
    gaps[::5, 1] = np.nan
    model = FSVIRegressor("map", **FAST).fit(gaps, y)
    assert model.encoder_.outputs == ["x0", "x1", "x1 missing"] and np.isfinite(model.predict(gaps)).all()
    with pytest.warns(UserWarning, match="'x0' lacks 1"):
        model.predict([[np.nan, 1.0]])
    with pytest.raises(ValueError, match="infinity"):
        model.predict([[np.inf, 1.0]])


# Weights --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["fsvi", "ensemble:map", "laplace"])
def test_a_weight_of_two_is_the_row_twice(method):
    generator = np.random.default_rng(0)
    x, weights = generator.normal(size=(60, 3)), generator.integers(0, 4, 60)
    y = x[:, 0] + 0.1 * generator.normal(size=60)
    index = np.repeat(np.arange(60), weights)
    one = FSVIRegressor(method, **FAST).fit(x, y, sample_weight=weights)
    other = FSVIRegressor(method, **FAST).fit(x[index], y[index])
    np.testing.assert_array_equal(one.predict(x, return_std=True), other.predict(x, return_std=True))
    assert one.method_.num_data == other.method_.num_data
    plain = FSVIRegressor(method, **FAST).fit(x, y)
    assert not np.array_equal(plain.predict(x), one.predict(x))
