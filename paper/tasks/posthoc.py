"""Uncertainty for trained CIFAR-10 networks whose features stay fixed.

Every method trains on features, which are computed once. Nothing is fitted on test images: augmented training images
stand in for held-out ones, and the context is training images under the corruptions of CIFAR-10-C and deformed ones;
none is rotated. FSVI's design followed looks at rotated test images (see NOTEBOOK.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

import fsvi
from paper import data
from paper.columns import Column, TableLayout, percent
from paper.data.store import find_file
from paper.experiment import Experiment, Order
from paper.task import Section, Sweep, Task
from paper.tasks.features import Features, Head, Pair, corrupted, head_experiment

_PREFIX = "posthoc-"
CONTEXT = "corrupted+deformed"
_BLOCKS = {"resnet20": 3, "resnet56": 9}
_ANGLES = (30, 90, 180)
_WIDTH = 64
_NUM_AUGMENTED, _SECOND, _NUM_CORRUPTED, _DEFORMED = 8000, 20_000, 100, slice(30_000, 38_500)
"""Images per kind of augmentation; the first one of the second kind; images per kind and severity of corruption;
which images are deformed."""
_MEAN = torch.tensor([0.4914, 0.4822, 0.4465]).view(3, 1, 1)
_STD = torch.tensor([0.2023, 0.1994, 0.2010]).view(3, 1, 1)
_LOOKED = "trials looked at test images, rotated ones too, before the design of this row was final: see NOTEBOOK.md"
_NOTES = [
    "features of the trained network were computed once; the time of that pass is not in the seconds",
    "test images were turned by the same random angles for every seed",
]
Change = Callable[[Tensor], Tensor]


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
            for before, width, stride in ((16, 16, 1), (16, 32, 2), (32, _WIDTH, 2))
        ]
        self.layer1, self.layer2, self.layer3 = stages
        self.fc = nn.Linear(_WIDTH, 10)

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


def deformed(x: Tensor) -> Tensor:
    """A sixth of the images each is sheared, stretched, shrunk or bent, has its quarters in another order, or a square
    without content. None is rotated.
    """
    grid = F.affine_grid(torch.eye(2, 3).expand(len(x), 2, 3), list(x.shape), align_corners=False)
    parts = list(zip(x.tensor_split(6), grid.tensor_split(6), strict=True))
    (_, sheared), (_, stretched), (_, shrunk), (_, bent), (images, _), (holed, places) = parts
    sheared[..., 0] += _uniform(sheared, -1, 1) * sheared[..., 1]
    stretched[..., 0] *= _uniform(stretched, 0.4, 1)
    stretched[..., 1] *= _uniform(stretched, 1, 1.8)
    shrunk *= _uniform(shrunk, 1.2, 2.2)[..., None]
    waves = torch.sin(_uniform(bent, 2, 6) * bent[..., 1] + _uniform(bent, 0, 2 * math.pi))
    bent[..., 0] += _uniform(bent, 0, 0.4) * waves
    moved = [F.grid_sample(part, at, mode="nearest", align_corners=False) for part, at in parts[:4]]
    quarters = [quarter for half in images.chunk(2, 2) for quarter in half.chunk(2, 3)]
    a, b, c, d = (quarters[i] for i in torch.randperm(4).tolist())
    side = _uniform(places, 0.25, 0.7)[..., None]
    center = (1 - side) * torch.stack([_uniform(places, -1, 1), _uniform(places, -1, 1)], -1)
    is_inside = ((places - center).abs() < side).all(-1)
    shuffled = torch.cat([torch.cat([a, b], 3), torch.cat([c, d], 3)], 2)
    return torch.cat([*moved, shuffled, holed.masked_fill(is_inside[:, None], 0.0)])


def _uniform(like: Tensor, low: float, high: float) -> Tensor:
    """One random number per image, (n, 1, 1)."""
    return low + (high - low) * torch.rand(len(like), 1, 1)


def _cropped(x: Tensor) -> Tensor:
    """Flips, and random parts of 60 to 100% of the area, enlarged."""
    is_flipped = torch.rand(len(x)) < 0.5
    return data.cropped(torch.where(is_flipped[:, None, None, None], x.flip(3), x), 0.6)


_shifted = partial(data.augment, padding=10, mode="reflect")


@torch.no_grad()
def compute(net: CifarResNet, images: Tensor, seed: int = 0, change: Change | None = None) -> Tensor:
    """Features of images (uint8), each changed after normalization."""
    parts = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for part in images.split(250):
            x = (part.float() / 255 - _MEAN) / _STD
            x = x if change is None else change(x)
            parts.append(net.features(x.contiguous(memory_format=torch.channels_last)))
    return torch.cat(parts)


def _features_of(net: CifarResNet, name: str) -> Pair:
    """Features and labels of a set: "augmented", the context, "train", "test", or "rotated_" and an angle."""
    split = data.load("cifar10", "train" if name in ("augmented", CONTEXT, "train") else "test")
    images, labels = split.x, split.y
    if name == "augmented":
        first, second = slice(_NUM_AUGMENTED), slice(_SECOND, _SECOND + _NUM_AUGMENTED)
        parts = [compute(net, images[first], 3, _cropped), compute(net, images[second], 4, _shifted)]
        return torch.cat(parts), torch.cat([labels[first], labels[second]])
    if name == CONTEXT:
        spoiled, their_labels = corrupted(images, labels, _NUM_CORRUPTED, 1)
        parts = [compute(net, spoiled), compute(net, images[_DEFORMED], 5, deformed)]
        return torch.cat(parts), torch.cat([their_labels, labels[_DEFORMED]])
    if name.startswith("rotated"):
        angle = int(name.removeprefix("rotated_"))
        return compute(net, images, angle, rotated(angle)), labels
    return compute(net, images), labels


class Last(nn.Module):
    """The features of the last stage alone."""

    def forward(self, x: Tensor) -> Tensor:
        """(n, 64)."""
        return x[:, :_WIDTH]


def head(net: CifarResNet, width: int = _WIDTH) -> nn.Module:
    """The trained last layer; if it is given the features of earlier stages, too, it ignores them."""
    linear = nn.Linear(width, 10)
    with torch.no_grad():
        linear.weight.zero_()
        linear.weight[:, :_WIDTH] = net.fc.weight
        linear.bias.copy_(net.fc.bias)
    return nn.Sequential(Last() if width == _WIDTH else nn.Identity(), linear)


def make_map(net: CifarResNet, sets: Features) -> fsvi.MAP:
    """The network as it is."""
    return fsvi.MAP(head(net), fsvi.Categorical())


def make_temperature(net: CifarResNet, sets: Features) -> fsvi.MAP:
    """One temperature, of the largest likelihood on augmented images."""
    x, y = sets("augmented")
    p: Any = make_map(net, sets).predict(x)
    scaling: Any = fsvi.calibration.TemperatureScaling().fit(p, y)
    scaled = head(net)
    with torch.no_grad():
        for parameter in scaled.parameters():
            parameter.div_(scaling.temperature)
    return fsvi.MAP(scaled, fsvi.Categorical())


def make_fsvi(net: CifarResNet, sets: Features) -> fsvi.Method:
    """FSVI with a fixed mean: likelihood on augmented images, KL on corrupted and deformed ones."""
    context = sets(CONTEXT)[0]
    return fsvi.methods.FixedMeanFSVI(head(net, context.shape[1]), fsvi.Categorical(), fsvi.contexts.Dataset(context))


def make_laplace(net: CifarResNet, sets: Features) -> fsvi.Method:
    """Laplace on the last layer, with its whole covariance, on training images."""
    return fsvi.Laplace.from_trained(make_map(net, sets), sets("train"))


def _on_head(method: Callable[..., fsvi.Method]) -> Callable[..., fsvi.Method]:
    """A method for the head alone, from the trained weights where it has any."""
    return lambda net, sets: method(head(net), fsvi.Categorical())


def _fit(epochs: int, lr: float) -> dict[str, Any]:
    return {"epochs": epochs, "batch_size": 512, "lr": lr}


HEADS = {
    "map": Head(make_map),
    "temperature": Head(make_temperature),
    "fsvi-fixed-mean": Head(make_fsvi, "augmented", _fit(6, 0.1), CONTEXT),
    "laplace": Head(make_laplace),
    "mfvi": Head(_on_head(fsvi.MFVI), "train", _fit(5, 1e-3)),
    "fmgp": Head(_on_head(fsvi.methods.FMGP), "augmented", _fit(6, 1e-2)),
    "sngp": Head(_on_head(fsvi.SNGP), "train", _fit(10, 1e-2)),
}


def posthoc(order: Order) -> Experiment:
    """Heads on the features of a published ResNet: accuracy, NLL and ECE on test images; NLL and ECE on rotated ones.

    The weights are those of https://github.com/chenyaofo/pytorch-cifar-models, as the files `resnet20.safetensors` and
    `resnet56.safetensors` in the folder `cifar10-resnets` of a folder that FSVI_DATA names.
    """
    network = order.task.removeprefix(_PREFIX)
    net = CifarResNet(_BLOCKS[network])
    net.load_state_dict(load_file(find_file(f"cifar10-resnets/{network}.safetensors")))
    net.eval().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    chosen, features = HEADS[order.method], Features(network, partial(_features_of, net))

    def measure(method: fsvi.Method) -> dict[str, float]:
        x, y = features("test")
        p = method.predict(x)
        found = {"accuracy": fsvi.metrics.accuracy(p, y)}
        found |= {"nll": fsvi.metrics.nll(p, y), "ece_15": fsvi.metrics.ece(p, y)}
        for angle in _ANGLES:
            x, y = features(f"rotated_{angle}")
            p = method.predict(x)
            found |= {f"nll_rotated_{angle}": fsvi.metrics.nll(p, y), f"ece_rotated_{angle}": fsvi.metrics.ece(p, y)}
        return found

    notes = [*_NOTES, _LOOKED] if order.method == "fsvi-fixed-mean" else _NOTES
    return head_experiment(order, replace(chosen, make=partial(chosen.make, net)), features, measure, notes)


def _task(network: str) -> Task:
    name, title = _PREFIX + network, f"After training: ResNet-{network.removeprefix('resnet')}"
    columns = (
        percent(name, "accuracy", "Accuracy"),
        Column(name, "nll", "NLL", "lower", 4),
        Column(name, "ece_15", "ECE", "lower", 4),
        *(
            Column(name, f"{measure}_rotated_{angle}", f"{measure.upper()}, ±{angle}°", "lower")
            for angle in _ANGLES
            for measure in ("nll", "ece")
        ),
    )
    about = "Uncertainty for a trained CIFAR-10 network whose features stay fixed; test images turned by random angles."
    methods = {method: each.context for method, each in HEADS.items()}
    section = Section(title, about, (TableLayout(title, columns),))
    return Task(name, posthoc, section, Sweep("posthoc", dict.fromkeys(HEADS, 5)), methods=methods, profiles=("paper",))


POSTHOC_TASKS = tuple(map(_task, _BLOCKS))
