import math

import pytest
import torch

from paper import data
from paper.experiment import Order
from paper.tasks.registry import TASKS


@pytest.fixture
def table(monkeypatch):
    """A table in raw units far from standard ones, with a constant column."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 3, generator=generator, dtype=torch.float64) * 50 + 1000
    x[:, 2] = 7.0
    y = 20 * x[:, :1] + torch.randn(60, 1, generator=generator, dtype=torch.float64)
    dataset = data.DataSplit(x, y, "yacht", "train", sha256="0")
    monkeypatch.setattr(data, "load", lambda name, split="train", root=None: dataset)
    return dataset


def test_the_network_sees_standardised_training_rows(table):
    x, y = TASKS["uci-yacht"].experiment(Order("uci-yacht", "map", "smoke", seed=1)).data
    assert x.dtype == y.dtype == torch.float32 and len(x) == 54
    for values in (x[:, :2], y):
        torch.testing.assert_close(values.mean(0), torch.zeros(values.shape[1]), rtol=0, atol=1e-5)
        torch.testing.assert_close(values.std(0, correction=0), torch.ones(values.shape[1]), rtol=0, atol=1e-5)
    assert torch.equal(x[:, 2], torch.zeros(54))


def test_every_seed_has_a_split_of_its_own(table):
    splits = [
        TASKS["uci-yacht"].experiment(Order("uci-yacht", "map", "smoke", seed=seed)).data[1] for seed in (0, 0, 1)
    ]
    assert torch.equal(splits[0], splits[1]) and not torch.equal(splits[0], splits[2])


def test_metrics_are_in_original_units(table):
    """An untrained network predicts the mean, so that its error is the targets' own deviation: about 1000."""
    order = Order("uci-yacht", "map", "smoke", fit_settings={"epochs": 1, "lr": 1e-9})
    experiment = TASKS["uci-yacht"].experiment(order)
    method = experiment.build(0)
    experiment.train(method, 0, progress=False)
    metrics = experiment.evaluate(method).metrics
    assert 400 < metrics["rmse"] < 2500
    assert metrics["log_likelihood"] < -math.log(400)
