import math
from itertools import count

import pytest
import torch

import paper.data
from paper.experiment import Order
from paper.tasks.rotated_mnist import DEGREES, rotated_mnist
from pictures import Oracle, make_up, pretend

SMOKE = Order("rotated-mnist", "fsvi", "smoke", context="monochrome")


def test_means_beyond_45_degrees_and_the_rise_of_the_entropy(monkeypatch):
    """The i-th angle's predictions give the right class a probability of 1 − i/20, the others the rest."""
    pretend(monkeypatch)
    labels = make_up("mnist", "test", 48).y
    calls = count()

    def answer(x):
        doubt = (next(calls) % len(DEGREES)) / 20
        right = torch.nn.functional.one_hot(labels, 10).double()
        return right * (1 - doubt) + (1 - right) * doubt / 9

    found = rotated_mnist(SMOKE).evaluate(Oracle(answer))
    doubts = [i / 20 for i in range(13)]
    briers = [d**2 * (1 + 1 / 9) for d in doubts]
    entropies = [0.0 if d == 0 else -(1 - d) * math.log(1 - d) - d * math.log(d / 9) for d in doubts]
    assert found.curves["rotation"]["brier"] == pytest.approx(briers, abs=1e-5)
    assert found.curves["rotation"]["entropy"] == pytest.approx(entropies, abs=1e-5)
    assert found.metrics["brier_45plus"] == pytest.approx(sum(briers[4:]) / 9)
    assert found.metrics["entropy_rise"] == pytest.approx(sum(entropies[4:]) / 9 - entropies[0])


def test_digits_are_turned_before_they_are_normalised(monkeypatch):
    pretend(monkeypatch)
    seen = []

    def answer(x):
        seen.append(x)
        return torch.full((len(x), 10), 0.1)

    rotated_mnist(SMOKE).evaluate(Oracle(answer))
    digits = paper.data.Normalize.of(make_up("mnist", "train", 48).x)
    assert torch.allclose(seen[0], digits(make_up("mnist", "test", 48).x))
    assert torch.allclose(seen[6], seen[0].rot90(1, (2, 3)), atol=0.02)
    assert torch.allclose(seen[12], seen[0].flip(2, 3), atol=0.02)
    assert torch.allclose(seen[3][:, :, 0, 0], digits(torch.zeros(1, 1, 1, 1, dtype=torch.uint8)).flatten())
