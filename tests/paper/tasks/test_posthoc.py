"""Heads on the features of a trained ResNet: made-up weights and images."""

import pytest
import torch
from safetensors.torch import save_file

from fsvi.errors import DataNotFoundError, InvalidInputError
from paper.experiment import Order
from paper.runs import checked, run
from paper.tasks import posthoc
from pictures import pretend


@pytest.fixture
def weights(tmp_path, monkeypatch):
    """A folder with the weights of an untrained ResNet-20, and few images."""
    pretend(monkeypatch)
    monkeypatch.setenv("FSVI_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name, value in {"_NUM_AUGMENTED": 24, "_SECOND": 24, "_NUM_CORRUPTED": 1, "_DEFORMED": slice(24)}.items():
        monkeypatch.setattr(posthoc, name, value)
    torch.manual_seed(0)
    (tmp_path / "cifar10-resnets").mkdir()
    save_file(posthoc.CifarResNet(3).state_dict(), tmp_path / "cifar10-resnets" / "resnet20.safetensors")
    return tmp_path


def test_every_head_is_a_run(weights):
    tests = set()
    for name in posthoc.HEADS:
        result = run(Order("posthoc-resnet20", name), weights / "out", lambda _: None, progress=False)
        assert {"accuracy", "nll", "ece_15", "nll_rotated_30", "ece_rotated_180"} <= set(result.metrics)
        assert result.context == (posthoc.CONTEXT if name == "fsvi-fixed-mean" else None)
        if name in ("map", "temperature", "fsvi-fixed-mean"):
            tests.add(result.metrics["accuracy"])
    assert len(tests) == 1  # none of these changes which class is the most probable
    stored = {path.stem for path in (weights / "cache" / "fsvi" / "features" / "resnet20").iterdir()}
    assert stored == {"augmented", posthoc.CONTEXT, "train", "test", "rotated_30", "rotated_90", "rotated_180"}


def test_training_needs_no_features_of_test_images(weights, monkeypatch):
    experiment = posthoc.posthoc(Order("posthoc-resnet20", "fmgp"))
    monkeypatch.setattr(posthoc, "rotated", lambda _: pytest.fail("a test image was turned"))
    experiment.train(experiment.build(0), 0, progress=False)
    stored = {path.stem for path in (weights / "cache" / "fsvi" / "features" / "resnet20").iterdir()}
    assert stored == {"augmented"}


def test_images_are_turned_by_angles_up_to_the_largest():
    x = torch.zeros(200, 1, 33, 33)
    x[:, :, 16, 30] = 1
    _, _, rows, columns = posthoc.rotated(90)(x).nonzero().T
    angles = torch.atan2((rows - 16).double(), (columns - 16).double()).rad2deg()
    assert angles.abs().max() <= 95 and angles.min() < -60 and angles.max() > 60
    assert torch.equal(posthoc.rotated(0)(x), x)


def test_deformed_images_are_changed_each_in_its_own_way_and_not_turned():
    x = torch.rand(120, 3, 32, 32)
    torch.manual_seed(0)
    changed, own = posthoc.deformed(x).tensor_split(6), x.tensor_split(6)
    assert all((after != before).any() for after, before in zip(changed, own, strict=True))
    sheared, stretched, shrunk, bent, shuffled, holed = changed
    for moved, images in ((sheared, own[0]), (bent, own[3])):  # pixels of a row stay in it
        rows = zip(moved[0, 0], images[0, 0], strict=True)
        assert all(set(row.tolist()) <= {0.0, *before.tolist()} for row, before in rows)
    columns = [set(column.tolist()) for column in own[1][0, 0].T]
    assert all(any(set(column.tolist()) <= {0.0} | before for before in columns) for column in stretched[0, 0].T)
    assert (shrunk[:, :, 0] == 0).all() and (shrunk[:, :, :, 0] == 0).all()
    colors = lambda images: images.flatten(2).sort().values  # noqa: E731
    torch.testing.assert_close(colors(shuffled), colors(own[4]))
    is_gone = (holed == 0).all(1)
    assert torch.equal(holed.masked_fill(is_gone[:, None], 7.0), own[5].masked_fill(is_gone[:, None], 7.0))
    middles = torch.stack([gone.nonzero().double().mean(0) for gone in is_gone])
    assert (middles[:, 0] - middles[:, 1]).abs().max() > 5  # not on the diagonal only
    assert posthoc.deformed(x[:1]).shape == (1, 3, 32, 32)


def test_half_of_the_context_is_deformed(weights, monkeypatch):
    sets = posthoc.posthoc(Order("posthoc-resnet20", "fsvi-fixed-mean")).make.args[1]
    with_deformed = sets(posthoc.CONTEXT)[0][-24:]
    monkeypatch.setattr(posthoc, "deformed", lambda x: x)
    assert not torch.equal(sets.compute(posthoc.CONTEXT)[0][-24:], with_deformed)


def test_unknown_methods_and_missing_weights_are_one_sentence(weights):
    with pytest.raises(InvalidInputError, match="did you mean 'temperature'"):
        checked(Order("posthoc-resnet20", "temperatur"))
    with pytest.raises(InvalidInputError, match="fixed"):
        checked(Order("posthoc-resnet20", "fmgp", context="kmnist"))
    with pytest.raises(DataNotFoundError, match=r"resnet56\.safetensors is in no folder"):
        run(Order("posthoc-resnet56", "map"), weights / "out", lambda _: None)
