"""Conformal prediction sets: classes among which the right one is with a chance of at least 1 − α."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from fsvi.calibration.conformal import quantile
from fsvi.errors import InvalidInputError
from fsvi.metrics.inputs import Probabilities, check_predictions, check_probabilities, check_scores
from fsvi.serialization import Configurable
from fsvi.validation import check_count

_HASH_BYTES = 6
"""Bytes of a hash that make a uniform number: 48 bits fit into a float64 exactly."""


class ConformalSets(Configurable, ABC):
    """Sets {c : score(x, c) ≤ q}, with q a quantile of the held-out rows' scores; see `fsvi.calibration.conformal`.

    Guaranteed: a new row's class is in its set with a chance of at least 1 − α, on average over held-out and new rows,
    if they are exchangeable. Not guaranteed: coverage for each class, each group or each input; coverage after a
    distribution shift; coverage if the same rows also trained, stopped, scaled or selected the model.
    """

    nonempty: bool
    scores: Tensor | None
    num_classes: int | None

    @abstractmethod
    def class_scores(self, p: Probabilities) -> Tensor:
        """The score of every class, (n, classes): larger where the class conforms less to the prediction."""

    def fit(self, p: Probabilities, y: Any) -> ConformalSets:
        """Keep the scores of held-out predictions `p` with their labels `y`.

        Args:
            p: Held-out predictions.
            y: Their labels.
        """
        probabilities, y = check_predictions(p, y)
        self.num_classes = probabilities.shape[1]
        self.scores = self.class_scores(p).gather(1, y[:, None]).squeeze(1).sort().values
        return self

    def sets(self, p: Probabilities, alpha: float = 0.1) -> Tensor:
        """The classes in the set of each input, (n, classes): True is in it.

        Args:
            p: Predictions.
            alpha: The largest chance that a set misses the label.
        """
        if self.scores is None:
            raise InvalidInputError(f"{type(self).__name__} is not fitted: call fit(p, y) with held-out rows first.")
        probabilities = check_probabilities(p)
        if probabilities.shape[1] != self.num_classes:
            given = probabilities.shape[1]
            raise InvalidInputError(f"p has {given} classes, but the calibration was fitted on {self.num_classes}.")
        chosen = self.class_scores(p) <= quantile(self.scores, alpha)
        if self.nonempty:
            chosen.scatter_(1, probabilities.argmax(1, keepdim=True), True)
        return chosen

    def config(self) -> dict[str, Any]:
        """The class and its settings; the scores stay a tensor."""
        config = super().config()
        config["settings"]["scores"] = self.scores
        return config

    def _keep(self, nonempty: bool, scores: Any, num_classes: int | None) -> None:
        self.nonempty = bool(nonempty)
        self.scores = None if scores is None else check_scores("scores", scores).sort().values
        self.num_classes = None if num_classes is None else check_count("num_classes", num_classes, least=2)


class LAC(ConformalSets):
    """Least ambiguous sets: every class with a probability of at least 1 − q (Sadinle, Lei, Wasserman 2019).

    The score is 1 − p(c|x). These sets are the smallest on average, but hard inputs are covered less often than easy
    ones. A set is empty where no class is probable enough.

    Args:
        nonempty: Put the most probable class into every set. Coverage can only grow, so its upper bound is lost.
        scores: Scores of the held-out rows, (n,); None until `fit` has computed them.
        num_classes: Number of classes; None until `fit` has seen it.
    """

    def __init__(self, nonempty: bool = False, scores: Any = None, num_classes: int | None = None) -> None:
        self._keep(nonempty, scores, num_classes)

    def class_scores(self, p: Probabilities) -> Tensor:
        """1 − p(c|x)."""
        return 1 - check_probabilities(p)


class APS(ConformalSets):
    """Adaptive sets: the most probable classes, up to a total probability of q (Romano, Sesia, Candès 2020).

    The score of class c is the sum of the probabilities of c and all classes before it, the most probable first. Sets
    are larger than LAC's, but grow more where the model is unsure. Without `randomized`, the least probable class has a
    score of 1 in every row. These ties may raise the coverage above its upper bound, if that class is right with a
    chance of more than α. With `randomized`, the score is reduced by u p(c|x), u uniform on [0, 1).

    Here u is a hash of the row's probabilities. So the score is a fixed function of the input, which keeps the
    guarantee, and sets depend neither on a seed nor on the other rows of a batch. Rows with equal probabilities have
    equal u; a difference in the last bit, as between devices, gives another u.

    Args:
        randomized: Reduce scores at random, for smaller sets.
        nonempty: Put the most probable class into every set. Coverage can only grow, so its upper bound is lost.
        scores: Scores of the held-out rows, (n,); None until `fit` has computed them.
        num_classes: Number of classes; None until `fit` has seen it.
    """

    def __init__(
        self, randomized: bool = False, nonempty: bool = False, scores: Any = None, num_classes: int | None = None
    ) -> None:
        self.randomized = bool(randomized)
        self._keep(nonempty, scores, num_classes)

    def class_scores(self, p: Probabilities) -> Tensor:
        """Σ p(c'|x) over c and the more probable classes c', minus u p(c|x) if randomized."""
        probabilities = check_probabilities(p)
        ordered, order = probabilities.sort(dim=1, descending=True, stable=True)
        sums = ordered.cumsum(1).clamp_max(1)
        sums[:, -1] = 1  # rounding would break the ties between rows at random
        totals = torch.empty_like(sums).scatter_(1, order, sums)
        return totals - uniform_hash(probabilities)[:, None] * probabilities if self.randomized else totals


def uniform_hash(rows: Tensor) -> Tensor:
    """A number in [0, 1) per row, (n,): uniform over rows that differ, and the same for the same row."""
    digests = (hashlib.blake2b(row.tobytes(), digest_size=_HASH_BYTES).digest() for row in rows.numpy())
    integers = [int.from_bytes(digest, "little") for digest in digests]
    return torch.tensor(integers, dtype=torch.float64) / 2 ** (8 * _HASH_BYTES)
