import csv
import json
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import fsvi
from command import invoke
from fsvi.errors import FSVIError
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


def fit(path, *arguments, target="price"):
    out = path.parent / "model.fsvi"
    return invoke("fit", str(path), "--target", target, "--out", str(out), *FAST, *arguments)


def refused(path, *arguments, target="price", kind=FSVIError):
    """The sentence that a fit is refused with; nothing may have been written."""
    before = sorted(path.parent.iterdir())
    result = fit(path, *arguments, target=target)
    assert isinstance(result.exception, kind), result.output
    assert sorted(path.parent.iterdir()) == before
    return str(result.exception)


def test_from_a_table_to_a_model_and_a_report(table):
    result = fit(table)
    assert result.exit_code == 0, result.exception
    for words in ["10 columns", "regression", "'row' only counts rows", "'name' has other text", "120 rows"]:
        assert words in result.output
    assert "always 3" in result.output and "Model:" in result.output
    model = Estimator.load(table.parent / "model.fsvi")
    kinds = {column.name: column.kind for column in model.encoder_.columns}
    assert kinds["visit"] == "date" and kinds["city"] == "category" and kinds["age"] == "number"
    assert "row" not in kinds and "name" not in kinds and model.target_name_ == "price"
    assert "dose" in (table.parent / "model.html").read_text()


def test_classes_are_detected(table):
    result = fit(table, "--ignore", "price", target="risk")
    assert result.exit_code == 0 and "classification (2 classes" in result.output
    model = Estimator.load(table.parent / "model.fsvi")
    assert model.classes_.tolist() == ["high", "low"] and "price" not in model.encoder_.names


def test_types_and_task_can_be_given(table):
    result = fit(table, "--category", "version", "--number", "row", "--ignore", "name", "--ignore", "visit")
    assert result.exit_code == 0, result.exception
    kinds = {column.name: column.kind for column in Estimator.load(table.parent / "model.fsvi").encoder_.columns}
    assert kinds["version"] == "category" and kinds["row"] == "number" and "visit" not in kinds
    assert fit(table, "--number", "age", "--category", "age", "--force").exit_code == 2
    rows = make_rows()
    for row in rows:
        row["stars"] = int(float(row["dose"]) * 2)
    path = write(table.parent / "stars.csv", rows)
    assert "classification" in fit(path, "--force", target="stars").output
    assert "regression" in fit(path, "--force", "--task", "regression", target="stars").output


def test_the_verdict_is_one_json_object(table):
    result = fit(table, "--json")
    found = json.loads(result.stdout)
    assert found["verdict"] in ("trust", "care", "no") and found["metrics"]["rmse"] > 0
    assert {"useful", "calibration", "time"} <= {finding["name"] for finding in found["findings"]}
    assert "'visit'" in next(f["sentence"] for f in found["findings"] if f["name"] == "time")


def test_prices_and_percents_are_numbers(table):
    rows = [{"share": f"{i % 7 + i / 9:.1f}%", "gap": "", "price": f"${1000 * (i % 7) + i:,.2f}"} for i in range(60)]
    result = fit(write(table, rows))
    assert result.exit_code == 0 and "regression (0 to 6,055" in result.output, result.exception
    assert "always missing" in result.output


def test_names_of_files_need_not_be_text(table, tmp_path):
    odd = table.rename(Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.csv")))
    model = odd.with_suffix(".fsvi")
    assert invoke("fit", odd, "--target", "price", "--out", model, *FAST).exception is None
    assert "\\udcff.csv" in odd.with_suffix(".html").read_text()
    assert invoke("predict", model, odd, "--out", tmp_path / "scored").exception is None
    assert len((tmp_path / "scored" / odd.name).read_text().splitlines()) == 121


def test_files_are_not_replaced_unless_asked(table):
    (table.parent / "model.html").write_text("precious")
    assert "model.html exists" in refused(table)
    assert (table.parent / "model.html").read_text() == "precious"
    assert fit(table, "--force").exit_code == 0


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
def test_tables_that_nothing_can_be_learned_from(table, change, words):
    assert words in refused(write(table, [change(row) for row in make_rows()]))


def test_bad_tables_and_options_are_named(table, tmp_path):
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
