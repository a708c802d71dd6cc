"""What a model said about rows that it was not trained on: the numbers that the verdict is about."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats

from fsvi.diagnosis.findings import shown

LEVELS = (0.5, 0.95)
"""Intervals whose coverage is tested."""
LEAST = 1e-12
_SWAPS = 20
Array = NDArray[Any]


class Paired(NamedTuple):
    """A paired comparison: the mean gain per row, its 95% interval, and the p-value of "no gain"."""

    gain: float
    low: float
    high: float
    p: float

    @classmethod
    def test(cls, gains: Array) -> Paired:
        """A one-sided t-test of the gains of independent rows."""
        mean, error = float(gains.mean()), float(gains.std(ddof=1) / np.sqrt(len(gains)))
        if error == 0:
            return cls(mean, mean, mean, float(mean <= 0))
        reach = float(stats.t.ppf(0.975, len(gains) - 1)) * error
        return cls(mean, mean - reach, mean + reach, float(stats.t.sf(mean / error, len(gains) - 1)))

    def __str__(self) -> str:
        return f"{self.gain:+.3f} nats per row (95% interval {self.low:+.3f} to {self.high:+.3f})"


@dataclass(frozen=True)
class HeldOut:
    """What a model said about rows that it was not trained on; one entry per row."""

    log_prob: Array  # log p(y|x)
    swapped: Array  # log of the mean density of y over predictions for other rows: how well the model does without x
    guess: Array  # log p(y) of the best constant prediction on the training rows
    loss: Array  # 1 for a wrong class, or the squared error
    guess_loss: Array  # the same for the constant prediction
    residuals: Array  # the truth minus the prediction, (n, classes) or (n, targets)
    promised: Array  # for classes the probability of the predicted one, (n, 1); for numbers the `LEVELS`, (n, 2)
    kept: Array  # whether it came true; with several targets, for which share of them

    @classmethod
    def of_classes(cls, p: Array, y: Array, known: Array) -> HeldOut:
        """Probabilities (n, classes) of classes y, next to a guess that knows the classes of training rows."""
        p = np.clip(p, LEAST, 1.0)
        at, counts = np.arange(len(y)), np.bincount(known, minlength=p.shape[1]) + 1.0
        others = np.maximum(p.sum(0) - p, LEAST) / max(len(y) - 1, 1)
        is_wrong = p.argmax(1) != y
        return cls(
            log_prob=np.log(p[at, y]),
            swapped=np.log(others[at, y]),
            guess=np.log(counts / counts.sum())[y],
            loss=is_wrong.astype(float),
            guess_loss=(counts.argmax() != y).astype(float),
            residuals=(np.eye(p.shape[1])[y] - p)[:, np.argsort(-counts, kind="stable")[:2]],
            promised=p.max(1, keepdims=True),
            kept=1.0 - is_wrong[:, None],
        )

    @classmethod
    def of_numbers(cls, p: Any, y: Array, known: Array, intervals: Sequence[tuple[Any, Any]]) -> HeldOut:
        """Predictions of numbers and intervals of the `LEVELS`, next to a Gaussian fitted to training rows."""
        mean, std = known.mean(0), np.maximum(known.std(0), 1e-300)
        center, targets = np.asarray(p.mean), torch.as_tensor(y)
        shifts = {max(1, round(len(y) * step / (_SWAPS + 1))) for step in range(1, _SWAPS + 1)}
        others = [np.roll(_log_prob(p, targets.roll(-shift, 0)), shift) for shift in shifts]
        ends = [[np.asarray(end).reshape(y.shape) for end in interval] for interval in intervals]
        return cls(
            log_prob=_log_prob(p, targets),
            swapped=np.logaddexp.reduce(others, axis=0) - math.log(len(others)),
            guess=stats.norm.logpdf(y, mean, std).sum(1),
            loss=((y - center) ** 2).mean(1),
            guess_loss=((y - mean) ** 2).mean(1),
            residuals=(y - center) / std,
            promised=np.tile(LEVELS, (len(y), 1)),
            kept=np.stack([((low <= y) & (y <= high)).mean(1) for low, high in ends], 1),
        )

    @classmethod
    def joined(cls, parts: Sequence[HeldOut]) -> HeldOut:
        """All rows of several parts."""
        return cls(**{each.name: np.concatenate([getattr(part, each.name) for part in parts]) for each in fields(cls)})

    @property
    def is_classes(self) -> bool:
        """Whether these are predictions of classes."""
        return self.promised.shape[1] == 1

    @property
    def gain(self) -> Paired:
        """The log-likelihood next to guessing: the best constant, or predictions for other rows, whichever is better.

        If the inputs say nothing about the target, the second comparison cannot be won in expectation, whatever shape
        the predictive distribution has (Jensen's inequality). Both must be won.
        """
        tests = (Paired.test(self.log_prob - guess) for guess in (self.guess, self.swapped))
        return max(tests, key=lambda each: each.p)

    @property
    def metrics(self) -> dict[str, float]:
        """Error and likelihood, of the model and of guessing, and the coverage of intervals."""
        own, guess = float(self.loss.mean()), float(self.guess_loss.mean())
        scores = {"accuracy": 1 - own, "guess_accuracy": 1 - guess}
        if not self.is_classes:
            scores = {"rmse": math.sqrt(own), "guess_rmse": math.sqrt(guess)}
            scores |= {f"coverage_{100 * n:.0f}": float(self.kept[:, at].mean()) for at, n in enumerate(LEVELS)}
        nll = {"nll": -float(self.log_prob.mean()), "guess_nll": -float(self.guess.mean())}
        return {"rows": float(len(self.loss)), **scores, **nll}

    @property
    def score(self) -> str:
        """The error next to that of guessing, in words."""
        m = self.metrics
        if self.is_classes:
            words = "always guessing the most frequent class"
            return f"It is right for {m['accuracy']:.1%} of rows; {words}, {m['guess_accuracy']:.1%}."
        return f"Its typical error is {shown(m['rmse'])}; always guessing the mean, {shown(m['guess_rmse'])}."


def _log_prob(p: Any, y: torch.Tensor) -> Array:
    return np.maximum(np.asarray(p.log_prob(y), dtype=np.float64), -1e6)
