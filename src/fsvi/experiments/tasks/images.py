"""What the image classification tasks share: efforts, augmentation, contexts by name, measures of a classifier."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset as TorchDataset

from fsvi import data, metrics
from fsvi.data import DataSplit, Normalize
from fsvi.data.dataset import Split
from fsvi.data.store.catalog import entry_of
from fsvi.errors import InvalidInputError
from fsvi.experiments.experiment import Order
from fsvi.functions import contexts
from fsvi.functions.priors import Constant
from fsvi.likelihoods import Categorical
from fsvi.methods import FSVI, Laplace, Method, make_method
from fsvi.predictive import CategoricalPredictive
from fsvi.validation import check_choice

_BATCH = 1000
_ONE_PASS = 10
_BINS = 30
_POINTS = 100

ON_THE_CNN = MappingProxyType(
    {
        "prior": Constant(10.0),
        "num_context": 8,
        "num_samples": 5,
        "kl_weight": 1 / 128,
        "stochastic": "last_layer",
    }
)
"""FSVI's settings for the paper's CNN on grey pictures, chosen on FashionMNIST."""

MADE: dict[str, Callable[[], contexts.Context]] = {
    "monochrome": lambda: _half_batch(contexts.Monochrome()),
    "batch": contexts.Batch,
    "corrupted": contexts.Corrupted,
}
"""Contexts that are made from the training images."""


@dataclass(frozen=True)
class Effort:
    """How much a profile takes of a task.

    Attributes:
        images: How many training images, the first ones; None for all.
        test_images: How many of each test set, the first ones; None for all.
        epochs: Passes over the training images.
        num_samples: Draws of the function in prediction.
    """

    images: int | None
    test_images: int | None
    epochs: int
    num_samples: int

    def notes(self) -> list[str]:
        """What a reader of figures made from less than all data must know."""
        parts = {"training": self.images, "test": self.test_images}
        counts = [f"{number:,} {name} images" for name, number in parts.items() if number is not None]
        return [f"subset: the first {' and '.join(counts)}"] if counts else []


class Augmented(TorchDataset[tuple[Tensor, Tensor]]):
    """Images and labels; those fetched together, as a DataLoader fetches a batch, are cropped and mirrored at random.

    One alone is as it was given: what a method learns of the data before training is of the true images. Random
    numbers come from torch's global generator, which a checkpoint keeps.
    """

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.x[index], self.y[index]

    def __getitems__(self, indices: list[int]) -> list[tuple[Tensor, Tensor]]:
        return list(zip(data.augment(self.x[indices]), self.y[indices], strict=True))


def make_context(
    name: str | None, normalize: Normalize, ood: Sequence[str]
) -> tuple[contexts.Context | None, list[DataSplit]]:
    """The context called `name`, and the data that it was made from; None for a method that has no context.

    Half of a dataset's or of monochrome context points are the minibatch's own.

    A dataset whose name is among `ood`, those by which out-of-distribution detection is measured, is refused: what was
    seen in training is no test.
    """
    if name is None:
        return None, []
    if name in ood:
        raise InvalidInputError(
            f"context {name!r} is also a test set here, so its figures would mean nothing: "
            f"choose another, such as {next(iter(MADE))!r}."
        )
    if name in MADE:
        return MADE[name](), []
    check_choice("context", name, [*MADE, *(each for each in data.names() if each not in ood)])
    source = data.load(name, _context_split(name))
    try:
        points = normalize(source.x)
    except InvalidInputError as error:
        raise InvalidInputError(f"context {name!r} does not fit this task: {error}") from error
    return _half_batch(contexts.Dataset(points)), [source]


def _context_split(name: str) -> Split:
    """The training split, unless there is none, or the test split alone is here."""
    has_train = "train" in entry_of(name).splits
    alone = data.available(name, "test") and not data.available(name, "train")
    return "train" if has_train and not alone else "test"


def check_unseen(tests: Iterable[DataSplit], context: Iterable[DataSplit]) -> None:
    """Refuse test images that the context has too, whatever their datasets are called."""
    seen = {image.tobytes() for each in context for image in each.x.numpy()}
    for test in tests:
        shared = sum(image.tobytes() in seen for image in test.x.numpy())
        if shared:
            raise InvalidInputError(
                f"{shared:,} test images of {test.name} are context points too, so its figures would mean nothing: "
                f"choose another context, such as {next(iter(MADE))!r}, or put the right files in their folders."
            )


def _half_batch(other: contexts.Context) -> contexts.Context:
    """Half of the points from the minibatch, whose logits the prior then bounds too: late in training that is what
    keeps a classifier calibrated."""
    return contexts.Mixture([contexts.Batch(), other], [0.5, 0.5])


def make_classifier(
    order: Order,
    network: Callable[[], nn.Module],
    context: contexts.Context | None,
    own: Mapping[str, Mapping[str, Any]],
    ensemble: Mapping[str, Any] = MappingProxyType({}),
) -> Callable[[], Method]:
    """What makes the method that was ordered; `own` are the recipe's settings, by the names of methods."""
    shared = {} if order.member == order.method else ensemble
    settings = {**own.get(order.member, {}), **shared, **order.settings}
    return lambda: make_method(order.method, network, Categorical(), context=context, **settings)


def context_notes(name: str | None) -> list[str]:
    """What a reader must know of the context called `name`."""
    is_mixed = name is not None and (name not in MADE or isinstance(MADE[name](), contexts.Mixture))
    return ["half of the context points are the minibatch's"] if is_mixed else []


def predict(method: Method, x: Tensor, num_samples: int) -> CategoricalPredictive:
    """A classifier's predictive distribution; by ten times as many draws where one pass of the network serves all."""
    draws = num_samples * (_ONE_PASS if _is_random_at_the_end(method) else 1)
    p = method.predict(x, num_samples=draws, batch_size=_BATCH)
    assert isinstance(p, CategoricalPredictive)
    return p


def _is_random_at_the_end(method: Method) -> bool:
    """Whether the last layer alone is random."""
    if isinstance(method, Laplace):
        return method.structure == "last_layer"
    return isinstance(method, FSVI) and method.stochastic == "last_layer"


def measure(
    method: Method, x: Tensor, y: Tensor, ood: Mapping[str, Tensor], num_samples: int
) -> tuple[dict[str, float], dict[str, Any]]:
    """Metrics and curves of a classifier on test images, and how well it tells other images from these."""
    p = predict(method, x, num_samples)
    found = metrics.evaluate_classification(p, y)
    curves: dict[str, Any] = {"reliability": reliability(p, y), "entropy": {"test": histogram(p)}}
    for name, images in ood.items():
        other = predict(method, images, num_samples)
        found |= {f"{key}_{name}": value for key, value in metrics.evaluate_ood(p, other).items()}
        found[f"auroc_{name}"] = found[f"auroc_entropy_{name}"]
        curves["entropy"][name] = histogram(other)
    return found, curves


def measure_sets(
    method: Method, name: str, ood: Sequence[str], normalize: Normalize, effort: Effort, context: Sequence[DataSplit]
) -> tuple[dict[str, float], dict[str, Any], dict[str, DataSplit]]:
    """`measure` on the test split of dataset `name` and of those in `ood`, and the splits, loaded here."""
    tests = {each: data.load(each, "test") for each in (name, *ood)}
    check_unseen([tests[each] for each in ood], context)
    images = {each: normalize(test.x[: effort.test_images]) for each, test in tests.items()}
    labels = tests[name].y[: effort.test_images]
    return *measure(method, images.pop(name), labels, images, effort.num_samples), tests


def score(p: CategoricalPredictive, y: Tensor) -> dict[str, float]:
    """What curves over growing shifts of the test images are made of."""
    return {
        "accuracy": metrics.accuracy(p, y),
        "nll": metrics.nll(p, y),
        "brier": metrics.brier(p, y),
        "ece": metrics.ece(p, y),
        "entropy": float(p.entropy().mean()),
    }


def columns(rows: Sequence[Mapping[str, float]]) -> dict[str, list[float]]:
    """Each name's values in the order of the rows."""
    return {name: [round(float(row[name]), 5) for row in rows] for name in rows[0]}


def average(rows: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """The mean of each name's values."""
    listed = list(rows)
    return {name: sum(row[name] for row in listed) / len(listed) for name in listed[0]}


def reliability(p: CategoricalPredictive, y: Tensor) -> dict[str, list[float]]:
    """The reliability diagram on 15 equal bins."""
    return _plain(asdict(metrics.reliability(p, y, bins=15)))


def thinned(values: Any, num: int = _POINTS) -> list[float]:
    """At most `num` of the values, evenly spread, the first and the last among them."""
    values = torch.as_tensor(values, dtype=torch.float64)
    index = torch.linspace(0, len(values) - 1, min(num, len(values))).round().long()
    return [round(float(value), 5) for value in values[index]]


def histogram(p: CategoricalPredictive) -> list[float]:
    """The share of predictions in equal bins of entropy between 0 and log C, which rounding may exceed."""
    most = math.log(p.mean.shape[-1])
    entropy = p.entropy().double().clamp(0.0, most)
    counts = torch.histc(entropy, _BINS, 0.0, most)
    return [round(float(value), 5) for value in counts / len(entropy)]


def _plain(values: Mapping[str, Any]) -> dict[str, list[float]]:
    return {name: [round(float(v), 5) for v in torch.as_tensor(value)] for name, value in values.items()}
