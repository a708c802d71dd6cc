import json
import math
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from paper.bench import tables
from paper.bench.table_models import Answer, Split, make_models, plain, plain_frames
from paper.bench.tables import Table, make_split, render_markdown, run_table_bench, score, versus


@pytest.fixture
def small():
    """A table with an important column, a date and a category."""
    random = np.random.RandomState(0)
    frame = pd.DataFrame({"a": random.randn(150), "b": random.randn(150), "c": random.choice(list("uvw"), 150)})
    return Table("small", lambda: (frame, (3 * frame.a + 0.1 * random.randn(150)).to_numpy()), False)


def test_a_classifiers_scores():
    answer = Answer(0.0, proba=np.array([[0.75, 0.25], [0.75, 0.25], [0.5, 0.5]]))
    found = score(answer, Split(None, None, None, 2), np.array([0, 1, 0]))
    assert found["accuracy"] == pytest.approx(2 / 3)
    assert found["nll"] == pytest.approx(-(math.log(0.75) + math.log(0.25) + math.log(0.5)) / 3)
    assert found["ece"] == pytest.approx((abs(0.75 * 2 - 1) + 0.5) / 3)


def test_a_regressors_scores_are_in_units_of_the_targets():
    y, train = np.array([1.0, 2.0]), np.array([-2.0, 2.0])  # a standard deviation of 2
    answer = Answer(0.0, mean=np.zeros(2), std=np.full(2, 2.0), lower=np.full(2, -1.5), upper=np.full(2, 1.5))
    found = score(answer, Split(None, train, None, 0), y)
    assert found["rmse"] == pytest.approx(math.sqrt(2.5) / 2)
    assert (found["coverage"], found["width"]) == (0.5, 1.5)
    assert found["nll"] == pytest.approx((0.5 * 0.25 + 0.5) / 2 + 0.5 * math.log(2 * math.pi))


def test_splits_leave_out_what_they_say(small):
    x, _ = small.load()
    beyond, _ = make_split(small, "beyond", 0)
    assert beyond.x_test.a.min() > beyond.x.a.max()
    gap, _ = make_split(small, "gap", 0)
    inside = gap.x.a.between(gap.x_test.a.min(), gap.x_test.a.max())
    assert not inside.any() and gap.x.a.max() > gap.x_test.a.max()
    iid, y = make_split(small, "iid", 0)
    assert len(iid.x_test) == len(y) == 30 and not set(iid.x.index) & set(iid.x_test.index)
    assert make_split(small, "time", 0) is None and make_split(small, "group", 0) is None
    assert tables._after(x.assign(day=[f"2020-01-{1 + i % 28:02d}" for i in range(150)]), "day").mean() < 0.25
    chosen = tables._groups(x, "c", 0)
    assert len(set(x.c[chosen])) == 1 and not set(x.c[chosen]) & set(x.c[~chosen])


def test_trees_get_categories_of_training_rows_and_dates_as_days():
    dates = [f"2020-01-01 {i // 60:02d}:{i % 60:02d}" for i in range(100)]
    frame = pd.DataFrame({"c": ["u", "v"] * 50, "d": dates, "t": [f"text {i}" for i in range(100)]})
    x, x_test = plain_frames(Split(frame.iloc[:90], np.zeros(90), frame.iloc[90:].assign(c="new"), 0))
    assert list(x.columns) == ["c", "d"] and x_test.c.isna().all()
    assert x.d.iloc[1] - x.d.iloc[0] == pytest.approx(1 / 1440)


def test_conformal_intervals_are_as_wide_as_held_out_errors(small):
    class Zero:
        def fit(self, x, y):
            return self

        def predict(self, x):
            return np.zeros(len(x))

    split, _ = make_split(small, "iid", 0)
    answer = plain(lambda split, x: Zero(), plain_frames, conformal=True)(split)
    held_out = np.random.RandomState(0).permutation(120)[:24]
    assert answer.upper[0] == -answer.lower[0] == np.abs(split.y[held_out]).max()


def test_wins_ties_and_losses():
    rows = [
        {"table": "a", "split": "iid", "seed": s, "model": m, "cpu": c, "rmse": r, "nll": n}
        for m, c, values, n in (("fsvi", 2.0, (0.9, 1.0, 1.1), 0.5), ("x", 1.0, (1.0, 1.01, 1.0), 0.7))
        for s, r in enumerate(values)
    ]
    found = versus(pd.DataFrame(rows), "x")
    assert (found["wins"], found["ties"], found["losses"]) == (1, 1, 1)
    assert found["NLL not above"] == 1 and found["mean NLL difference"] == pytest.approx(-0.2)
    assert found["median time ratio"] == 2


def test_the_bench_writes_results_and_goes_on_where_it_stopped(small, tmp_path, monkeypatch):
    fast = {"fsvi": lambda split: make_models(print)["constant"](split), "constant": make_models(print)["constant"]}
    monkeypatch.setattr(tables, "make_models", lambda tell: fast)
    monkeypatch.setattr(tables, "measure_far", lambda split: {"holds": {"all 8": True, "one 8": True, "2": False}})
    told = []
    run_table_bench(tmp_path, [0, 1], told.append, tables=[small])
    results = json.loads((tmp_path / "tables.json").read_text())
    assert {row["split"] for row in results} == {"iid", "beyond", "gap", "far"}
    page = (tmp_path / "tables.md").read_text()
    assert "| iid | constant | 0 / 2 / 0 |" in page and "2 of 3 promises hold; broken: ['small: 2']" in page
    assert (tmp_path / "tables.png").stat().st_size > 1000
    monkeypatch.setattr(tables, "score", lambda *given: pytest.fail("measured twice"))
    run_table_bench(tmp_path, [0, 1], told.append, tables=[small])
    assert render_markdown(pd.DataFrame(results)) == page


def test_the_bench_continues_from_the_committed_results(tmp_path, monkeypatch):
    file = Path(tables.__file__).with_suffix(".json")
    shutil.copy(file, tmp_path)
    monkeypatch.setattr(tables, "make_models", lambda tell: {"fsvi": lambda split: pytest.fail("measured twice")})
    told = []
    run_table_bench(tmp_path, [0], told.append, names=["iris"], splits=["iid"])
    assert told[0] == "iris: 0 new results"
    assert json.loads((tmp_path / "tables.json").read_text()) == json.loads(file.read_text())
    assert "| iid | LightGBM |" in (tmp_path / "tables.md").read_text()
