import math
from itertools import count

import pytest
import torch

import fsvi
import paper.data
from paper.experiment import Order
from paper.runs import run
from paper.tasks.rotated_mnist import DEGREES, rotated_mnist
from pictures import Oracle, make_up, needs, pretend

SMOKE = Order("rotated-mnist", "fsvi", "smoke", context="monochrome")
SCORES = ("accuracy", "nll", "brier", "ece", "entropy")


def check(result):
    rotation = result.curves["rotation"]
    assert rotation["degrees"] == list(range(0, 181, 15))
    assert all(len(rotation[name]) == 13 for name in SCORES)
    assert result.metrics["brier"] == pytest.approx(rotation["brier"][0], abs=1e-5)
    assert result.metrics["brier_45plus"] == pytest.approx(sum(rotation["brier"][4:]) / 9, abs=1e-5)
    assert any("subset" in note for note in result.notes)


@pytest.mark.parametrize("method", ["map", "mfvi", "mc-dropout", "fsvi"])
def test_a_run_from_made_up_digits_to_the_figure(monkeypatch, tmp_path, method):
    pretend(monkeypatch)
    result = run(Order("rotated-mnist", method, "smoke"), tmp_path, progress=False)
    check(result)
    assert result.context == ("kmnist" if method == "fsvi" else None)


@pytest.mark.data
@needs(("mnist", "train"), ("mnist", "test"), ("kmnist", "test"))
def test_a_run_on_real_digits(tmp_path):
    check(run(Order("rotated-mnist", "fsvi", "smoke"), tmp_path, progress=False))


def test_test_digits_are_loaded_by_the_evaluation_alone(monkeypatch):
    asked = pretend(monkeypatch)
    experiment = rotated_mnist(SMOKE)
    experiment.build(0)
    assert asked == [("mnist", "train")]
    experiment.evaluate(Oracle(lambda x: torch.full((len(x), 10), 0.1)))
    assert asked[1:] == [("mnist", "test")]


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


def test_a_context_of_turned_digits_is_refused(monkeypatch):
    pretend(monkeypatch)
    with pytest.raises(fsvi.errors.InvalidInputError, match="'corrupted'"):
        rotated_mnist(Order("rotated-mnist", "fsvi", "smoke", context="corrupted"))
