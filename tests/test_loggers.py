import csv

import pytest

import fsvi
from scenarios import classifier, points


def rows(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_csv_has_a_row_per_epoch(tmp_path):
    path = tmp_path / "log" / "run.csv"
    history = fsvi.fit(classifier(), points(), epochs=3, validation=points(), callbacks=[fsvi.loggers.CSV(path)])
    written = rows(path)
    assert list(written[0]) == ["epoch", "loss", "nll", "kl", "val"]
    assert [int(row["epoch"]) for row in written] == [1, 2, 3]
    assert [float(row["kl"]) for row in written] == history.terms["kl"]
    assert [float(row["val"]) for row in written] == history.validation


def test_tensorboard_has_each_term_at_its_step(tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    history = fsvi.fit(classifier(), points(), epochs=2, callbacks=[fsvi.loggers.TensorBoard(tmp_path)])
    written = accumulator.EventAccumulator(str(tmp_path)).Reload()
    for name, values in {"loss": history.loss, **history.terms}.items():
        assert [event.value for event in written.Scalars(f"epoch/{name}")] == pytest.approx(values, rel=1e-6)
