import csv
import io

import numpy as np
import pytest

from fsvi.errors import InvalidInputError
from fsvi.estimators import FSVIClassifier, FSVIRegressor
from fsvi.scoring.scorers import ModelFile
from fsvi.tables import read_table

FAST = {"epochs": 20, "lr": 0.05, "num_samples": 20, "random_state": 0}
CLASSES = ["label", "probability", "entropy", "mutual_information"]
TYPES = {"size": "number", "color": "category", "day": "date"}


def make(path, num=200, seed=0):
    generator = np.random.default_rng(seed)
    lines = ["size,color,day,label,price"]
    for _ in range(num):
        size, color = generator.normal(), generator.choice(["red", "blue"])
        day = np.datetime64("2024-01-01") + int(generator.integers(0, 100))
        lines.append(f"{size:.3f},{color},{day},{'big' if size > 0 else 'small'},{3 * size + 10:.3f}")
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tables")
    table = read_table(make(folder / "train.csv"))
    inputs = table.without(["label", "price"])
    classifier = FSVIClassifier(**FAST, columns=TYPES).fit(inputs, np.array(table.columns["label"].tolist()))
    regressor = FSVIRegressor(**FAST, columns=TYPES).fit(inputs, table.columns["price"].astype(float))
    classifier.target_name_, regressor.target_name_ = "label", "price"
    classifier.save(folder / "classes.fsvi")
    regressor.save(folder / "numbers.fsvi")
    held_out = read_table(make(folder / "held_out.csv", seed=1))
    regressor.calibrate(held_out.without(["label", "price"]), held_out.columns["price"].astype(float))
    regressor.save(folder / "calibrated.fsvi")
    return folder


@pytest.fixture
def predict(run, folder):
    """The exit code of `fsvi predict`, and what it printed."""
    return lambda model, path, *arguments: run("predict", str(folder / model), str(path), *arguments)


def rows_of(result):
    return list(csv.DictReader(io.StringIO(result[1])))


def test_numbers_are_those_of_the_estimator(predict, folder):
    rows = rows_of(predict("numbers.fsvi", folder / "held_out.csv"))
    model = FSVIRegressor.load(folder / "numbers.fsvi")
    mean, std = model.predict(read_table(folder / "held_out.csv"), return_std=True)
    np.testing.assert_allclose([float(row["mean"]) for row in rows], mean, rtol=1e-5)
    np.testing.assert_allclose([float(row["std"]) for row in rows], std, rtol=1e-5)
    assert float(rows[0]["lower"]) < float(rows[0]["mean"]) < float(rows[0]["upper"])


def test_intervals_are_conformal_after_calibration(predict, folder):
    rows = rows_of(predict("calibrated.fsvi", folder / "held_out.csv"))
    plain = rows_of(predict("numbers.fsvi", folder / "held_out.csv"))
    assert rows[0]["mean"] == plain[0]["mean"] and rows[0]["lower"] != plain[0]["lower"]


def test_intervals_of_what_is_never_negative_begin_at_zero(predict, folder):
    table = read_table(folder / "train.csv")
    x = table.without(["label", "price"])
    model = FSVIRegressor(**{**FAST, "epochs": 2}, columns=TYPES).fit(x, np.exp(table.columns["size"].astype(float)))
    model.target_name_ = "value"
    for name in ("plain.fsvi", "conformal.fsvi"):
        model.save(folder / name)
        rows = rows_of(predict(name, folder / "train.csv"))
        lower, upper = model.predict_interval(x, alpha=0.05)
        assert lower.min() == 0
        np.testing.assert_allclose([float(row["lower"]) for row in rows], lower, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose([float(row["upper"]) for row in rows], upper, rtol=1e-4)
        model.calibrate(x, np.exp(table.columns["size"].astype(float)))


def test_a_folder_gets_the_predictions_of_many_files(predict, tmp_path):
    (tmp_path / "new").mkdir()
    for index in range(2):
        make(tmp_path / "new" / f"{index}.csv", num=30, seed=index)
    arguments = (str(tmp_path / "new" / "1.csv"), "--out", str(tmp_path / "scored"), "--keep", "size")
    assert "60 rows in 2 files are scored." in predict("classes.fsvi", tmp_path / "new" / "0*.csv", *arguments)[2]
    with open(tmp_path / "scored" / "0.csv") as file:
        names = csv.DictReader(file).fieldnames
    assert names[:7] == ["size", "line", *CLASSES, "probability_big"]
    code, _, err = predict("classes.fsvi", tmp_path / "new" / "0*.csv", *arguments)
    assert "2 of them before" in err and code == 0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("sizes,color,day\n1,red,2024-01-01\n", "'size' (is it 'sizes'?)"),
        ("size,color\n1,red\n", "columns that are missing: 'day'"),
        ("size,color,day\nbig,red,2024-01-01\n", "'size' has 'big' in line 2"),
        ("size,color,day\n1,red,yesterday\n", "'day' has 'yesterday' in line 2"),
        ("", "empty"),
        ("size,color,day\n1,red\n", "Row #2: Expected 3 columns, got 2"),
    ],
)
def test_what_does_not_fit_is_named(predict, tmp_path, text, words):
    path = tmp_path / "new.csv"
    path.write_text(text)
    code, _, err = predict("classes.fsvi", path, "--out", str(tmp_path / "out.csv"))
    assert code == 1 and words in err and err.count("\n") == 1
    assert not (tmp_path / "out.csv").exists()


def test_a_table_without_rows_has_no_predictions(predict, tmp_path):
    (tmp_path / "none.csv").write_text("size,color,day\n")
    code, out, err = predict("classes.fsvi", tmp_path / "none.csv")
    assert code == 0 and err == "0 predictions.\n" and len(out.splitlines()) == 1


def test_referral_by_rows_with_the_target(predict, folder, tmp_path):
    more = ["--refer-for", "0.9", "--calibration", str(folder / "held_out.csv")]
    rows = rows_of(predict("classes.fsvi", make(tmp_path / "new.csv", seed=2), *more))
    assert {row["decision"] for row in rows} <= {"keep", "refer"}
    code, _, err = predict("numbers.fsvi", tmp_path / "new.csv", *more)
    assert code == 1 and "refer-for" in err


def test_rows_without_a_target_are_left_out_of_what_is_held_out(folder, tmp_path):
    lines = make(tmp_path / "rows.csv", seed=3).read_text().splitlines()
    lines[1] = lines[1].rsplit(",", 1)[0] + ","
    (tmp_path / "gaps.csv").write_text("\n".join(lines) + "\n")
    x, y = ModelFile(folder / "numbers.fsvi").load().held_out(tmp_path / "gaps.csv")
    assert len(x) == len(y) == 199 and np.isfinite(y).all()
    (tmp_path / "gaps.csv").write_text("\n".join(lines[:2]) + "\n")
    with pytest.raises(InvalidInputError, match="right answer"):
        ModelFile(folder / "numbers.fsvi").load().held_out(tmp_path / "gaps.csv")
