import csv
import json
import os
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import fsvi
from fsvi.estimators.base import Estimator

FAST = ["--epochs", "1"]
HEADER = ["row", "name", "visit", "city", "smoker", "age", "dose", "version", "risk", "price"]


def make_rows(num=120, seed=0):
    generator = np.random.default_rng(seed)
    rows = []
    for index in range(num):
        age, dose = generator.normal(40, 10), generator.normal(2, 0.5)
        city = generator.choice(["Oslo", "Rome", "Lima"])
        rows.append(
            {
                "row": index + 1,
                "name": f"person {index}",
                "visit": np.datetime64("2022-01-01") + int(generator.integers(0, 600)),
                "city": city,
                "smoker": generator.choice(["yes", "no"]),
                "age": "" if generator.random() < 0.1 else f"{age:.1f}",
                "dose": f"{dose:.3f}",
                "version": 3,
                "risk": "high" if dose > 2 else "low",
                "price": f"{10 * dose + 5 * (city == 'Oslo') + generator.normal():.2f}",
            }
        )
    return rows


def write(path, rows):
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]) if rows else HEADER)
        writer.writeheader()
        writer.writerows(rows)
    return path


@pytest.fixture
def table(tmp_path):
    return write(tmp_path / "t.csv", make_rows())


@pytest.fixture
def fit(run):
    """The exit code of `fsvi fit`, and what it printed."""

    def call(path, *arguments, target="price"):
        out = path.parent / "model.fsvi"
        return run("fit", str(path), "--target", target, "--out", str(out), *FAST, *arguments)

    return call


@pytest.fixture
def refused(fit):
    """The sentence that a fit is refused with; nothing may have been written."""

    def call(path, *arguments):
        before = sorted(path.parent.iterdir())
        code, _, err = fit(path, *arguments)
        assert code == 1 and err.startswith("Error: ") and err.count("\n") == 1 and "bug" not in err
        assert sorted(path.parent.iterdir()) == before
        return err

    return call


def test_from_a_table_to_a_model_and_a_report(fit, table):
    code, out, err = fit(table)
    assert code == 0, err
    for words in ["10 columns", "regression", "'row' only counts rows", "'name' has other text", "120 rows"]:
        assert words in out
    assert "always 3" in out and "Model:" in out
    model = Estimator.load(table.parent / "model.fsvi")
    kinds = {column.name: column.kind for column in model.encoder_.columns}
    assert kinds["visit"] == "date" and kinds["city"] == "category" and kinds["age"] == "number"
    assert "row" not in kinds and "name" not in kinds and model.target_name_ == "price"
    assert "dose" in (table.parent / "model.html").read_text()


def test_classes_are_detected(fit, table):
    code, out, _ = fit(table, "--ignore", "price", target="risk")
    assert code == 0 and "classification (2 classes" in out
    model = Estimator.load(table.parent / "model.fsvi")
    assert model.classes_.tolist() == ["high", "low"] and "price" not in model.encoder_.names


def test_types_and_task_can_be_given(fit, table):
    code, _, err = fit(table, "--category", "version", "--number", "row", "--ignore", "name", "--ignore", "visit")
    assert code == 0, err
    kinds = {column.name: column.kind for column in Estimator.load(table.parent / "model.fsvi").encoder_.columns}
    assert kinds["version"] == "category" and kinds["row"] == "number" and "visit" not in kinds
    rows = make_rows()
    for row in rows:
        row["stars"] = int(float(row["dose"]) * 2)
    path = write(table.parent / "stars.csv", rows)
    assert "classification" in fit(path, "--force", target="stars")[1]
    assert "regression" in fit(path, "--force", "--task", "regression", target="stars")[1]


def test_the_verdict_is_one_json_object(fit, table):
    found = json.loads(fit(table, "--json")[1])
    assert found["verdict"] in ("trust", "care", "no") and found["metrics"]["rmse"] > 0
    assert {"useful", "calibration", "time"} <= {finding["name"] for finding in found["findings"]}
    assert "'visit'" in next(f["sentence"] for f in found["findings"] if f["name"] == "time")


def test_prices_and_percents_are_numbers(fit, table):
    rows = [{"share": f"{i % 7 + i / 9:.1f}%", "gap": "", "price": f"${1000 * (i % 7) + i:,.2f}"} for i in range(60)]
    code, out, err = fit(write(table, rows))
    assert code == 0 and "regression (0 to 6,055" in out, err
    assert "always missing" in out


def test_names_of_files_need_not_be_text(run, table, tmp_path):
    odd = table.rename(Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.csv")))
    model = odd.with_suffix(".fsvi")
    assert run("fit", str(odd), "--target", "price", "--out", str(model), *FAST)[0] == 0
    assert "\\udcff.csv" in odd.with_suffix(".html").read_text()
    assert run("predict", str(model), str(odd), "--out", str(tmp_path / "scored"))[0] == 0
    assert len((tmp_path / "scored" / odd.name).read_text().splitlines()) == 121


def test_files_are_not_replaced_unless_asked(fit, refused, table):
    (table.parent / "model.html").write_text("precious")
    assert "model.html exists" in refused(table)
    assert (table.parent / "model.html").read_text() == "precious"
    assert fit(table, "--force")[0] == 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda row: {**row, "price": 5}, "same target, 5"),
        (lambda row: {"constant": 1, "other": "x", "price": row["price"]}, "constant"),
        (lambda row: {"name": row["name"], "price": row["price"]}, "no column is left"),
        (lambda row: {"price": row["price"]}, "there is no other"),
        (lambda row: {**row, "price": str(row["visit"])}, "dates"),
        (lambda row: {**row, "price": row["name"]}, "too many for classes"),
        (lambda row: {**row, "dose": "inf"}, "infinite"),
    ],
)
def test_tables_that_nothing_can_be_learned_from(refused, table, change, words):
    assert words in refused(write(table, [change(row) for row in make_rows()]))


def test_bad_tables_and_options_are_named(refused, table):
    assert "usable rows" in refused(write(table, make_rows(10)))
    write(table, make_rows())
    assert "'dosis'" in refused(table, "--number", "dosis")
    assert "is the target" in refused(table, "--number", "price")
    assert "'city' has" in refused(table, "--number", "city")
    assert "dates" in refused(table, "--date", "city")
    assert "regressio" in refused(table, "--task", "regressio")
    assert "--class-weight" in refused(table, "--class-weight", "balanced")
    assert "did you mean" in refused(table, "--method", "fsvy")
    table.write_text("")
    assert "empty" in refused(table)


def test_a_model_of_numeric_columns_predicts_arrays_and_frames(run, tmp_path):
    x = np.random.default_rng(0).normal(size=(60, 2))
    lines = [f"{a},{b},{'yes' if a > 0 else 'no'}" for a, b in x.tolist()]
    (tmp_path / "t.csv").write_text("\n".join(["p,q,y", *lines]))
    model = tmp_path / "m.fsvi"
    assert run("fit", str(tmp_path / "t.csv"), "--target", "y", "--epochs", "2", "--out", str(model))[0] == 0
    loaded = fsvi.FSVIClassifier.load(model)
    frame = pd.DataFrame({"q": x[:, 1], "p": x[:, 0]})
    with pytest.warns(UserWarning, match="feature names"):
        expected = loaded.predict_proba(x)
    np.testing.assert_allclose(loaded.predict_proba(frame), expected)


def test_warnings_are_sentences(run, monkeypatch):
    def _fit(options):
        warnings.warn("column 'a' is new.", UserWarning, stacklevel=1)

    monkeypatch.setattr("fsvi.cli._fit", _fit)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert run("fit", "t.csv", "--target", "y") == (0, "", "Warning: column 'a' is new.\n")
