import pytest
import torch

from paper.data import Normalize
from paper.experiment import Order
from paper.tasks.fashion_mnist import fashion_mnist
from pictures import Oracle, make_up, pretend

SMOKE = Order("fashion-mnist", "fsvi", "smoke", context="monochrome")
SETS = ("fashion-mnist", "mnist", "notmnist")


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
