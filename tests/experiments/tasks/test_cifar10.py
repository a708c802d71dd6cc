import pytest
import torch
from torch import nn

import fsvi
from fsvi.experiments.experiment import Order
from fsvi.experiments.runner.runs import run
from fsvi.experiments.tasks.cifar10 import SEVERITIES, cifar10
from fsvi.experiments.tasks.images import Augmented
from fsvi.experiments.tuning.study import held_out
from pictures import Oracle, make_up, pretend
from scenarios import images

SMOKE = Order("cifar10", "map", "smoke")
UNIFORM = Oracle(lambda x: torch.full((len(x), 10), 0.1))


def check(result):
    assert result.curves["corruption"]["severity"] == [1, 2, 3, 4, 5]
    assert all(len(values) == 5 for values in result.curves["corruption"].values())
    assert {"accuracy", "ece_15", "auroc_svhn", "accuracy_corrupted", "accuracy_corrupted_5"} <= set(result.metrics)
    assert result.metrics["accuracy_corrupted"] == result.metrics["accuracy_corrupted_2"]
    assert [each["name"] for each in result.data][-3:] == ["cifar10", "svhn", "cifar10-c"]
    told = " ".join(result.notes)
    assert "subset" in told and "7×7 stem" in told and "regenerated" in told


def test_a_run_from_made_up_images_to_the_table(monkeypatch, tmp_path):
    pretend(monkeypatch)
    result = run(Order("cifar10", "fsvi", "smoke"), tmp_path, progress=False)
    check(result)
    assert result.context == "monochrome"
    assert result.data[-1]["size"] == 20 and result.data[-1]["sha256"] != "cifar10 test"


def test_test_images_are_loaded_by_the_evaluation_alone(monkeypatch):
    asked = pretend(monkeypatch)
    experiment = cifar10(SMOKE)
    experiment.build(0)
    assert asked == [("cifar10", "train")]
    experiment.evaluate(UNIFORM)
    assert asked[1:] == [("cifar10", "test"), ("svhn", "test")]


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

    monkeypatch.setattr(fsvi.data, "corrupt", corrupt)
    experiment = cifar10(Order("cifar10", "map", "quick"))
    normalize = fsvi.data.Normalize.of(make_up("cifar10", "train", 200).x)
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


def test_the_whole_test_set_is_taken_as_released(monkeypatch):
    asked = pretend(monkeypatch)
    monkeypatch.setattr(fsvi.data, "corrupt", None)
    found = cifar10(Order("cifar10", "map", "paper")).evaluate(UNIFORM)
    corrupted = [name for name, split in asked if name.startswith("cifar10-c/") and split == "test"]
    assert len(set(corrupted)) == len(corrupted) == 5 * len(fsvi.data.CORRUPTIONS)
    assert "cifar10-c/fog/2" in corrupted
    assert len(found.sources[-1]) == 48 * len(corrupted) and found.sources[-1].x.numel() == 0


def test_the_papers_settings(monkeypatch):
    pretend(monkeypatch)
    experiment = cifar10(Order("cifar10", "fsvi", "paper", context="cifar100"))
    assert dict(experiment.fit_settings) == {"epochs": 200, "batch_size": 128, "lr": 5e-3, "optimizer": "sgd"}
    assert list(experiment.notes) == ["half of the context points are the minibatch's"]
    method = experiment.build(0)
    parts = [type(part) for part in method.context.contexts]
    assert parts == [fsvi.contexts.Batch, fsvi.contexts.Dataset] and method.num_context == 32
    assert not any(isinstance(module, nn.MaxPool2d) for module in method.net.modules())


@pytest.mark.parametrize("context", ["svhn", "cifar10-c"])
def test_a_context_that_is_also_the_test_is_refused(monkeypatch, context):
    pretend(monkeypatch)
    with pytest.raises(fsvi.InvalidInputError, match=f"'{context}'.*test"):
        cifar10(Order("cifar10", "fsvi", "smoke", context=context))


# Augmentation -------------------------------------------------------------------------------------------------------


def small() -> fsvi.MAP:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(27, 2))
    return fsvi.MAP(net, fsvi.Categorical())


def test_images_fetched_together_are_augmented_and_one_alone_is_not():
    x, y = images(20)
    data = Augmented(x, y)
    assert torch.equal(data[3][0], x[3]) and len(data) == 20
    torch.manual_seed(1)
    batch = data.__getitems__([4, 2, 9])
    torch.manual_seed(1)
    expected = fsvi.data.augment(x[[4, 2, 9]])
    assert torch.equal(torch.stack([image for image, _ in batch]), expected)
    assert not torch.equal(expected, x[[4, 2, 9]])
    assert [int(label) for _, label in batch] == y[[4, 2, 9]].tolist()


def test_training_sees_augmented_images_and_what_is_learned_of_the_data_before_is_of_true_ones(monkeypatch):
    pretend(monkeypatch)
    experiment = cifar10(Order("cifar10", "fsvi", "smoke", context="monochrome"))
    augment, shapes = fsvi.data.augment, []

    def recorded(x):
        shapes.append(len(x))
        return augment(x)

    monkeypatch.setattr(fsvi.data, "augment", recorded)
    method = experiment.build(0)
    experiment.train(method, 0, progress=False)
    assert shapes == [24, 24]
    assert torch.equal(method.context.contexts[1]._pixels, experiment.data[0])


def test_an_interrupted_training_on_augmented_images_goes_on_to_the_same_bits(monkeypatch, tmp_path):
    data, settings = Augmented(*images(20)), {"epochs": 4, "batch_size": 8, "seed": 3, "progress": False}
    whole = small()
    fsvi.fit(whole, data, **settings)
    augment, calls = fsvi.data.augment, []

    def interrupting(x):
        calls.append(len(x))
        if len(calls) == 8:
            raise KeyboardInterrupt
        return augment(x)

    monkeypatch.setattr(fsvi.data, "augment", interrupting)
    kept = {"checkpoint": tmp_path, "resume": True, "checkpoint_interval": 0.0}
    with pytest.raises(KeyboardInterrupt):
        fsvi.fit(small(), data, **settings, **kept)
    calls.append(0)
    resumed = small()
    fsvi.fit(resumed, data, **settings, **kept)
    assert len(calls) == 9 + 6
    assert all(torch.equal(tensor, resumed.tensors()[name]) for name, tensor in whole.tensors().items())


def test_a_tenth_can_be_held_out_for_tuning(monkeypatch):
    pretend(monkeypatch)
    part, (x, y) = held_out(cifar10(SMOKE), 0)
    assert len(part.data[0]) == 43 and len(x) == len(y) == 5
    assert part.dataset is Augmented
