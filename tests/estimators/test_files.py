import numpy as np
import pytest
from torch import nn

import fsvi
from fsvi.errors import FileFormatError
from fsvi.estimators import FSVIClassifier, FSVIRegressor
from fsvi.estimators.base import Estimator
from fsvi.serialization import ESTIMATOR, read_tree, write_tree
from fsvi.tables import as_table

FAST = {"epochs": 5, "lr": 0.05, "num_samples": 10, "random_state": 0}


@pytest.fixture(scope="module")
def table():
    generator = np.random.default_rng(0)
    array = np.empty((80, 2), dtype=object)
    array[:, 0], array[:, 1] = generator.normal(size=80), generator.choice(["red", "blue"], 80)
    array[4, 0] = None
    return as_table(array, ["size", "color"])


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    x = np.random.default_rng(0).normal(size=(30, 2))
    path = tmp_path_factory.mktemp("saved") / "model.fsvi"
    FSVIClassifier("map", **FAST).fit(x, np.where(x[:, 0] > 0, "yes", "no")).save(path)
    return path


@pytest.mark.parametrize("method", ["fsvi", "map", "ensemble:map", "laplace"])
@pytest.mark.parametrize("kind", [FSVIClassifier, FSVIRegressor])
def test_saved_estimators_predict_the_same(kind, method, table, tmp_path):
    generator = np.random.default_rng(1)
    y = generator.choice(["no", "yes"], 80) if kind is FSVIClassifier else generator.normal(size=80)
    model = kind(method, **FAST).fit(table, y)
    model.save(tmp_path / "model.fsvi")
    again = kind.load(tmp_path / "model.fsvi")
    predict = "predict_proba" if kind is FSVIClassifier else "predict"
    np.testing.assert_array_equal(getattr(again, predict)(table), getattr(model, predict)(table))
    assert again.get_params().keys() == model.get_params().keys() and again.history_ == model.history_
    assert type(Estimator.load(tmp_path / "model.fsvi")) is kind
    again.fit(table, y)
    np.testing.assert_array_equal(getattr(again, predict)(table), getattr(model, predict)(table))


def test_calibration_contexts_and_settings_travel(tmp_path):
    generator = np.random.default_rng(0)
    x = generator.normal(size=(200, 2))
    y = (x[:, 0] > 0).astype(int)
    settings = {"prior": fsvi.priors.Constant(2.0), "num_context": 4}
    settings["context"] = fsvi.contexts.Uniform(widen=1.0)
    model = FSVIClassifier(**FAST, settings=settings, class_weight={0: 2.0, 1: 1.0})
    model.fit(x[:100], y[:100]).calibrate(x[100:], y[100:])
    model.save(tmp_path / "model.fsvi")
    again = FSVIClassifier.load(tmp_path / "model.fsvi")
    np.testing.assert_array_equal(again.predict_set(x), model.predict_set(x))
    assert again.settings["prior"].variance == 2.0 and again.settings["num_context"] == 4
    assert again.settings["context"].widen == 1.0 and again.class_weight == {0: 2.0, 1: 1.0}
    assert again.classes_.dtype == model.classes_.dtype


@pytest.mark.parametrize("method", ["fsvi", "map"])
def test_a_network_that_a_file_cannot_describe_is_given(method, tmp_path):
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.hidden, self.last = nn.Linear(2, 4), nn.Linear(4, 1)

        def forward(self, x):
            return self.last(self.hidden(x).tanh())

    x = np.random.default_rng(0).normal(size=(30, 2))
    model = FSVIRegressor(method, **FAST, module=Own()).fit(x, x[:, 0])
    model.save(tmp_path / "model.fsvi")
    with pytest.raises(FileFormatError, match="network"):
        FSVIRegressor.load(tmp_path / "model.fsvi")
    np.testing.assert_allclose(FSVIRegressor.load(tmp_path / "model.fsvi", Own()).predict(x), model.predict(x))


def test_wrong_files_are_named(tmp_path):
    x = np.random.default_rng(0).normal(size=(30, 2))
    model = FSVIRegressor("map", **FAST).fit(x, x[:, 0])
    model.save(tmp_path / "model.fsvi")
    with pytest.raises(FileFormatError, match="FSVIRegressor"):
        FSVIClassifier.load(tmp_path / "model.fsvi")
    with pytest.raises(FileFormatError, match="fsvi estimator"):
        fsvi.load(tmp_path / "model.fsvi")
    model.method_.save(tmp_path / "method.fsvi")
    with pytest.raises(FileFormatError, match="fsvi method"):
        FSVIRegressor.load(tmp_path / "method.fsvi")


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        ("estimator settings num_samples", 10**9, "num_samples=1000000000"),
        ("learned num_samples", 10**9, "'num_samples', which no estimator has"),
        ("learned seed_", "x", "cannot use"),
        ("learned classes_", ["no"], "1 labels"),
        ("learned classes_", [["no"], ["yes"]], "2 labels"),
        ("learned classes_", ["no", 1], "2 labels"),
        ("learned target_name_", [], "not a name"),
        ("learned scaler_ settings mean", [0.0] * 3, "scales 3"),
    ],
)
def test_forged_values_are_one_sentence_when_the_file_is_loaded(saved, tmp_path, place, value, said):
    tree = read_tree(saved, ESTIMATOR)
    *above, last = place.split()
    inner = tree
    for name in above:
        inner = inner[name]
    inner[last] = value
    write_tree(tmp_path / "forged.fsvi", tree, ESTIMATOR)
    with pytest.raises(FileFormatError, match=f"forged.fsvi .*{said}"):
        FSVIClassifier.load(tmp_path / "forged.fsvi")
