import math

import pytest
import torch

import fsvi
from fsvi.experiments.images import context_notes, histogram, predict
from fsvi.networks import mlp
from fsvi.predictive import CategoricalPredictive


def method(name, **settings):
    return fsvi.make_method(name, lambda: mlp(2, (4,), 3), fsvi.Categorical(), **settings)


@pytest.mark.parametrize(
    ("name", "settings", "draws"),
    [
        ("fsvi", {"context": fsvi.contexts.Batch(), "stochastic": "last_layer"}, 20),
        ("fsvi", {"context": fsvi.contexts.Batch()}, 2),
        ("mfvi", {}, 2),
    ],
)
def test_draws_that_cost_nothing_are_many(name, settings, draws):
    p = predict(method(name, **settings), torch.randn(5, 2), 2)
    assert len(p.samples) == draws


def test_no_prediction_falls_out_of_the_histogram():
    """Nearly uniform probabilities, whose entropy rounding takes above log C."""
    torch.manual_seed(0)
    p = CategoricalPredictive(1e-4 * torch.randn(10, 500, 10))
    assert float(p.entropy().max()) > math.log(10)
    assert sum(histogram(p)) == pytest.approx(1.0, abs=1e-4)


def test_mixed_contexts_say_so():
    assert context_notes("kmnist") == context_notes("monochrome") == ["half of the context points are the minibatch's"]
    assert context_notes("corrupted") == context_notes(None) == []
