import dataclasses

import numpy as np
import pytest

from fsvi.estimators import FSVIClassifier, FSVIRegressor
from fsvi.estimators.assessment import SHIFTS, assess
from fsvi.tables import as_table

FAST = {"epochs": 120, "hidden": (32,), "lr": 0.03, "batch_size": 1000, "num_samples": 20, "random_state": 2}


def make(num, seed):
    generator = np.random.default_rng(seed)
    array = np.empty((num, 3), dtype=object)
    array[:, 0], array[:, 1] = generator.normal(size=(2, num))
    array[:, 2] = generator.choice(["red", "blue"], num)
    signal = array[:, 0].astype(float) + (array[:, 2] == "red") + 0.3 * generator.normal(size=num)
    return as_table(array, ["size", "weight", "color"]), signal


@pytest.fixture(scope="module")
def regression():
    table, y = make(300, 0)
    models = {"FSVI": FSVIRegressor(**FAST).fit(table, y), "MAP": FSVIRegressor("map", **FAST).fit(table, y)}
    return models, assess(models, *make(200, 1))


@pytest.fixture(scope="module")
def classification():
    table, y = make(300, 0)
    labels = np.where(y > 0.5, "high", "low")
    models = {
        "FSVI": FSVIClassifier(**FAST).fit(table, labels),
        "MAP": FSVIClassifier("map", **FAST).fit(table, labels),
    }
    held_out, y = make(200, 1)
    return models, assess(models, held_out, np.where(y > 0.5, "high", "low"))


def test_a_good_regression_is_trusted(regression):
    _, found = regression
    assert found.verdict == "trust", found.checks
    assert found.metrics["FSVI"]["rmse"] < 0.5 < found.metrics["guess"]["rmse"]
    assert [each.name for each in found.growth] == ["size", "weight", "color"]


def test_a_good_classification_is_trusted(classification):
    _, found = classification
    assert found.verdict == "trust", found.checks
    assert found.metrics["FSVI"]["accuracy"] > 0.8 > found.metrics["guess"]["accuracy"]


@pytest.mark.parametrize("task", ["regression", "classification"])
def test_numbers_are_those_of_the_model(task, request):
    models, found = request.getfixturevalue(task)
    held_out, y = make(200, 1)
    if task == "regression":
        expected = np.sqrt(np.mean((models["FSVI"].predict(held_out) - y) ** 2))
        assert found.metrics["FSVI"]["rmse"] == pytest.approx(expected)
        assert found.metrics["guess"]["rmse"] == pytest.approx(y.std())
    else:
        labels = np.where(y > 0.5, "high", "low")
        assert found.metrics["FSVI"]["accuracy"] == pytest.approx(models["FSVI"].score(held_out, labels))
    growth = found.growth[0]
    assert growth.shifts == SHIFTS and growth.levels["FSVI"][0] > growth.levels["FSVI"][4]
    share, error = found.referral[0]
    whole = found.metrics["FSVI"]["rmse"] if task == "regression" else 1 - found.metrics["FSVI"]["accuracy"]
    assert share == 0 and error == pytest.approx(whole)


def test_moving_a_column_is_moving_it_in_the_table(regression):
    """The level at 2 standard deviations is that of a table whose column was moved by so much."""
    models, found = regression
    held_out, _ = make(200, 1)
    model = models["FSVI"]
    std = model.scaler_.scale_[0]
    moved = dataclasses.replace(held_out, columns={**held_out.columns, "size": held_out.columns["size"] + 2 * std})
    level = (model.predict(moved, return_std=True)[1] / model.target_scaler_.scale_).mean()
    assert found.growth[0].levels["FSVI"][SHIFTS.index(2.0)] == pytest.approx(level)


def test_an_unknown_category_is_that_of_a_new_word(classification):
    models, found = classification
    held_out, _ = make(200, 1)
    column = np.full(200, "green", dtype=object)
    unknown = dataclasses.replace(held_out, columns={**held_out.columns, "color": column})
    with pytest.warns(UserWarning, match="green"):
        entropy = models["FSVI"].predictive(unknown).entropy().mean() / np.log(2)
    assert found.growth[2].levels["FSVI"][1] == pytest.approx(float(entropy))


def test_a_model_of_noise_is_not_trusted():
    table, _ = make(100, 0)
    noise = np.random.default_rng(3).normal(size=100)
    model = FSVIRegressor(**{**FAST, "epochs": 2}).fit(table, noise)
    found = assess({"FSVI": model}, make(100, 1)[0], np.random.default_rng(4).normal(size=100))
    assert found.verdict == "no" and "not trust" in found.headline


def test_map_stays_sure_far_from_the_data(regression):
    """The same checks on MAP fail, so they can fail."""
    models, _ = regression
    found = assess({"MAP": models["MAP"]}, *make(200, 1))
    assert found.verdict == "care" and not found.checks[-1].passed


def test_probabilities_that_are_too_sure_are_found(classification):
    models, _ = classification
    held_out, y = make(200, 1)
    wrong = np.where((y > 0.5) ^ (np.arange(200) % 5 == 0), "high", "low")  # every fifth label is another one
    assert not assess({"MAP": models["MAP"]}, held_out, wrong).checks[1].passed


def test_the_least_sure_rows_are_listed_with_their_lines(classification):
    models, found = classification
    held_out, _ = make(200, 1)
    entropy = models["FSVI"].predictive(held_out).entropy()
    assert found.referred[0].line == int(held_out.lines[int(entropy.argmax())]) and len(found.referred) == 10
