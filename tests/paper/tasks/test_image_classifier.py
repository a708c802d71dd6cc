"""Classifiers: their settings, their draws, and their curves."""

import math

import pytest
import torch

import fsvi
from fsvi.likelihoods import CategoricalPredictive
from fsvi.networks import mlp
from paper.experiment import Order
from paper.tasks.images import entropy_histogram, evaluate_images, predict
from paper.tasks.registry import TASKS
from pictures import pretend


def method(name, **settings):
    return fsvi.make_method(name, lambda: mlp(2, (4,), 3), fsvi.Categorical(), **settings)


@pytest.mark.parametrize(
    ("name", "settings", "draws"),
    [
        ("fsvi", {"context": fsvi.contexts.Batch(), "stochastic": "last_layer"}, 20),
        ("fsvi", {"context": fsvi.contexts.Batch()}, 2),
        ("mfvi", {}, 2),
        ("laplace", {}, 20),
        ("laplace", {"structure": "diagonal"}, 2),
    ],
)
def test_draws_that_cost_nothing_are_many(name, settings, draws):
    trained = method(name, **settings)
    x = torch.randn(6, 2)
    fsvi.fit(trained, (x, torch.arange(6) % 3), epochs=1, progress=False)
    assert len(predict(trained, x, 2).samples) == draws


def test_no_prediction_falls_out_of_the_histogram():
    """Nearly uniform probabilities, whose entropy rounding takes above log C."""
    torch.manual_seed(0)
    p = CategoricalPredictive(1e-4 * torch.randn(10, 500, 10))
    assert float(p.entropy().max()) > math.log(10)
    assert sum(entropy_histogram(p)) == pytest.approx(1.0, abs=1e-4)


def test_settings_of_the_order_come_before_the_recipes(monkeypatch):
    pretend(monkeypatch)
    settings = {"settings": {"num_context": 3}, "fit_settings": {"lr": 1.0}}
    experiment = TASKS["fashion-mnist"].experiment(Order("fashion-mnist", "fsvi", "paper", context="batch", **settings))
    method = experiment.build(0)
    assert (method.num_context, method.stochastic) == (3, "last_layer")
    assert (experiment.fit_settings["lr"], experiment.fit_settings["epochs"]) == (1.0, 30)
    assert list(experiment.notes) == ["adam at 1.0, dropout 0.25; the paper's: sgd at 0.005"]


class Certain(CategoricalPredictive):
    """Ranks inputs by a score of its own that contradicts the entropy."""

    @property
    def score(self):
        return -self.entropy()


def test_detection_is_measured_by_the_methods_own_score_and_by_entropy():
    """One test image is less certain than the other images: entropy gets them the wrong way round."""

    class Method:
        def predict(self, x, num_samples, batch_size):
            return Certain(x[None])

    test, other = torch.tensor([[0.0, 0.1]]), torch.tensor([[0.0, 9.0], [8.0, 0.0]])
    found, curves = evaluate_images(Method(), test, torch.tensor([1]), {"other": other}, 1)
    assert (found["auroc_own_other"], found["auroc_entropy_other"]) == (1.0, 0.0)
    assert found["auroc_other"] == found["auroc_own_other"]
    assert set(curves["entropy"]) == {"test", "other"}
