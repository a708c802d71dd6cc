"""Image classifiers: how they are made, how they predict, and how they are evaluated."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from fsvi import metrics
from fsvi.functions.contexts import Context
from fsvi.functions.priors import Constant
from fsvi.inputs import Inputs
from fsvi.likelihoods import Categorical, CategoricalPredictive
from fsvi.methods import FSVI, Laplace, Method, make_method
from paper import data
from paper.data import DataSplit, Normalize
from paper.experiment import Order
from paper.tasks.image_contexts import check_unseen
from paper.tasks.image_effort import ImageEffort

_BATCH = 1000
_ONE_PASS = 10
_BINS = 30

CNN_SETTINGS = MappingProxyType(
    {
        "prior": Constant(10.0),
        "num_context": 8,
        "num_samples": 5,
        "kl_weight": 1 / 128,
        "stochastic": "last_layer",
    }
)
"""FSVI's settings for the paper's CNN on gray images, chosen on FashionMNIST."""


# Making -------------------------------------------------------------------------------------------------------------


def make_classifier(
    order: Order,
    network: Callable[[], nn.Module],
    context: Context | None,
    own: Mapping[str, Mapping[str, Any]],
    ensemble: Mapping[str, Any] = MappingProxyType({}),
) -> Callable[..., Method]:
    """A function that makes the ordered method, from a new network or from the trained method that it is given."""
    shared = {} if order.member == order.method else ensemble
    settings = {**own.get(order.member, {}), **shared, **order.settings}

    def make(*trained: Method) -> Method:
        net = trained[0].network.module if trained else network
        return make_method(order.method, net, Categorical(), context=context, **settings)

    return make


# Predicting ---------------------------------------------------------------------------------------------------------


def predict(method: Method, x: Inputs, num_samples: int) -> CategoricalPredictive:
    """The predictive distribution of a classifier; ten times as many draws if one network pass serves all of them."""
    draws = num_samples * (_ONE_PASS if _has_random_last_layer_only(method) else 1)
    p = method.predict(x, num_samples=draws, batch_size=_BATCH)
    assert isinstance(p, CategoricalPredictive)
    return p


def _has_random_last_layer_only(method: Method) -> bool:
    if isinstance(method, Laplace):
        return method.structure == "last_layer"
    return isinstance(method, FSVI) and method.stochastic == "last_layer"


# Evaluating ---------------------------------------------------------------------------------------------------------


def evaluate_images(
    method: Method, x: Tensor, y: Tensor, ood: Mapping[str, Tensor], num_samples: int
) -> tuple[dict[str, float], dict[str, Any]]:
    """Metrics and curves of a classifier on test images, and how well it detects images of other kinds.

    `auroc_own_…`, also called `auroc_…`, ranks images by the score that the method's authors use, `auroc_entropy_…` by
    predictive entropy.
    """
    p = predict(method, x, num_samples)
    found = metrics.evaluate_classification(p, y)
    curves: dict[str, Any] = {"reliability": reliability_curve(p, y), "entropy": {"test": entropy_histogram(p)}}
    for name, images in ood.items():
        other = predict(method, images, num_samples)
        found |= {f"{key}_{name}": value for key, value in metrics.evaluate_ood(p, other).items()}
        found[f"auroc_{name}"] = found[f"auroc_own_{name}"]
        curves["entropy"][name] = entropy_histogram(other)
    return found, curves


def evaluate_test_sets(
    method: Method,
    name: str,
    ood: Sequence[str],
    normalize: Normalize,
    effort: ImageEffort,
    context: Sequence[DataSplit],
) -> tuple[dict[str, float], dict[str, Any], dict[str, DataSplit]]:
    """`evaluate_images` on the test splits of datasets, which are loaded here and returned, too."""
    tests = {each: data.load(each, "test") for each in (name, *ood)}
    check_unseen([tests[each] for each in ood], context)
    images = {each: normalize(test.x[: effort.test_images]) for each, test in tests.items()}
    labels = tests[name].y[: effort.test_images]
    return *evaluate_images(method, images.pop(name), labels, images, effort.num_samples), tests


def shift_scores(p: CategoricalPredictive, y: Tensor) -> dict[str, float]:
    """The scores that are drawn over growing shifts of the test images."""
    return {
        "accuracy": metrics.accuracy(p, y),
        "nll": metrics.nll(p, y),
        "brier": metrics.brier(p, y),
        "ece": metrics.ece(p, y),
        "entropy": float(p.entropy().mean()),
    }


def as_columns(rows: Sequence[Mapping[str, float]]) -> dict[str, list[float]]:
    """The values of each name in the order of the rows."""
    return {name: [round(float(row[name]), 5) for row in rows] for name in rows[0]}


def average(rows: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """The mean of the values of each name."""
    listed = list(rows)
    return {name: sum(row[name] for row in listed) / len(listed) for name in listed[0]}


def reliability_curve(p: CategoricalPredictive, y: Tensor) -> dict[str, list[float]]:
    """The reliability diagram with 15 bins of equal width."""
    diagram = asdict(metrics.reliability(p, y, bins=15))
    return {name: [round(float(v), 5) for v in torch.as_tensor(value)] for name, value in diagram.items()}


def entropy_histogram(p: CategoricalPredictive) -> list[float]:
    """The share of predictions in equal bins of entropy between 0 and log C; rounding can exceed these limits."""
    most = math.log(p.mean.shape[-1])
    entropy = p.entropy().double().clamp(0.0, most)
    counts = torch.histc(entropy, _BINS, 0.0, most)
    return [round(float(value), 5) for value in counts / len(entropy)]
