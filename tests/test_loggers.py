import csv
import importlib.util

import pytest

import fsvi
from scenarios import classifier, points


def rows(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_csv_has_a_row_per_epoch(tmp_path):
    path = tmp_path / "log" / "run.csv"
    history = fsvi.fit(
        classifier(), points(), epochs=3, lr=0.5, validation=points(), callbacks=[fsvi.loggers.CSV(path)]
    )
    written = rows(path)
    assert list(written[0]) == ["epoch", "lr", "loss", "nll", "kl", "val"]
    assert [int(row["epoch"]) for row in written] == [1, 2, 3]
    assert [float(row["kl"]) for row in written] == history.terms["kl"]
    assert [float(row["val"]) for row in written] == history.validation
    rates = [0.5 * fsvi.training.cosine()(done / 3) for done in (1, 2, 3)]  # for the steps that follow
    assert [float(row["lr"]) for row in written] == pytest.approx(rates)


@pytest.mark.skipif(importlib.util.find_spec("tensorboard") is None, reason="tensorboard is not installed")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_has_the_epochs_and_the_steps(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logger = fsvi.loggers.TensorBoard(tmp_path, every=2)
    history = fsvi.fit(classifier(), points(), epochs=2, batch_size=10, callbacks=[logger])
    events = EventAccumulator(str(tmp_path)).Reload()
    assert set(events.Tags()["scalars"]) == {"epoch/loss", "epoch/nll", "epoch/kl", "epoch/lr", "step/nll", "step/kl"}
    assert [event.step for event in events.Scalars("epoch/loss")] == [2, 4]
    assert [event.value for event in events.Scalars("epoch/loss")] == pytest.approx(history.loss, rel=1e-6)
    assert [event.step for event in events.Scalars("step/kl")] == [2, 4]
