"""What the image classification tasks share: contexts by name, and how a classifier is measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from fsvi import data, metrics
from fsvi.data import Dataset, Normalize
from fsvi.errors import InvalidInputError
from fsvi.functions import contexts
from fsvi.methods import Method
from fsvi.predictive import CategoricalPredictive
from fsvi.validation import check_choice

_BATCH = 1000
_BINS = 30
_POINTS = 100

_MADE: dict[str, Callable[[], contexts.Context]] = {
    "monochrome": lambda: contexts.Mixture([contexts.Batch(), contexts.Monochrome()], [0.5, 0.5]),
    "batch": contexts.Batch,
    "corrupted": contexts.Corrupted,
}
"""Contexts that are made from the training images."""


def make_context(
    name: str | None, normalize: Normalize, ood: Sequence[str]
) -> tuple[contexts.Context | None, list[Dataset]]:
    """The context called `name`, and the data that it was made from; None for a method that has no context.

    A dataset whose name is among `ood`, those by which out-of-distribution detection is measured, is refused: what was
    seen in training is no test.
    """
    if name is None:
        return None, []
    if name in ood:
        raise InvalidInputError(
            f"context {name!r} is also an out-of-distribution test set here, so its figures would mean nothing: "
            f"choose another, such as {next(iter(_MADE))!r}."
        )
    if name in _MADE:
        return _MADE[name](), []
    check_choice("context", name, [*_MADE, *(each for each in data.names() if each not in ood)])
    split: Any = "train" if data.available(name, "train") or not data.available(name, "test") else "test"
    source = data.load(name, split)
    return contexts.Dataset(normalize(source.x)), [source]


def predict(method: Method, x: Tensor, num_samples: int) -> CategoricalPredictive:
    """A classifier's predictive distribution."""
    p = method.predict(x, num_samples=num_samples, batch_size=_BATCH)
    assert isinstance(p, CategoricalPredictive)
    return p


def measure(
    method: Method, x: Tensor, y: Tensor, ood: Mapping[str, Tensor], num_samples: int
) -> tuple[dict[str, float], dict[str, Any]]:
    """Metrics and curves of a classifier on test images, and how well it tells other images from these."""
    p = predict(method, x, num_samples)
    found = metrics.evaluate_classification(p, y)
    curves: dict[str, Any] = {
        "reliability": _plain(asdict(metrics.reliability(p, y, bins=15))),
        "entropy": {"test": _histogram(p)},
    }
    for name, images in ood.items():
        other = predict(method, images, num_samples)
        found |= {f"{key}_{name}": value for key, value in metrics.evaluate_ood(p, other).items()}
        found[f"auroc_{name}"] = found[f"auroc_entropy_{name}"]
        curves["entropy"][name] = _histogram(other)
    return found, curves


def thinned(values: Any, num: int = _POINTS) -> list[float]:
    """At most `num` of the values, evenly spread, the first and the last among them."""
    values = torch.as_tensor(values, dtype=torch.float64)
    index = torch.linspace(0, len(values) - 1, min(num, len(values))).round().long()
    return [round(float(value), 5) for value in values[index]]


def _histogram(p: CategoricalPredictive) -> list[float]:
    """The share of predictions in equal bins of entropy between 0 and log C."""
    entropy = p.entropy().double()
    counts = torch.histc(entropy, _BINS, 0.0, float(torch.tensor(p.mean.shape[-1]).log()))
    return [round(float(value), 5) for value in counts / len(entropy)]


def _plain(values: Mapping[str, Any]) -> dict[str, list[float]]:
    return {name: [round(float(v), 5) for v in torch.as_tensor(value)] for name, value in values.items()}
