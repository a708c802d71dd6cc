"""Uncertainty for trained CIFAR-10 networks: `python -m paper.posthoc`, the tasks posthoc-resnet20 and -resnet56.

Features of all images are computed once; every method then trains on features. Nothing is fitted on test images:
augmented training images stand in for held-out ones, and the context is training images under the corruptions of
CIFAR-10-C, none of which rotates an image. FSVI's design followed looks at rotated test images (see NOTEBOOK.md).
"""

from __future__ import annotations

import argparse
import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

import fsvi
from paper import data
from paper.data.corruptions import CORRUPTIONS, corrupt
from paper.experiment import Order
from paper.records import Result, result_path, write_result
from paper.runs import source_commit, where

BLOCKS = {"resnet20": 3, "resnet56": 9}
ANGLES = (30, 90, 180)
WIDTH = 64
NUM_AUGMENTED, NUM_CORRUPTED = 8000, 200
"""Images per kind of augmentation; images per kind and severity of corruption."""
_MEAN = torch.tensor([0.4914, 0.4822, 0.4465]).view(3, 1, 1)
_STD = torch.tensor([0.2023, 0.1994, 0.2010]).view(3, 1, 1)
LOOKED = "trials looked at test images, rotated ones too, before the design of this row was final: see NOTEBOOK.md"
NOTES = [
    "features of the trained network were computed once; the time of that pass is not in the seconds",
    "test images were turned by the same random angles for every seed",
]
Change = Callable[[Tensor], Tensor]
Methods = Mapping[str, tuple[Callable[..., fsvi.Method], str | None]]
"""By name, what fits the method, and its context."""
Features = dict[str, tuple[Tensor, Tensor]]


class Block(nn.Module):
    """A basic residual block, with the names of the published weights."""

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, channels, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or in_channels != channels:
            shortcut = nn.Conv2d(in_channels, channels, 1, stride, bias=False)
            self.downsample = nn.Sequential(shortcut, nn.BatchNorm2d(channels))

    def forward(self, x: Tensor) -> Tensor:
        """Feature maps in, feature maps out."""
        inner = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(inner + self.downsample(x))


class CifarResNet(nn.Module):
    """The published network; `features` has the mean over pixels after the last stage, then after the first two."""

    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16)
        stages = [
            nn.Sequential(Block(before, width, stride), *(Block(width, width, 1) for _ in range(blocks - 1)))
            for before, width, stride in ((16, 16, 1), (16, 32, 2), (32, WIDTH, 2))
        ]
        self.layer1, self.layer2, self.layer3 = stages
        self.fc = nn.Linear(WIDTH, 10)

    def features(self, x: Tensor) -> Tensor:
        """(n, 64 + 16 + 32)."""
        first = self.layer1(F.relu(self.bn1(self.conv1(x))))
        second = self.layer2(first)
        return torch.cat([maps.mean((2, 3)) for maps in (self.layer3(second), first, second)], 1)


def rotated(degrees: float) -> Change:
    """Turn each image by a random angle: nearest pixel, zeros outside."""

    def change(x: Tensor) -> Tensor:
        angle = (2 * torch.rand(len(x)) - 1) * degrees * math.pi / 180
        cos, sin, zero = angle.cos(), angle.sin(), torch.zeros(len(x))
        matrix = torch.stack([torch.stack([cos, -sin, zero], 1), torch.stack([sin, cos, zero], 1)], 1)
        grid = F.affine_grid(matrix, list(x.shape), align_corners=False)
        return F.grid_sample(x, grid, mode="nearest", align_corners=False)

    return change


def cropped(x: Tensor) -> Tensor:
    """Flips, and random parts of 60 to 100% of the area, enlarged."""
    return data.cropped(_flipped(x), 0.6)


def shifted(x: Tensor, most: int = 10) -> Tensor:
    """Flips, and shifts of up to ten pixels with reflected borders."""
    padded = F.pad(_flipped(x), (most,) * 4, mode="reflect")
    places = torch.randint(2 * most + 1, (len(x), 2)).tolist()
    return torch.stack([image[:, i : i + 32, j : j + 32] for image, (i, j) in zip(padded, places, strict=True)])


def _flipped(x: Tensor) -> Tensor:
    return torch.where((torch.rand(len(x)) < 0.5)[:, None, None, None], x.flip(3), x)


@torch.no_grad()
def compute(net: CifarResNet, images: Tensor, seed: int, change: Change | None = None) -> Tensor:
    """Features of images (uint8), each changed after normalization."""
    torch.manual_seed(seed)
    parts = []
    for part in images.split(250):
        x = (part.float() / 255 - _MEAN) / _STD
        x = x if change is None else change(x)
        parts.append(net.features(x.contiguous(memory_format=torch.channels_last)))
    return torch.cat(parts)


def features_of(net: CifarResNet, train: Any, test: Any) -> Features:
    """Features and labels by the name of their set."""
    n = NUM_AUGMENTED
    images, labels = torch.as_tensor(train.x), torch.as_tensor(train.y)
    test_images, test_labels = torch.as_tensor(test.x), torch.as_tensor(test.y)
    augmented = [compute(net, images[:n], 3, cropped), compute(net, images[20_000 : 20_000 + n], 4, shifted)]
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(1))
    corrupted: list[Tensor] = []
    chosen: list[Tensor] = []
    for i, kind in enumerate(CORRUPTIONS):
        for severity in range(1, 6):
            rows = order[len(chosen) * NUM_CORRUPTED :][:NUM_CORRUPTED]
            corrupted.append(corrupt(images[rows], kind, severity, seed=5 * i + severity))
            chosen.append(rows)
    sets = {
        "augmented": (torch.cat(augmented), torch.cat([labels[:n], labels[20_000 : 20_000 + n]])),
        "corrupted": (compute(net, torch.cat(corrupted), 0), labels[torch.cat(chosen)]),
        "train": (compute(net, images, 0), labels),
        "test": (compute(net, test_images, 0), test_labels),
    }
    for angle in ANGLES:
        sets[f"rotated_{angle}"] = (compute(net, test_images, angle, rotated(angle)), test_labels)
    return sets


class Last(nn.Module):
    """The features of the last stage alone."""

    def forward(self, x: Tensor) -> Tensor:
        """(n, 64)."""
        return x[:, :WIDTH]


def head(net: CifarResNet, width: int = WIDTH) -> nn.Module:
    """The trained last layer; if it is given the features of earlier stages, too, it ignores them."""
    linear = nn.Linear(width, 10)
    with torch.no_grad():
        linear.weight.zero_()
        linear.weight[:, :WIDTH] = net.fc.weight
        linear.bias.copy_(net.fc.bias)
    return nn.Sequential(Last() if width == WIDTH else nn.Identity(), linear)


def fit_map(net: CifarResNet, sets: Features, seed: int) -> fsvi.MAP:
    """The network as it is."""
    return fsvi.MAP(head(net), fsvi.Categorical())


def fit_temperature(net: CifarResNet, sets: Features, seed: int) -> fsvi.MAP:
    """One temperature, of the largest likelihood on augmented images."""
    x, y = sets["augmented"]
    p: Any = fit_map(net, sets, seed).predict(x)
    scaling: Any = fsvi.calibration.TemperatureScaling().fit(p, y)
    scaled = head(net)
    with torch.no_grad():
        for parameter in scaled.parameters():
            parameter.div_(scaling.temperature)
    return fsvi.MAP(scaled, fsvi.Categorical())


def fit_fsvi(net: CifarResNet, sets: Features, seed: int) -> fsvi.Method:
    """FSVI with a fixed mean: likelihood on augmented images, KL on corrupted ones."""
    context = fsvi.contexts.Dataset(sets["corrupted"][0])
    wide = head(net, sets["augmented"][0].shape[1])
    method = fsvi.methods.FixedMeanFSVI(wide, fsvi.Categorical(), context)
    fsvi.fit(method, sets["augmented"], epochs=6, batch_size=512, lr=0.1, seed=seed, progress=False)
    return method


def fit_laplace(net: CifarResNet, sets: Features, seed: int) -> fsvi.Method:
    """Laplace on the last layer, with its whole covariance, on training images."""
    return fsvi.Laplace.from_trained(fit_map(net, sets, seed), sets["train"])


def fitted(make: Callable[..., fsvi.Method], images: str, epochs: int, lr: float) -> Callable[..., fsvi.Method]:
    """A fit of the head alone, from the trained weights where the method has any."""

    def fit(net: CifarResNet, sets: Features, seed: int) -> fsvi.Method:
        method = make(head(net), fsvi.Categorical())
        fsvi.fit(method, sets[images], epochs=epochs, batch_size=512, lr=lr, seed=seed, progress=False)
        return method

    return fit


METHODS: Methods = {
    "map": (fit_map, None),
    "temperature": (fit_temperature, None),
    "fsvi-fixed-mean": (fit_fsvi, "corrupted"),
    "laplace": (fit_laplace, None),
    "mfvi": (fitted(fsvi.MFVI, "train", 5, 1e-3), None),
    "fmgp": (fitted(fsvi.methods.FMGP, "augmented", 6, 1e-2), None),
    "sngp": (fitted(fsvi.SNGP, "train", 10, 1e-2), None),
}


def evaluate(name: str, method: fsvi.Method, sets: Features) -> dict[str, float]:
    """Accuracy, NLL and ECE with 15 bins on the test images; NLL and ECE on rotated ones."""
    x, y = sets["test"]
    p = method.predict(x)
    found = {"accuracy": fsvi.metrics.accuracy(p, y), "nll": fsvi.metrics.nll(p, y), "ece_15": fsvi.metrics.ece(p, y)}
    for angle in ANGLES:
        x, y = sets[f"rotated_{angle}"]
        p = method.predict(x)
        found |= {f"nll_rotated_{angle}": fsvi.metrics.nll(p, y), f"ece_rotated_{angle}": fsvi.metrics.ece(p, y)}
    return found


def run(network: str, weights: Path, out: Path, seeds: int, cache: Path) -> None:
    """Every method and seed; result files that exist are kept."""
    net = CifarResNet(BLOCKS[network])
    net.load_state_dict(load_file(weights / f"{network}.safetensors"))
    net.eval().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    splits = [data.load("cifar10", split) for split in ("train", "test")]
    file = cache / f"{network}.pt"
    if not file.exists():
        torch.save(features_of(net, *splits), file)
    sets = torch.load(file)
    notes = {name: NOTES + ([LOOKED] if name == "fsvi-fixed-mean" else []) for name in METHODS}
    run_all(f"posthoc-{network}", METHODS, (net, sets), evaluate, splits, notes, out, seeds)


def run_all(
    task: str,
    methods: Methods,
    given: tuple[Any, ...],
    measure: Callable[[str, Any, Any], Mapping[str, float]],
    splits: Sequence[data.DataSplit],
    notes: Mapping[str, list[str]],
    out: Path,
    seeds: int,
) -> None:
    """Fit every method to `given`, whose last part are the sets, with every seed; measure it, and write the result.

    Result files that exist are kept.
    """
    datasets = [{"name": each.name, "split": each.split, "size": len(each), "sha256": each.sha256} for each in splits]
    for seed, (name, (fit, context)) in itertools.product(range(seeds), methods.items()):
        order = Order(task, name, seed=seed, context=context)
        path = result_path(out, order)
        if path.exists():
            continue
        torch.manual_seed(seed)
        start = time.perf_counter()
        method = fit(*given, seed)
        trained = time.perf_counter() - start
        metrics = dict(measure(name, method, given[-1]))
        seconds = {"train": trained, "evaluate": time.perf_counter() - start - trained}
        settings = {"method": {"class": type(method).__name__}}
        result = Result(
            task, name, context, order.profile, seed, settings, metrics, {}, {}, datasets, notes[name], seconds,
            commit=source_commit(), **where(),
        )  # fmt: skip
        write_result(path, result)
        print(name, seed, f"{trained:.1f} s", {k: round(v, 4) for k, v in metrics.items()}, flush=True)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("network", choices=BLOCKS)
    parser.add_argument("--weights", type=Path, required=True, help="the folder of the .safetensors files")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--cache", type=Path, required=True, help="a folder for features")
    args = parser.parse_args()
    run(args.network, args.weights, args.out, args.seeds, args.cache)


if __name__ == "__main__":
    main()
