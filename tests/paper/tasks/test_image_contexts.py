"""Contexts by name: their data, their notes, and what is refused."""

from dataclasses import replace

import pytest
import torch

import fsvi
from paper import data
from paper.experiment import Order
from paper.tasks.images import make_context
from paper.tasks.registry import TASKS
from pictures import pretend


@pytest.mark.parametrize("method", ["fsvi", "fsvi-fixed-mean"])
@pytest.mark.parametrize("name", ["kmnist", "monochrome", "corrupted", None])
def test_mixed_contexts_say_so(monkeypatch, name, method):
    pretend(monkeypatch)
    order = Order("fashion-mnist", method, context=name)
    context, _, notes = make_context(order, data.Normalize((0.5,), (0.5,)), ())
    is_mixed = isinstance(context, fsvi.contexts.Mixture)
    assert is_mixed == (name in ("kmnist", "monochrome") and method == "fsvi")
    assert notes == ["half of the context points are from the minibatch"] * is_mixed


@pytest.mark.parametrize("name", ["cifar10", "boston"])
def test_a_context_of_another_kind_is_named_as_the_fault(monkeypatch, name):
    pretend(monkeypatch)
    load = data.load
    table = lambda: replace(load("mnist"), x=torch.zeros(5, 13, dtype=torch.float64))  # noqa: E731
    monkeypatch.setattr(data, "load", lambda asked, split: table() if asked == "boston" else load(asked, split))
    with pytest.raises(fsvi.errors.InvalidInputError, match=f"'{name}'.*images"):
        TASKS["fashion-mnist"].experiment(Order("fashion-mnist", "fsvi", "smoke", context=name))


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
    TASKS["rotated-mnist"].experiment(Order("rotated-mnist", "fsvi", "smoke", context=name))
    assert asked[-1] == (name, split)


@pytest.mark.parametrize(
    ("task", "context"),
    [
        ("fashion-mnist", "mnist"),
        ("fashion-mnist", "notmnist"),
        ("cifar10", "svhn"),
        ("rotated-mnist", "corrupted"),
        ("retina", "aptos"),
    ],
)
def test_a_context_that_is_also_the_test_is_refused(monkeypatch, task, context):
    pretend(monkeypatch)
    with pytest.raises(fsvi.errors.InvalidInputError, match=f"'{context}'.*test"):
        TASKS[task].experiment(Order(task, "fsvi", "smoke", context=context))
