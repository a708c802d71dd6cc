"""What the image tasks share: efforts, contexts, classifiers, their evaluation, and starts from trained networks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import product
from types import MappingProxyType
from typing import Any, Literal

import pandas as pd
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset as TorchDataset

from fsvi import metrics
from fsvi.errors import InvalidInputError
from fsvi.functions import contexts
from fsvi.functions.contexts import Context
from fsvi.functions.priors import Constant
from fsvi.inputs import Inputs, concatenate
from fsvi.likelihoods import Categorical, CategoricalPredictive
from fsvi.methods import Ensemble, Laplace, Method, make_method
from fsvi.networks import cnn
from fsvi.validation import check_choice
from paper import data
from paper.data import DataSplit, Normalize
from paper.data.catalog import Split, entry_of
from paper.experiment import Experiment, Order, Outcome, thin
from paper.methods import REFINED, library_name, method_title

_MEMBERS = 3
"""The number of runs that an ensemble joins."""
_BATCH = 1000
_ONE_PASS = 10
_BINS = 30
_PERCENTS = tuple(range(0, 100, 5))
_REFERRED = (50, 70)
"""Shares of referred inputs in percent: those of the curves, and those of the paper's table."""
FIXED_MEAN = {"fsvi-fixed-mean": "map", REFINED: "fsvi"}
"""Methods that keep the function of a trained network and learn its variance, and what trained that network."""
_FIXED_MEAN_FIT = MappingProxyType({"epochs": 6, "batch_size": 512, "lr": 0.1})
_ROWS, _AREA = 6000, 0.8
"""Training images whose parts FSVI with a fixed mean sees, and the smallest share of their area."""
_POINTS, _CHUNK = 4000, 100
"""Its context points, and how many are drawn at a time."""

FSVI_SETTINGS = MappingProxyType(
    {"prior": Constant(10.0), "num_context": 8, "num_samples": 5, "kl_weight": 1 / 128, "stochastic": "last_layer"}
)
"""FSVI's settings for the paper's CNN on gray images, chosen on FashionMNIST; they do for texts, too."""


@dataclass(frozen=True)
class ImageEffort:
    """What a profile spends on an image task, and with which network and settings it does.

    Images are taken from the front of each set; None takes all. `network` makes the network from training images, which
    are shifted by up to `shift` pixels. `fine_tuning` are the settings of `fit`, by method, of those that start from
    MAP's network.
    """

    images: int | None
    test_images: int | None
    epochs: int
    num_samples: int
    network: Callable[..., nn.Module] = cnn
    batch_size: int = 128
    shift: int = 0
    edges: Literal["zeros", "reflect"] = "zeros"
    fit: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    fine_tuning: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def differences(self) -> list[str]:
        """All differences from the paper, the part of the data that is used among them."""
        if self.images is None:
            return list(self.notes)
        return [f"subset: the first {self.images:,} training images and {self.test_images:,} test images", *self.notes]

    def fit_settings(self, order: Order) -> dict[str, Any]:
        """The settings of `fit` for an order."""
        own = {"epochs": self.epochs, "batch_size": self.batch_size, **self.fit}
        return {**own, **self.fine_tuning.get(order.method, {}), **order.fit_settings}


class AugmentedImages(TorchDataset[tuple[Tensor, Tensor]]):
    """Images and labels. A batch fetched by a DataLoader is cropped and mirrored at random.

    A single item is returned unchanged, so that what a method learns about the data before training comes from the
    true images. Random numbers come from torch's global generator, whose state checkpoints keep.
    """

    def __init__(self, x: Tensor, y: Tensor, shift: int = 4, edges: Literal["zeros", "reflect"] = "zeros") -> None:
        self.x, self.y, self.shift, self.edges = x, y, shift, edges

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.x[index], self.y[index]

    def __getitems__(self, indices: list[int]) -> list[tuple[Tensor, Tensor]]:
        augmented = data.augment(self.x[indices], padding=self.shift, mode=self.edges)
        return list(zip(augmented, self.y[indices], strict=True))


def half_batch(order: Order, other: Context) -> tuple[Context, list[str]]:
    """Half of the points come from the minibatch, and a note says so. There the prior bounds the logits of the data,
    too, which keeps a classifier calibrated late in training; with a fixed mean there is nothing to bound.
    """
    if order.member in FIXED_MEAN:
        return other, []
    half = contexts.Mixture([contexts.Batch(), other], [0.5, 0.5])
    return half, ["half of the context points are from the minibatch"]


GENERATED: dict[str, Callable[[], Context]] = {
    "monochrome": contexts.Monochrome,
    "batch": contexts.Batch,
    "corrupted": contexts.Corrupted,
}
"""Contexts that are generated from the training images."""


def make_context(
    order: Order, normalize: Normalize, ood: Sequence[str]
) -> tuple[Context | None, list[DataSplit], list[str]]:
    """A context, the data it was made from, and notes for readers; no context for a method without one.

    A dataset in `ood`, the test sets of out-of-distribution detection, is refused: images seen in training cannot test
    detection.
    """
    name = order.context
    if name is None:
        return None, [], []
    if name in ood:
        raise InvalidInputError(
            f"context {name!r} is also a test set of this task, so its results would be meaningless: "
            f"choose another context, such as {next(iter(GENERATED))!r}."
        )
    if name in ("batch", "corrupted"):
        return GENERATED[name](), [], []
    if name in GENERATED:
        context, notes = half_batch(order, GENERATED[name]())
        return context, [], notes
    check_choice("context", name, [*GENERATED, *(each for each in data.names() if each not in ood)])
    source = data.load(name, _context_split(name))
    try:
        points = normalize(source.x)
    except InvalidInputError as error:
        raise InvalidInputError(f"context {name!r} does not fit this task: {error}") from error
    context, notes = half_batch(order, contexts.Dataset(points))
    return context, [source], notes


def _context_split(name: str) -> Split:
    """The training split, unless there is none or only the test split is available locally."""
    has_train = "train" in entry_of(name).splits
    only_test = data.available(name, "test") and not data.available(name, "train")
    return "train" if has_train and not only_test else "test"


def make_classifier(
    order: Order, network: Callable[[], nn.Module], context: Context | None, own: Mapping[str, Mapping[str, Any]]
) -> Callable[..., Method]:
    """A function that makes the ordered method, from a new network or from the trained method that it is given."""
    settings = {**own.get(order.member, {}), **order.settings}

    def make(*trained: Method) -> Method:
        net = trained[0].network.module if trained else network
        return make_method(library_name(order.method), net, Categorical(), context=context, **settings)

    return make


def predict(method: Method, x: Inputs, num_samples: int) -> CategoricalPredictive:
    """The predictive distribution of a classifier; ten times as many draws if one network pass serves all of them."""
    random = getattr(method, "structure", None) or getattr(method, "stochastic", None)
    draws = num_samples * (_ONE_PASS if random == "last_layer" else 1)
    p = method.predict(x, num_samples=draws, batch_size=_BATCH)
    assert isinstance(p, CategoricalPredictive)
    return p


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
    method: Method, name: str, ood: Sequence[str], normalize: Normalize, effort: ImageEffort
) -> tuple[dict[str, float], dict[str, Any], dict[str, DataSplit]]:
    """`evaluate_images` on the test splits of datasets, which are loaded here and returned, too."""
    tests = {each: data.load(each, "test") for each in (name, *ood)}
    images = {each: normalize(test.x[: effort.test_images]) for each, test in tests.items()}
    labels = tests[name].y[: effort.test_images]
    return *evaluate_images(method, images.pop(name), labels, images, effort.num_samples), tests


def evaluate_shift(
    predictions: Mapping[str, tuple[CategoricalPredictive, Tensor]],
) -> tuple[dict[str, float], dict[str, Any]]:
    """Metrics and curves with two classes, "in_domain" and "shifted": their quality, and the benefit of referral."""
    found: dict[str, float] = {}
    curves: dict[str, Any] = {"referral": {}, "entropy": {}}
    curves["reliability"] = reliability_curve(*predictions["in_domain"])
    for name, (p, y) in predictions.items():
        scores = metrics.evaluate_classification(p, y)
        referral = asdict(metrics.referral_curve(p, y, rates=[percent / 100 for percent in _PERCENTS]))
        for measure, percent in product(("accuracy", "auroc"), _REFERRED):
            scores[f"{measure}_referred_{percent}"] = float(referral[measure][_PERCENTS.index(percent)])
        found |= {key if name == "in_domain" else f"{key}_{name}": value for key, value in scores.items()}
        curves["referral"][name] = {key: thin(values) for key, values in referral.items()}
        curves["entropy"][name] = entropy_histogram(p)
    return found, curves


def measure_shifts(
    method: Method, name: str, shifted: Iterable[tuple[int, Tensor]], y: Tensor, num_samples: int
) -> pd.DataFrame:
    """Mean scores of test images by how far they are shifted, which the column `name` has."""
    rows = []
    for size, x in shifted:
        p = predict(method, x, num_samples)
        scores = {measure: getattr(metrics, measure)(p, y) for measure in ("accuracy", "nll", "brier", "ece")}
        rows.append({name: size, **scores, "entropy": float(p.entropy().mean())})
    return pd.DataFrame(rows).groupby(name).mean()


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


def image_experiment(
    order: Order,
    effort: ImageEffort,
    train: DataSplit,
    normalize: Normalize,
    evaluate: Callable[[Method], Outcome],
    tests: Sequence[str],
    refused: Sequence[str],
    validation: Callable[[], tuple[Tensor, Tensor]] | None = None,
) -> Experiment:
    """The experiment of a classifier of images; datasets in `refused` cannot be the context."""
    context, sources, mixed = make_context(order, normalize, refused)
    x, y = normalize(train.x[: effort.images]), train.y[: effort.images]
    experiment = Experiment(
        make_classifier(order, partial(effort.network, x), context, effort.settings),
        (x, y),
        effort.fit_settings(order),
        evaluate,
        [train, *sources],
        [*effort.differences, *mixed],
        partial(AugmentedImages, shift=effort.shift, edges=effort.edges) if effort.shift else None,
        validation,
        tests,
    )
    return started(experiment, order, is_warm=bool(effort.fine_tuning))


def started(experiment: Experiment, order: Order, is_warm: bool = False) -> Experiment:
    """The experiment with the trained networks that its method starts from.

    An ensemble joins three runs of its members' method, with seeds of their own. A fixed mean is the function of the
    MAP or FSVI of the same seed. With a warm start, Laplace approximates the posterior around that MAP, and every other
    method but MAP itself starts from its network and is trained with the experiment's settings of `fit`.
    """
    if order.member != order.method:
        seeds = range(_MEMBERS * order.seed, _MEMBERS * (order.seed + 1))
        members = [replace(order, method=order.member, seed=seed) for seed in seeds]
        return _ready(experiment, members, lambda *found: Ensemble.of(found), "an ensemble of runs of its own seeds")
    trained = FIXED_MEAN.get(order.method, "map")
    start = [replace(order, method=trained, context=None if trained == "map" else order.context)]
    whose = f"starts from the trained network of {method_title(trained)}, whose time is not part of the training time"
    notes = [*experiment.notes, whose]
    if order.method in FIXED_MEAN:
        return _with_fixed_mean(replace(experiment, starts=start, notes=notes), order.seed)
    if order.method == "map" or not is_warm:
        return experiment
    if order.method == "laplace":
        around = partial(Laplace.from_trained, data=experiment.data, **order.settings)
        return _ready(experiment, start, around, "around the trained MAP")
    return replace(experiment, starts=start, notes=notes)


def _ready(experiment: Experiment, starts: list[Order], make: Any, note: str) -> Experiment:
    """An experiment whose method is ready once it is made of trained models."""

    def made(*trained: Method) -> Method:
        return make(*trained) if trained else experiment.make()

    return replace(experiment, make=made, starts=starts, trains=False, notes=[*experiment.notes, note])


def _with_fixed_mean(experiment: Experiment, seed: int) -> Experiment:
    """The likelihood is on rows that the network has not seen: held-out texts, or parts of training images, because it
    is too sure of the images themselves. The context is drawn once, so that features are computed once, too.
    """
    x = experiment.data[0]

    def make(*trained: Method) -> Method:
        method: Any = experiment.make(*trained)
        if not trained:
            return method
        chunks = [x[torch.randint(len(x), (_CHUNK,))] for _ in range(_POINTS // _CHUNK)]
        method.context.prepare(x)
        method.context = contexts.Dataset(concatenate([method.context.sample(_CHUNK, chunk) for chunk in chunks]))
        return method

    def unseen(x: Any, y: Tensor) -> tuple[Any, Tensor]:
        if not isinstance(x, Tensor):
            return experiment.validation()  # type: ignore[misc]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            rows = torch.cat([torch.randperm(len(x)) for _ in range(math.ceil(_ROWS / len(x)))])[:_ROWS]
            return data.cropped(x[rows], _AREA), y[rows]

    return replace(experiment, make=make, dataset=unseen, fit_settings=_FIXED_MEAN_FIT)
