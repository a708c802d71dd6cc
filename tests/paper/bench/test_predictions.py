"""Predictions that are measured."""

import pytest
import torch

from paper.bench.predictions import BenchPrediction, measure_predictions
from paper.bench.steps import dropping


@pytest.mark.parametrize("method", ["last_layer", "mfvi", "mc_dropout", "laplace", "laplace probit"])
def test_predictions_are_probabilities(method):
    network = dropping("mlp 100") if method == "mc_dropout" else "mlp 100"
    probabilities = BenchPrediction(network, method, 2, 5).make_action()()
    torch.testing.assert_close(probabilities.sum(1), torch.ones(5))


def test_forward_passes_are_measured_once_for_each_network(monkeypatch):
    def seconds(actions, rounds):
        return {each: [2.0 * each.num_samples] * rounds for each in actions}

    monkeypatch.setattr("paper.bench.predictions.interleave", seconds)
    costs = measure_predictions([BenchPrediction("mlp 100", "conditional", num, 3) for num in (1, 4)], rounds=2)
    assert [cost.prediction.method for cost in costs] == ["forward", "conditional", "conditional"]
    assert [cost.ratio.median for cost in costs] == [1.0, 1.0, 4.0]
    assert costs[2].as_dict()["num_samples"] == 4 and costs[2].as_dict()["ms"]["median"] == 8000.0
