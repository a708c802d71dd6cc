"""Made-up data in place of real datasets, for recipes, and a method that predicts what a test wants."""

import zlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import review_texts
from fsvi.likelihoods import CategoricalPredictive
from paper import data
from paper.data import DataSplit
from paper.tasks.uci_regression import TABLES

SHAPES = {
    "fashion-mnist": (1, 28, 10),
    "notmnist": (1, 28, 10),
    "mnist": (1, 28, 10),
    "kmnist": (1, 28, 10),
    "cifar10": (3, 32, 10),
    "cifar100": (3, 32, 100),
    "svhn": (3, 32, 10),
    "retina": (3, 128, 2),
    "aptos": (3, 128, 2),
}
"""Channels, height and classes by name."""


def pretend(
    monkeypatch: pytest.MonkeyPatch, num: int = 48, absent: tuple[str, ...] = ("aptos",), note: str = ""
) -> list[tuple[str, str]]:
    """Replace the loading of data; returns the names and splits that are asked for from now on."""
    asked: list[tuple[str, str]] = []

    def load(name: str, split: Any = "train") -> DataSplit:
        asked.append((name, split))
        return make_up(name, split, num, note)

    monkeypatch.setattr(data, "load", load)
    monkeypatch.setattr(data, "ensure", lambda name, split: None)
    monkeypatch.setattr(data, "available", lambda name, split="train": name not in absent)
    return asked


def make_up(name: str, split: Any, num: int, note: str = "") -> DataSplit:
    """Images whose brightness grows with their class, the classes in turn; or texts, or a table of numbers."""
    if name in ("imdb", "rotten-tomatoes"):
        return review_texts.make_up(name, split)
    if name in TABLES:
        x = torch.randn(60, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        return DataSplit(x, x.sum(1, keepdim=True), name, split, note, sha256=f"{name} {split}")
    channels, size, classes = SHAPES[name]
    generator = torch.Generator().manual_seed(zlib.crc32(f"{name} {split}".encode()))
    y = torch.arange(num) % classes
    x = torch.randint(0, 50, (num, channels, size, size), generator=generator)
    x += (y * 200 // classes)[:, None, None, None]
    return DataSplit(x.to(torch.uint8), y, name, split, note, sha256=f"{name} {split}")


class Oracle:
    """Stands in for a trained method: `answer` says which probabilities (n, classes) follow from inputs."""

    def __init__(self, answer: Callable[[Tensor], Tensor]) -> None:
        self.answer = answer

    def predict(self, x: Tensor, **_: Any) -> CategoricalPredictive:
        return CategoricalPredictive(self.answer(x).log()[None])


def needs(*datasets: tuple[str, str]) -> pytest.MarkDecorator:
    """Skips a test where a dataset is absent."""
    absent = [f"{name} {split}" for name, split in datasets if not data.available(name, split)]  # type: ignore[arg-type]
    return pytest.mark.skipif(bool(absent), reason=f"not in FSVI_DATA or the cache: {', '.join(absent)}")
