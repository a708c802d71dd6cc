import math
from dataclasses import replace

import pytest
import torch

import fsvi
from fsvi import data
from fsvi.experiments.experiment import Order
from fsvi.experiments.tasks.images import context_notes, histogram, predict
from fsvi.experiments.tasks.registry import TASKS
from fsvi.networks import mlp
from fsvi.predictive import CategoricalPredictive
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
    assert sum(histogram(p)) == pytest.approx(1.0, abs=1e-4)


def test_mixed_contexts_say_so():
    assert context_notes("kmnist") == context_notes("monochrome") == ["half of the context points are the minibatch's"]
    assert context_notes("corrupted") == context_notes(None) == []


@pytest.mark.parametrize(
    ("task", "name", "other"), [("fashion-mnist", "kmnist", "mnist"), ("cifar10", "cifar100", "svhn")]
)
def test_test_images_under_the_name_of_the_context_are_refused(monkeypatch, task, name, other):
    pretend(monkeypatch)
    load = data.load
    mixed_up = lambda asked, split="train": load(other, "test") if asked == name else load(asked, split)  # noqa: E731
    monkeypatch.setattr(data, "load", mixed_up)
    experiment = TASKS[task].recipe(Order(task, "fsvi", "smoke", context=name))
    with pytest.raises(fsvi.InvalidInputError, match=f"48 .*{other}"):
        experiment.evaluate(experiment.build(0))


@pytest.mark.parametrize("name", ["cifar10", "boston"])
def test_a_context_of_another_kind_is_named_as_the_fault(monkeypatch, name):
    pretend(monkeypatch)
    load = data.load
    table = lambda: replace(load("mnist"), x=torch.zeros(5, 13, dtype=torch.float64))  # noqa: E731
    monkeypatch.setattr(data, "load", lambda asked, split: table() if asked == "boston" else load(asked, split))
    with pytest.raises(fsvi.InvalidInputError, match=f"'{name}'.*images"):
        TASKS["fashion-mnist"].recipe(Order("fashion-mnist", "fsvi", "smoke", context=name))


@pytest.mark.parametrize(
    ("name", "absent", "split"),
    [
        ("kmnist", [], "train"),
        ("kmnist", ["train", "test"], "train"),
        ("kmnist", ["train"], "test"),
        ("notmnist", ["train", "test"], "test"),
    ],
)
def test_a_context_is_of_the_training_split_where_that_can_be_had(monkeypatch, name, absent, split):
    asked = pretend(monkeypatch)
    monkeypatch.setattr(data, "available", lambda _, split: split not in absent)
    TASKS["rotated-mnist"].recipe(Order("rotated-mnist", "fsvi", "smoke", context=name))
    assert asked[-1] == (name, split)


@pytest.mark.parametrize(
    ("task", "notes"),
    [
        ("fashion-mnist", ["adam at 1.0, dropout 0.25; the paper's: sgd at 0.005"]),
        ("rotated-mnist", ["dropout 0.25"]),
    ],
)
def test_settings_of_the_order_come_before_the_recipes(monkeypatch, task, notes):
    pretend(monkeypatch)
    order = Order(task, "fsvi", "paper", context="batch", settings={"num_context": 3}, fit_settings={"lr": 1.0})
    experiment = TASKS[task].recipe(order)
    method = experiment.build(0)
    assert (method.num_context, method.stochastic) == (3, "last_layer")
    assert (experiment.fit_settings["lr"], experiment.fit_settings["epochs"]) == (1.0, 30)
    assert list(experiment.notes) == notes
