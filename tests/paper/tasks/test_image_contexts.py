"""Contexts by name: their data, their notes, and what is refused."""

from dataclasses import replace

import pytest
import torch

import fsvi
from paper import data
from paper.experiment import Experiment, Order
from paper.runs import run
from paper.tasks.images import context_notes
from paper.tasks.registry import TASKS
from pictures import pretend


def test_mixed_contexts_say_so():
    assert (
        context_notes("kmnist") == context_notes("monochrome") == ["half of the context points are from the minibatch"]
    )
    assert context_notes("corrupted") == context_notes(None) == []


@pytest.mark.parametrize(
    ("task", "name", "other"), [("fashion-mnist", "kmnist", "mnist"), ("cifar10", "cifar100", "svhn")]
)
def test_test_images_under_the_name_of_the_context_are_refused_before_training(
    monkeypatch, tmp_path, task, name, other
):
    pretend(monkeypatch)
    load = data.load
    mixed_up = lambda asked, split="train": load(other, "test") if asked == name else load(asked, split)  # noqa: E731
    monkeypatch.setattr(data, "load", mixed_up)
    order = Order(task, "fsvi", "smoke", context=name)
    monkeypatch.setattr(Experiment, "train", lambda *_, **__: pytest.fail("it was trained before"))
    with pytest.raises(fsvi.errors.InvalidInputError, match=f"48 .*{other}"):
        run(order, tmp_path, progress=False)


def test_a_single_test_image_in_the_context_is_enough(monkeypatch, tmp_path):
    pretend(monkeypatch)
    load = data.load

    def leaking(asked, split="train"):
        found = load(asked, split)
        return replace(found, x=torch.cat([found.x, load("mnist", "test").x[7:8]])) if asked == "kmnist" else found

    monkeypatch.setattr(data, "load", leaking)
    monkeypatch.setattr(Experiment, "train", lambda *_, **__: pytest.fail("it was trained before"))
    for task in ("fashion-mnist", "rotated-mnist"):
        with pytest.raises(fsvi.errors.InvalidInputError, match="1 test images of mnist"):
            run(Order(task, "fsvi", "smoke", context="kmnist"), tmp_path, progress=False)


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
