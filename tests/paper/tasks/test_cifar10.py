import pytest
import torch

import paper.data
from paper.experiment import Order
from paper.tasks.cifar10 import SEVERITIES, cifar10
from pictures import Oracle, make_up, pretend


def test_accuracy_on_corrupted_images_is_the_mean_over_kinds_at_severity_2(monkeypatch):
    """Corruption is imitated: of 200 images, one more for each kind and severity is turned black, and taken for a 0."""
    pretend(monkeypatch, num=200)
    calls = []

    def corrupt(x, kind, severity):
        calls.append((kind, severity))
        kinds = list(dict.fromkeys(name for name, _ in calls))
        wrong = severity + kinds.index(kind)
        spoiled = x.clone()
        spoiled[1 : 1 + wrong] = 0
        return spoiled

    monkeypatch.setattr(paper.data, "corrupt", corrupt)
    experiment = cifar10(Order("cifar10", "map", "quick"))
    normalize = paper.data.Normalize.of(make_up("cifar10", "train", 200).x)
    edges = normalize((torch.arange(1, 10) * 20)[:, None, None, None].expand(9, 3, 1, 1).to(torch.uint8))
    edges = edges[:, 0, 0, 0].contiguous()

    def answer(x):
        """The class that the darkest pixel tells: brightness is at least 20 times the class."""
        label = torch.bucketize(x[:, 0].amin((1, 2)), edges, right=True)
        return torch.nn.functional.one_hot(label, 10) * 0.9 + 0.01

    found = experiment.evaluate(Oracle(answer))
    assert len(calls) == 25 and len({kind for kind, _ in calls}) == 5
    for severity in SEVERITIES:
        accuracies = [1 - (severity + i) / 200 for i in range(5)]
        assert found.metrics[f"accuracy_corrupted_{severity}"] == pytest.approx(sum(accuracies) / 5)
    assert found.metrics["accuracy"] == 1
    assert found.metrics["accuracy_corrupted"] == pytest.approx(1 - 4 / 200)
    assert found.curves["corruption"]["accuracy"][1] == pytest.approx(1 - 4 / 200)
