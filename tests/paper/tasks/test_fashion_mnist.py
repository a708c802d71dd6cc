from dataclasses import replace

import pytest
import torch

import fsvi
from paper.data import Normalize
from paper.experiment import Order
from paper.runs import run
from paper.tasks.fashion_mnist import fashion_mnist
from paper.tasks.registry import TASKS
from pictures import Oracle, make_up, needs, pretend

SMOKE = Order("fashion-mnist", "fsvi", "smoke", context="monochrome")
SETS = ("fashion-mnist", "mnist", "notmnist")


def check(result):
    assert 0 <= result.metrics["accuracy"] <= 1 and 0 <= result.metrics["ece_15"] <= 1
    assert all(0 <= result.metrics[f"auroc_{score}_{name}"] <= 1 for score in ("own", "entropy") for name in SETS[1:])
    assert set(result.curves["entropy"]) == {"test", "mnist", "notmnist"}
    tests = [source["name"] for source in result.data if source["split"] == "test"]
    assert [name for name in tests if name != "kmnist"] == list(SETS)
    assert any("subset" in note for note in result.notes)


@pytest.mark.parametrize("method", ["map", "fsvi", "ensemble:map"])
def test_a_run_from_made_up_pictures_to_the_table(monkeypatch, tmp_path, method):
    pretend(monkeypatch)
    result = run(Order("fashion-mnist", method, "smoke"), tmp_path, progress=False)
    check(result)
    assert result.context == ("kmnist" if method == "fsvi" else None)


@pytest.mark.data
@needs(("fashion-mnist", "train"), *((name, "test") for name in (*SETS, "kmnist")))
def test_a_run_on_real_pictures(tmp_path):
    check(run(Order("fashion-mnist", "fsvi", "smoke"), tmp_path, progress=False))


def test_test_pictures_are_loaded_by_the_evaluation_alone(monkeypatch):
    asked = pretend(monkeypatch)
    experiment = fashion_mnist(Order("fashion-mnist", "fsvi", "smoke", context="kmnist"))
    experiment.build(0)
    assert asked == [("fashion-mnist", "train"), ("kmnist", "train")]
    experiment.evaluate(Oracle(lambda x: torch.full((len(x), 10), 0.1)))
    assert asked[2:] == [(name, "test") for name in SETS]


def test_each_test_set_is_measured_under_its_own_name(monkeypatch):
    """The oracle knows each set's pictures: it is less certain of MNIST's than of clothes, and more of notMNIST's."""
    pretend(monkeypatch)
    normalize = Normalize.of(make_up("fashion-mnist", "train", 48).x)
    pictures = {name: normalize(make_up(name, "test", 48).x) for name in SETS}
    certainty = {"fashion-mnist": 0.7, "mnist": 0.2, "notmnist": 0.9}

    def answer(x):
        (name,) = [name for name, known in pictures.items() if torch.equal(x, known)]
        right = torch.nn.functional.one_hot(torch.arange(48) % 10, 10).double()
        return right * certainty[name] + (1 - right) * (1 - certainty[name]) / 9

    found = fashion_mnist(SMOKE).evaluate(Oracle(answer))
    assert found.metrics["accuracy"] == 1.0 and found.metrics["ece_15"] == pytest.approx(0.3)
    assert (found.metrics["auroc_own_mnist"], found.metrics["auroc_own_notmnist"]) == (1.0, 0.0)
    assert [source.name for source in found.sources] == list(SETS)


@pytest.mark.parametrize("name", ["mnist", "notmnist"])
def test_a_context_that_is_a_test_of_detection_is_refused(monkeypatch, name):
    pretend(monkeypatch)
    with pytest.raises(fsvi.errors.InvalidInputError, match=f"'{name}'"):
        fashion_mnist(Order("fashion-mnist", "fsvi", "smoke", context=name))


def test_an_ensemble_of_the_table_joins_runs_of_its_members(monkeypatch):
    pretend(monkeypatch)
    order = Order("fashion-mnist", "ensemble:fsvi", "paper", 1, "monochrome")
    experiment = TASKS["fashion-mnist"].experiment(order)
    assert [(each.method, each.context, each.seed) for each in experiment.starts] == [
        ("fsvi", "monochrome", seed) for seed in (3, 4, 5)
    ]
    assert not experiment.trains
    assert TASKS["fashion-mnist"].experiment(replace(order, profile="quick")).trains
