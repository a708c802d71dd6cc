"""Continual learning: tasks one after the other, each seen once (Rudner, Bickford Smith, Feng, Teh, Gal; ICML 2022)."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from fsvi import metrics
from fsvi.errors import InvalidInputError
from fsvi.functions import contexts
from fsvi.functions.divergences import KL
from fsvi.functions.priors import Induced
from fsvi.likelihoods import Categorical, Likelihood, MultiHead
from fsvi.methods import Method, make_method
from fsvi.methods.registry import setting_names
from fsvi.networks import mlp
from fsvi.training import History
from fsvi.training.tasks import fit_tasks, start_task
from paper import data
from paper.columns import Column, TableLayout, percent
from paper.experiment import Experiment, Order, Outcome
from paper.task import Section, Sweep, Task
from paper.tasks.images import ImageEffort, predict

CORESET, NO_CORESET = "coreset", "no-coreset"
_PIXELS, _CLASSES = 28 * 28, 10
_PAIRS = tuple((label, label + 1) for label in range(0, _CLASSES, 2))
_ORDERS, _ORDER_SEED = 10, 1000
"""The number of permuted tasks, and the seed of their orders of pixels, to which a task's number is added."""

Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class TaskSequence:
    """What distinguishes the four sequences of tasks.

    `classes` of each task are empty if every task has all classes, with its own order of pixels. `coreset` is the
    number of images that S-FSVI keeps per task, `published` the epochs of its authors with and without a coreset.
    """

    name: str
    title: str
    dataset: str
    classes: tuple[tuple[int, ...], ...]
    is_multi_head: bool
    hidden: tuple[int, ...]
    coreset: int
    epochs: int
    published: tuple[int, int]
    settings: Mapping[str, Any] = field(default_factory=dict)
    fit_settings: Mapping[str, Any] = field(default_factory=dict)

    def divided(self, x: Tensor, y: Tensor) -> Sequence[Pair]:
        """The tasks: images as vectors of pixels from 0 to 1, and labels."""
        rows = x.flatten(1).float() / 255
        if not self.classes:
            return PermutedTasks(rows, y)
        chosen = [torch.isin(y, torch.tensor(classes)) for classes in self.classes]
        return [(rows[mask], y[mask]) for mask in chosen]

    def likelihood(self) -> Likelihood:
        """Classes that compete within their task, or all of them."""
        return MultiHead(self.classes) if self.is_multi_head else Categorical()


class PermutedTasks(Sequence[Pair]):
    """The same images in ten orders of pixels. They are permuted when they are needed: ten copies take 2 GB."""

    def __init__(self, rows: Tensor, y: Tensor) -> None:
        self.rows, self.y = rows, y

    def __len__(self) -> int:
        return _ORDERS

    def __getitem__(self, number: Any) -> Any:
        """A task; the first one has the images as they are."""
        number = range(_ORDERS)[number]
        if not number:
            return self.rows, self.y
        order = torch.randperm(_PIXELS, generator=torch.Generator().manual_seed(_ORDER_SEED + number))
        return self.rows[:, order], self.y


_SEQUENCES = (
    TaskSequence("split-mnist", "Split MNIST", "mnist", _PAIRS, True, (256, 256), 40, 3, (60, 20)),
    TaskSequence(
        "split-fashion-mnist", "Split FashionMNIST", "fashion-mnist", _PAIRS, True, (256, 256), 40, 3, (60, 60)
    ),
    TaskSequence(
        "permuted-mnist",
        "Permuted MNIST",
        "mnist",
        (),
        False,
        (100, 100),
        200,
        5,
        (10, 5),
        {"prior": Induced(1.0), "num_context": 8, "kl_weight": 1e-3},
        {"lr": 2e-3, "batch_size": 256},
    ),
    TaskSequence("split-mnist-single", "Split MNIST, one head", "mnist", _PAIRS, False, (256, 256), 200, 3, (80, 80)),
)

_SMALLER = {
    "quick": ImageEffort(12_000, 2_000, epochs=1, num_samples=1),
    "smoke": ImageEffort(500, 200, epochs=1, num_samples=1),
}
_SETTINGS: Mapping[str, Any] = {
    "divergence": KL(1e-4, covariance="diagonal"),
    "stochastic": "last_layer",
    "num_context": 16,
    "num_samples": 5,
    "kl_weight": 1 / 160,
}
_FIT = {"lr": 1e-3, "batch_size": 128}


@dataclass(frozen=True)
class SequenceExperiment(Experiment):
    """An experiment whose training data come as tasks, one after the other; `learned` is the method after each."""

    tasks: Sequence[Pair] = ()
    learned: list[Method] = field(default_factory=list)

    def train(self, method: Method, seed: int, **settings: Any) -> History:
        """Train on the tasks in turn."""
        self.learned.clear()
        histories = fit_tasks(
            method,
            self.tasks,
            seed=seed,
            after_task=lambda trained, _: self.learned.append(copy.deepcopy(trained)),
            **{**self.fit_settings, **settings},
        )
        joined = History(seconds=sum(history.seconds for history in histories))
        for history in histories:
            joined.loss.extend(history.loss)
            for name, values in history.terms.items():
                joined.terms.setdefault(name, []).extend(values)
        return joined


def continual(sequence: TaskSequence, order: Order) -> Experiment:
    """A dense network learns the tasks of a sequence; afterwards it is tested on all of them.

    S-FSVI's last layer is random, its prior variances are those of its authors, and its function is compared with the
    previous posterior at points of the context and of the coreset of each earlier task. `map` is plain fine-tuning,
    without a prior. `reproduce continual --seeds 3` makes the whole table, in about half an hour on an idle core.

    `accuracy` is the mean over tasks after the last one, `accuracy_task_1` and so on are those of single tasks,
    `accuracy_learned` is the mean of each task's accuracy when it had just been learned, and `forgetting` the mean loss
    of accuracy since then, without the last task.
    """
    effort = _SMALLER.get(order.profile, ImageEffort(None, None, sequence.epochs, 1))
    train = data.load(sequence.dataset, "train")
    tasks = sequence.divided(train.x[: effort.images], train.y[: effort.images])
    settings = {**_method_settings(sequence, order), **order.settings}
    context = contexts.Uniform(0.0, 1.0) if _draws_noise(sequence, order) else contexts.Batch()

    def make() -> Method:
        net = mlp(_PIXELS, sequence.hidden, _CLASSES)
        return make_method(order.method, net, sequence.likelihood(), context=context, **settings)

    def evaluate(method: Method) -> Outcome:
        test = data.load(sequence.dataset, "test")
        parts = sequence.divided(test.x[: effort.test_images], test.y[: effort.test_images])
        return Outcome(*_measured(method, learned[:-1], parts, effort.num_samples), [test])

    published = sequence.published[order.context == NO_CORESET]
    coreset = [f"coreset: {sequence.coreset} images per task"] if order.context == CORESET else []
    notes = [*effort.differences, f"epochs per task: {effort.epochs}; S-FSVI's authors: {published}", *coreset]
    experiment = SequenceExperiment(
        make,
        tasks[-1],
        {"epochs": effort.epochs, **_FIT, **sequence.fit_settings, **order.fit_settings},
        evaluate,
        [train],
        notes,
        tests=(sequence.dataset,),
        is_diagnosed=False,
        tasks=tasks,
    )
    learned = experiment.learned
    return experiment


def _method_settings(sequence: TaskSequence, order: Order) -> Mapping[str, Any]:
    if order.member == "s-fsvi":
        prior = Induced(1e-3 if _draws_noise(sequence, order) else 100.0)
        coreset = sequence.coreset if order.context == CORESET else 0
        return {**_SETTINGS, "prior": prior, **sequence.settings, "coreset": coreset}
    if "context" in setting_names(order.method):
        raise InvalidInputError(
            f"{order.method!r} has no coreset, which the contexts of {order.task!r} are about: run 's-fsvi', or a "
            "method without a context, such as 'map'."
        )
    return {"prior_variance": None} if order.member == "map" else {}


def _draws_noise(sequence: TaskSequence, order: Order) -> bool:
    """Whether context points besides the coreset are uniform noise.

    Otherwise they are images of the present task, which help to remember the heads of other tasks. With one head they
    would hold back what the task has to teach, so they are used without a coreset only, where noise says nothing about
    earlier tasks. S-FSVI's authors use noise next to every coreset.
    """
    return order.context == CORESET and not sequence.is_multi_head


def _measured(
    method: Method, earlier: Sequence[Method], tests: Sequence[Pair], num_samples: int
) -> tuple[dict[str, float], dict[str, Any]]:
    """Metrics and curves of the trained method, and of what it was after each task before the last, if it is known."""
    scores = _scores(method, tests, len(tests), num_samples)
    final = [each["accuracy"] for each in scores]
    found = {name: fmean([each[name] for each in scores]) for name in scores[0]}
    found |= {f"accuracy_task_{number}": value for number, value in enumerate(final, 1)}
    if not earlier:
        return found, {}
    stages = [_scores(each, tests, seen, num_samples) for seen, each in enumerate(earlier, 1)]
    accuracies = [*([each["accuracy"] for each in stage] for stage in stages), final]
    learned = [row[-1] for row in accuracies]
    lost = [before - after for before, after in zip(learned[:-1], final[:-1], strict=True)]
    curve = {
        "task": list(range(1, len(accuracies) + 1)),
        "mean": [round(fmean(row), 5) for row in accuracies],
        "first": [round(row[0], 5) for row in accuracies],
        "each": [[round(value, 5) for value in row] for row in accuracies],
    }
    return {**found, "accuracy_learned": fmean(learned), "forgetting": fmean(lost)}, {"forgetting": curve}


def _scores(method: Method, tests: Sequence[Pair], seen: int, num_samples: int) -> list[dict[str, float]]:
    """The scores on the test images of the first `seen` tasks."""
    found = []
    for number in range(seen):
        x, y = tests[number]
        start_task(method, number)
        p = predict(method, x, num_samples)
        found.append({"accuracy": metrics.accuracy(p, y), "nll": metrics.nll(p, y), "ece_15": metrics.ece(p, y)})
    return found


_SECTION = Section(
    "Continual learning",
    "A network learns one task after the other and never sees earlier images again, except for a small coreset. How "
    "much does it still know of all tasks at the end? With one head it also has to tell tasks apart.",
    (
        TableLayout(
            "Accuracy after the last task", tuple(percent(each.name, "accuracy", each.title) for each in _SEQUENCES)
        ),
        TableLayout(
            "Forgetting", tuple(Column(each.name, "forgetting", each.title, "lower", 2, 100.0) for each in _SEQUENCES)
        ),
    ),
)
_SWEEP = Sweep("continual", dict.fromkeys((f"s-fsvi ({CORESET})", f"s-fsvi ({NO_CORESET})", "map"), 10))


CONTINUAL_TASKS = tuple(
    Task(each.name, partial(continual, each), _SECTION, _SWEEP, CORESET, (CORESET, NO_CORESET)) for each in _SEQUENCES
)
