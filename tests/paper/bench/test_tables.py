import json
import math

import numpy as np
import pytest
from sklearn.datasets import make_classification, make_friedman1

from fsvi.errors import DataNotFoundError, InvalidInputError
from paper.bench import tables
from paper.bench.tables import Table, check_promises, measure_fit, render_markdown, run_table_bench


class Certain:
    """A classifier that is sure of one class, or knows nothing where the first column is above 5."""

    classes_ = np.array([0, 1])

    def predict_proba(self, x):
        far = x[:, :1] > 5
        return np.where(far, [[0.5, 0.5]], [[0.9, 0.1]])


def test_a_classifiers_numbers():
    table = Table("made", True, lambda: None)
    x, y = np.zeros((4, 2)), np.array([0, 0, 0, 1])
    measured = measure_fit(Certain(), table, x, y, 1.0)
    assert measured["accuracy"] == 0.75
    assert measured["nll"] == pytest.approx(-(3 * math.log(0.9) + math.log(0.1)) / 4)
    train = (np.array([[-1.0, -1.0], [1.0, 1.0]]), np.array([0, 1]))
    far = tables.measure_uncertainty(Certain(), table, train, x, 0)
    low = -(0.9 * math.log(0.9) + 0.1 * math.log(0.1)) / math.log(2)
    assert far["on"] == far["down 8"] == far["up 2"] == pytest.approx(low)
    assert far["up 8"] == pytest.approx(1)
    assert far["one 8"] == pytest.approx((3 * low + 1) / 4)  # one of two columns, one of two directions
    assert far["worst 8"] == pytest.approx(low)


class Line:
    """A regressor: y = x, with a standard deviation of 2."""

    def predict(self, x, return_std):
        return x[:, 0], np.full(len(x), 2.0)


def test_a_regressors_numbers_are_in_units_of_the_targets():
    x, y = np.array([[0.0], [1.0], [2.0], [3.0]]), np.array([2.0, 1.0, 2.0, 10.0])
    measured = measure_fit(Line(), Table("made", False, lambda: None), x, y, scale=4.0)
    z = np.array([1.0, 0, 0, 3.5])
    assert measured["rmse"] == pytest.approx(math.sqrt((4 + 49) / 4) / 4)
    assert measured["coverage"] == 0.75
    assert measured["nll"] == pytest.approx((0.5 * z**2).mean() + math.log(0.5) + 0.5 * math.log(2 * math.pi))


def shifted(on, far, one, near):
    return {
        "on": on,
        **{f"{name} 8": far for name in ("signs", "up", "down")},
        "one 8": one,
        **{f"{name} 2": near for name in ("signs", "up", "down", "one")},
    }


GOOD = {
    "classification": {"accuracy": 0.95, "nll": 0.21, "cpu": 1.5, **shifted(0.1, 0.9, 0.7, 0.2)},
    "regression": {
        "rmse": 0.43,
        "nll": -1.0,
        "coverage": 0.95,
        "seconds": 1.5,
        "cpu": 1.5,
        **shifted(0.3, 0.8, 0.7, 0.4),
    },
}
POINT = {
    "classification": {"accuracy": 0.955, "nll": 0.2, "seconds": 1.0, "cpu": 1.0},
    "regression": {"rmse": 0.4, "nll": -1.05, "seconds": 1.0, "cpu": 1.0},
}


def made(kind, **changes):
    models = {"fsvi": {**GOOD[kind], **changes}, "map": POINT[kind]}
    return {"table": "made", "kind": kind, "rows": 100, "columns": 3, "seeds": 1, "models": models}


@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_good_results_keep_every_promise(kind):
    checks = check_promises(made(kind))
    assert all(checks.values()) and len(checks) >= 10


@pytest.mark.parametrize(
    ("kind", "changes", "broken"),
    [
        ("classification", {"accuracy": 0.94}, "accuracy"),
        ("classification", {"nll": 0.23}, "NLL"),
        ("classification", {"up 8": 0.84}, "up 8"),
        ("classification", {"one 8": 0.59}, "one 8"),
        ("classification", {"one 2": 0.1}, "one 2"),
        ("regression", {"rmse": 0.45}, "RMSE"),
        ("regression", {"nll": -0.9}, "NLL"),
        ("regression", {"coverage": 0.91}, "coverage"),
        ("regression", {"coverage": 0.99}, "coverage"),
        ("regression", {"signs 8": 0.69}, "signs 8"),
        ("regression", {"one 8": 0.59}, "doubles"),
        ("regression", {"down 2": 0.3}, "down 2"),
    ],
)
def test_each_promise_can_be_broken(kind, changes, broken):
    result = made(kind, **changes)
    names = [name for name, holds in check_promises(result).items() if not holds]
    assert len(names) == 1 and broken in names[0]
    assert names[0] in render_markdown([result])


def absent():
    raise DataNotFoundError("there is no such file.")


@pytest.fixture
def small(monkeypatch):
    """Two small tables and one that is not there, with fast models."""
    made = (
        Table("classes", True, lambda: make_classification(80, 4, random_state=0)),
        Table("friedman", False, lambda: make_friedman1(80, random_state=0)),
        Table("absent", False, absent),
    )
    monkeypatch.setattr(tables, "TABLES", made)
    make = tables.make_models

    def fast(*arguments):
        models = make(*arguments)
        for name in ("fsvi", "map", "ensemble"):
            models[name].set_params(epochs=2, hidden=(5,), num_samples=5)
        models["forest"].set_params(n_estimators=3)
        return models

    monkeypatch.setattr(tables, "make_models", fast)
    return made


def test_the_bench_writes_tables_and_goes_on_where_it_stopped(small, tmp_path, monkeypatch):
    told = []
    run_table_bench(tmp_path, [7], told.append)
    assert any("absent is left out" in line for line in told)
    page = (tmp_path / "tables.md").read_text()
    assert all(name in page for name in ("classes", "friedman", "sklearn MLP", "forest", "GP", "ensemble", "Median"))
    document = json.loads((tmp_path / "classes.json").read_text())
    assert document["seeds"] == [7] and set(document["models"]) == {
        "fsvi",
        "map",
        "ensemble",
        "sklearn MLP",
        "forest",
        "GP",
    }
    monkeypatch.setattr(tables, "measure_table", lambda *_: absent())
    run_table_bench(tmp_path, [7], told.append)
    assert (tmp_path / "tables.md").read_text() == page
    run_table_bench(tmp_path, [7, 8], told.append)
    assert "friedman is left out" in "".join(told)


def test_only_the_named_tables_are_measured(small, tmp_path):
    run_table_bench(tmp_path, [7], lambda line: None, names="friedman")
    assert (tmp_path / "friedman.json").exists() and not (tmp_path / "classes.json").exists()
    with pytest.raises(InvalidInputError, match="only"):
        run_table_bench(tmp_path, [7], lambda line: None, names="friedmann")
