import gzip
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import polars
import pytest

import fsvi
import fsvi.scoring.scorers as scorers
from fsvi.errors import InvalidInputError
from fsvi.scoring import files
from fsvi.scoring.scorers import TableScorer

ROWS = 40


def frame(index, rows=ROWS):
    generator = np.random.default_rng(index)
    return polars.DataFrame(
        {
            "id": np.arange(rows) + 2**60 + 1_000 * index,  # float64 cannot hold these
            "size": generator.normal(size=rows),
            "color": generator.choice(["red", "blue"], rows),
        }
    )


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    x = frame(99, 200).drop("id")
    y = np.where(x["size"].to_numpy() > 0, "big", "small")
    fast = {"epochs": 3, "num_samples": 10}
    for seed in (0, 1):
        fsvi.FSVIClassifier(**fast, random_state=seed).fit(x, y).save(folder / f"{seed}.fsvi")
    return folder


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    for index in range(3):
        frame(index).write_parquet(folder / f"part-{index}.parquet")
    return folder


def score(models, inputs, out, model="0.fsvi", **settings):
    return fsvi.predict_files(models / model, inputs, out, tell=lambda _: None, **settings)


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_every_row_is_scored_once_like_the_estimator_does(models, data, tmp_path):
    frame(3).write_csv(data / "part-3.csv")
    (data / "part-4.csv.gz").write_bytes(gzip.compress(frame(4).write_csv().encode()))
    frame(5, rows=0).write_parquet(data / "part-5.parquet")
    (data / "_SUCCESS").touch()
    report = score(models, data, tmp_path / "out", keep=["id"])
    assert (report.rows, report.new_rows, report.files, report.failed) == (5 * ROWS, 5 * ROWS, 6, {})
    estimator = fsvi.FSVIClassifier.load(models / "0.fsvi")
    for index in range(5):
        path = next((tmp_path / "out").glob(f"part-{index}.*"))
        found = polars.read_parquet(path) if path.suffix == ".parquet" else polars.read_csv(path)
        assert found["id"].to_list() == frame(index)["id"].to_list()
        largest = estimator.predict_proba(frame(index).drop("id")).max(1)
        np.testing.assert_allclose(found["probability"], largest, rtol=1e-12)
    empty, full = (polars.read_parquet_schema(tmp_path / "out" / f"part-{i}.parquet") for i in (5, 0))
    assert empty == full


def test_how_rows_are_cut_into_files_and_parts_matters_to_rounding_only(models, data, tmp_path, monkeypatch):
    score(models, data, tmp_path / "parts")
    (tmp_path / "one").mkdir()
    polars.concat([frame(index) for index in range(3)]).write_parquet(tmp_path / "one" / "all.parquet")
    monkeypatch.setattr(scorers, "ROWS", 7)
    score(models, tmp_path / "one", tmp_path / "whole")
    parts = polars.concat([polars.read_parquet(tmp_path / "parts" / f"part-{i}.parquet") for i in range(3)])
    whole = polars.read_parquet(tmp_path / "whole" / "all.parquet")
    for name in ("probability", "entropy", "mutual_information"):
        np.testing.assert_allclose(parts[name], whole[name], rtol=1e-9, atol=1e-12)
    assert parts["label"].to_list() == whole["label"].to_list()


def test_a_second_call_makes_what_is_missing_with_the_same_bits(models, data, tmp_path):
    out = tmp_path / "out"
    score(models, data, out)
    before = content(out)
    (out / "part-1.parquet").unlink()
    report = score(models, data, out)
    assert (report.new_rows, report.found, report.rows) == (ROWS, 2, 3 * ROWS)
    assert content(out) == before


@pytest.mark.parametrize(
    ("settings", "keyword"), [({"model": "1.fsvi"}, "another model"), ({"samples": 3}, "samples=10, not 3")]
)
def test_predictions_of_another_model_are_refused(models, data, tmp_path, settings, keyword):
    score(models, data, tmp_path / "out")
    before = content(tmp_path / "out")
    with pytest.raises(InvalidInputError, match=keyword):
        score(models, data, tmp_path / "out", **settings)
    assert content(tmp_path / "out") == before


def test_a_file_with_other_columns_costs_only_itself(models, data, tmp_path):
    frame(2).rename({"size": "sizes"}).write_parquet(data / "part-2.parquet")
    with pytest.raises(InvalidInputError, match=r"part-2.parquet.*'size' \(is it 'sizes'"):
        score(models, data / "part-2.parquet", tmp_path / "out")
    assert content(tmp_path / "out") == {}
    frame(2).with_columns(polars.lit("large").alias("size")).write_parquet(data / "part-2.parquet")
    report = score(models, data, tmp_path / "out")
    assert report.files == 2 and "'size' has 'large'" in report.failures()


@pytest.fixture(scope="module")
def interrupted(models, tmp_path_factory):
    """The folder in which `kill.py` has worked."""
    folder = tmp_path_factory.mktemp("interrupted")
    (folder / "data").mkdir()
    for index in range(3):
        frame(index).write_parquet(folder / "data" / f"part-{index}.parquet")
    (folder / "m.fsvi").write_bytes((models / "0.fsvi").read_bytes())
    path = os.pathsep.join([str(Path(__file__).parents[1]), str(Path(fsvi.__file__).parents[1])])
    command = [sys.executable, str(Path(__file__).with_name("kill.py")), str(folder)]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return folder


def test_a_killed_process_leaves_no_half_file(models, interrupted):
    out = interrupted / "killed"
    assert {name for name in content(out) if not name.startswith(".")} == {"part-0.parquet"}
    assert any(name.startswith(".part-1.parquet.") for name in content(out))
    report = score(models, interrupted / "data", out)
    assert (report.found, report.new_rows) == (1, 2 * ROWS)
    assert set(content(out)) == {f"part-{i}.parquet" for i in range(3)}


def test_two_calls_at_once_share_the_files(models, interrupted):
    scored = (interrupted / "scored").read_text().split()
    assert sorted(scored) == [f"part-{i}.parquet" for i in range(3)]
    assert score(models, interrupted / "data", interrupted / "shared").found == 3


def deadly(job, waits):
    """Kills its process at one file, in every attempt, once the other file is written."""
    if job.path.name == "part-1.parquet":
        while not (job.path.parents[1] / "out" / "part-0.parquet").exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
    return files._score(job, waits)


def test_a_worker_that_dies_costs_its_file(models, data, tmp_path, monkeypatch):
    (data / "part-2.parquet").unlink()
    monkeypatch.setattr(files, "_score", deadly)  # in this process; workers have their own
    report = score(models, data, tmp_path / "out", jobs=2)
    assert report.rows == ROWS and "part-1.parquet: its process was killed" in report.failures()
    assert set(content(tmp_path / "out")) == {"part-0.parquet"}


def test_earlier_predictions_stay_until_the_new_ones_exist(models, data, tmp_path, monkeypatch):
    out = tmp_path / "out"
    score(models, data, out)
    before = content(out)["part-1.parquet"]
    frame(8).write_parquet(data / "part-1.parquet")

    def failing(self, path, keep, tell):
        raise OSError(28, "No space left on device")
        yield

    with monkeypatch.context() as patch:
        patch.setattr(TableScorer, "parts", failing)
        report = score(models, data, out)
    assert "part-1.parquet cannot be written: No space left" in report.failures()
    assert content(out)["part-1.parquet"] == before
    with monkeypatch.context() as patch:  # killed after the new file has its name and before the receipt
        patch.setattr("fsvi.scoring.files.write_bytes", killed)
        with pytest.raises(KeyboardInterrupt):
            score(models, data, out)
    assert content(out)["part-1.parquet"] != before
    assert score(models, data, out).new_rows == ROWS
    assert score(models, data, out).new_rows == 0


def killed(path, content):
    raise KeyboardInterrupt


def test_files_of_somebody_else_are_not_replaced(models, data, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "part-1.parquet").write_text("precious")
    with pytest.raises(InvalidInputError, match="was not written by fsvi"):
        score(models, data, tmp_path / "out")
    assert content(tmp_path / "out") == {"part-1.parquet": b"precious"}


def test_an_input_that_changes_while_it_is_scored_is_not_scored(models, data, tmp_path, monkeypatch):
    def changing(self, path, keep, tell):
        frame(7, rows=3).write_parquet(path)
        yield {"label": np.array(["big"])}

    monkeypatch.setattr(TableScorer, "parts", changing)
    with pytest.raises(InvalidInputError, match="was changed while"):
        score(models, data / "part-0.parquet", tmp_path / "out")
    assert content(tmp_path / "out") == {}
