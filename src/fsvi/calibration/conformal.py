"""Conformal prediction: sets of classes, and intervals, that hold the target with a chance of at least 1 − α.

Let s₁..sₙ be scores of held-out rows and s that of a new row. If all n + 1 rows are exchangeable and the score is a
fixed function that has not seen them, then s is equally likely to have any rank among the n + 1. With
k = ⌈(n + 1)(1 − α)⌉ and q the k-th smallest held-out score,

    1 − α ≤ P(s ≤ q),   and without ties   P(s ≤ q) = k/(n + 1) ≤ 1 − α + 1/(n + 1).

With several targets this holds for each by itself, not for all at once. Not guaranteed: coverage for each class, each
group or each input; coverage after a distribution shift; coverage if the same rows also trained, stopped, scaled or
selected the model.

With outputs at every position, the scores of all positions are pooled. Positions of one input are not exchangeable with
those of others, so coverage over positions is then close to 1 − α for many inputs, but not guaranteed.
"""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from fractions import Fraction
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fsvi.calibration.scaling import check_fitted
from fsvi.errors import InvalidInputError
from fsvi.likelihoods import Predictive
from fsvi.metrics.checks import Probabilities, check_numbers, check_numeric, check_predictions, check_probabilities
from fsvi.serialization import Configurable
from fsvi.validation import as_tensor, check_positive

_HASH_BYTES = 6
"""Bytes of a hash that make a uniform number: 48 bits fit into a float64 exactly."""


def check_alpha(alpha: float) -> Fraction:
    """A chance of error strictly between 0 and 1, as the decimal fraction that was written.

    In floating point (n + 1)(1 − α) may land just above a whole number, which ⌈·⌉ would take for the next one.
    """
    if check_positive("alpha", alpha) >= 1:
        raise InvalidInputError(f"alpha={alpha!r} must lie between 0 and 1: 0.1 asks for a coverage of 90%.")
    return Fraction(str(float(alpha)))


def rows_needed(alpha: float) -> int:
    """The fewest held-out rows with which sets or intervals that miss with chance `alpha` are finite: ⌈1/α⌉ − 1."""
    return math.ceil(1 / check_alpha(alpha)) - 1


class Conformal(Configurable, ABC):
    """A step that turns predictions into sets or intervals, fitted when it has the scores of held-out rows.

    Args:
        scores: Scores of the held-out rows, (n,) or (n, targets); None until `fit` has computed them.
    """

    def __init__(self, scores: Any = None) -> None:
        scores = None if scores is None else as_tensor("scores", scores, torch.float64)
        if scores is not None and (scores.numel() == 0 or scores.dim() == 0 or not bool(scores.isfinite().all())):
            raise InvalidInputError(f"scores of shape {tuple(scores.shape)} must be finite and of at least one row.")
        self.scores = None if scores is None else scores.sort(dim=0).values

    @abstractmethod
    def fit(self, p: Any, y: Any) -> Conformal:
        """Keep the scores of held-out predictions `p` with their targets `y`."""

    def bound(self, alpha: float) -> Tensor:
        """The score that a new row exceeds with a chance of at most `alpha`: the ⌈(n + 1)(1 − α)⌉-th smallest.

        With too few rows it would be infinite, and the sets would hold everything: that is an error.
        """
        scores = check_fitted(self, self.scores)
        rank = math.ceil((len(scores) + 1) * (1 - check_alpha(alpha)))
        if rank > len(scores):
            raise InvalidInputError(
                f"alpha={alpha} needs at least {rows_needed(alpha)} held-out rows, but the calibration has "
                f"{len(scores)}: give more rows or a larger alpha."
            )
        return scores[rank - 1]

    def _setting(self, name: str) -> Any:
        return self.scores if name == "scores" else super()._setting(name)  # in files they stay a tensor


class ConformalSets(Conformal):
    """Sets {c : score(x, c) ≤ q}, with q a quantile of the held-out rows' scores.

    Args:
        nonempty: Put the most probable class into every set. Coverage can only grow, so its upper bound is lost.
        scores: Scores of the held-out rows, (n,); None until `fit` has computed them.
    """

    def __init__(self, nonempty: bool = False, scores: Any = None) -> None:
        super().__init__(scores)
        self.nonempty = bool(nonempty)

    @abstractmethod
    def class_scores(self, probabilities: Tensor) -> Tensor:
        """The score of every class, (..., classes): larger where the class conforms less to the prediction."""

    def fit(self, p: Probabilities, y: Any) -> ConformalSets:
        """Keep the scores of held-out predictions `p` with their labels `y`."""
        probabilities, y, _ = check_predictions(p, y)
        self.scores = self.class_scores(probabilities).gather(1, y[:, None]).squeeze(1).sort().values
        return self

    def sets(self, p: Probabilities, alpha: float = 0.1) -> Tensor:
        """The classes in the sets of predictions `p`, (n, classes), which miss with a chance of at most `alpha`."""
        bound, probabilities = self.bound(alpha), check_probabilities(p)
        chosen = self.class_scores(probabilities) <= bound
        if self.nonempty:
            chosen.scatter_(-1, probabilities.argmax(-1, keepdim=True), True)
        return chosen


class LAC(ConformalSets):
    """Least ambiguous sets: every class with a probability of at least 1 − q (Sadinle, Lei, Wasserman 2019).

    The score is 1 − p(c|x). These sets are the smallest on average, but hard inputs are covered less often than easy
    ones. A set is empty where no class is probable enough.

    Args:
        nonempty: Put the most probable class into every set. Coverage can only grow, so its upper bound is lost.
        scores: Scores of the held-out rows, (n,); None until `fit` has computed them.
    """

    def class_scores(self, probabilities: Tensor) -> Tensor:
        """1 − p(c|x)."""
        return 1 - probabilities


class APS(ConformalSets):
    """Adaptive sets: the most probable classes, up to a total probability of q (Romano, Sesia, Candès 2020).

    The score of class c is the sum of the probabilities of c and all classes before it, the most probable first. Sets
    are larger than LAC's, but grow more where the model is unsure. The least probable class has a score of 1 in every
    row; these ties may raise the coverage above its upper bound. With `randomized`, the score is reduced by u p(c|x),
    u uniform on [0, 1): a hash of the row's probabilities, so that sets depend neither on a seed nor on other rows. A
    difference in the last bit, as between devices, gives another u.

    Args:
        randomized: Reduce scores at random, for smaller sets.
        nonempty: Put the most probable class into every set. Coverage can only grow, so its upper bound is lost.
        scores: Scores of the held-out rows, (n,); None until `fit` has computed them.
    """

    def __init__(self, randomized: bool = False, nonempty: bool = False, scores: Any = None) -> None:
        super().__init__(nonempty, scores)
        self.randomized = bool(randomized)

    def class_scores(self, probabilities: Tensor) -> Tensor:
        """Σ p(c'|x) over c and the more probable classes c', minus u p(c|x) if randomized."""
        ordered, order = probabilities.sort(dim=-1, descending=True, stable=True)
        sums = ordered.cumsum(-1).clamp_max(1)
        sums[..., -1] = 1  # rounding would break the ties between rows at random
        totals = torch.empty_like(sums).scatter_(-1, order, sums)
        return totals - uniform_hash(probabilities)[..., None] * probabilities if self.randomized else totals


def uniform_hash(rows: Tensor) -> Tensor:
    """A number in [0, 1) for each row of (..., classes): uniform over rows that differ, the same for the same row."""
    flat = rows.reshape(-1, rows.shape[-1]).numpy()
    digests = (hashlib.blake2b(row.tobytes(), digest_size=_HASH_BYTES).digest() for row in flat)
    integers = [int.from_bytes(digest, "little") for digest in digests]
    return (torch.tensor(integers, dtype=torch.float64) / 2 ** (8 * _HASH_BYTES)).reshape(rows.shape[:-1])


class Intervals(NamedTuple):
    """An interval per input and target; a target on the edge is inside.

    Attributes:
        lower: Lower ends, (n, targets).
        upper: Upper ends, (n, targets).
    """

    lower: Tensor
    upper: Tensor

    @property
    def width(self) -> Tensor:
        """Upper minus lower end, (n, targets)."""
        return self.upper - self.lower


class ConformalIntervals(Conformal):
    """Intervals E[y] ± q √Var[y], with q a quantile of |y − E[y]| / √Var[y] over the held-out rows.

    They widen where the prediction is unsure.

    Args:
        scores: |y − E[y]| / √Var[y] of the held-out rows, (n, targets); None until `fit` has computed them.
    """

    def fit(self, p: Predictive, y: Any) -> ConformalIntervals:
        """Keep the scaled residuals of held-out targets `y`; rows in which one is missing are left out."""
        p, y = check_numbers(p, y)
        complete = ~y.isnan().any(1)
        if not bool(complete.any()):
            raise InvalidInputError("no held-out row has all targets: intervals need rows without missing ones.")
        mean, std = _moments(p[complete])
        self.scores = ((y[complete] - mean).abs() / std).sort(dim=0).values
        return self

    def intervals(self, p: Predictive, alpha: float = 0.1) -> Intervals:
        """The intervals of predictions `p`, in their units, which miss with a chance of at most `alpha`."""
        bound, (mean, std) = self.bound(alpha), _moments(check_numeric(p))
        return Intervals(mean - bound * std, mean + bound * std)


def _moments(p: Predictive) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of y, (n, targets), the latter above 0."""
    std = p.std
    if not bool((std > 0).all()):
        raise InvalidInputError("p has a standard deviation of 0: intervals need positive ones.")
    return p.mean, std
