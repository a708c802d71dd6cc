"""What the tasks on a trained network's features share: features computed once, and heads that train on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from safetensors.torch import load_file, save
from torch import Tensor

from fsvi.methods import Method
from fsvi.serialization import write_bytes
from paper import data
from paper.data.store import cache
from paper.experiment import Experiment, Order, Outcome

Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Features:
    """Features and labels of sets of images, each computed when it is first needed, and kept in the cache."""

    network: str
    compute: Callable[[str], Pair]

    def __call__(self, name: str) -> Pair:
        """The features and labels of a set."""
        path = cache() / "features" / self.network / f"{name}.safetensors"
        if not path.exists():
            x, y = self.compute(name)
            path.parent.mkdir(parents=True, exist_ok=True)
            write_bytes(path, save({"x": x.contiguous(), "y": y.contiguous()}))
        stored = load_file(path)
        return stored["x"], stored["y"]


@dataclass(frozen=True)
class Head:
    """A method on features: what makes it of them, and of the trained heads of MAP that it starts from.

    It is trained on a set of images, or is ready once it is made.
    """

    make: Callable[..., Method]
    images: str | None = None
    fit: Mapping[str, Any] = field(default_factory=dict)
    context: str | None = None
    starts: int = 0


def head_experiment(
    order: Order, head: Head, features: Features, measure: Callable[[Method], dict[str, float]], notes: list[str]
) -> Experiment:
    """The experiment of a head on features of CIFAR-10's images."""
    seeds = range(head.starts * order.seed, head.starts * (order.seed + 1))
    return Experiment(
        partial(head.make, features),
        features(head.images or "train"),
        {**head.fit, **order.fit_settings},
        lambda method: Outcome(measure(method), {}, [data.load("cifar10", "test")]),
        [data.load("cifar10", "train")],
        notes,
        tests=("cifar10",),
        starts=[replace(order, method="map", context=None, seed=seed) for seed in seeds],
        trains=head.images is not None,
        is_diagnosed=False,
    )


def corrupted(images: Tensor, labels: Tensor, num: int, seed: int) -> Pair:
    """`num` random images for each kind and severity of corruption, and their labels."""
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    kinds = [(kind, severity) for kind in data.CORRUPTIONS for severity in range(1, 6)]
    rows = [order[torch.arange(i * num, (i + 1) * num) % len(order)] for i in range(len(kinds))]
    changed = [
        data.corrupt(images[at], *kind, seed=seed + i) for i, (at, kind) in enumerate(zip(rows, kinds, strict=True))
    ]
    return torch.cat(changed), labels[torch.cat(rows)]
