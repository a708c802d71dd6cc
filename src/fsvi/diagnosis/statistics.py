"""The statistics of the verdict: functions of held-out predictions only, which can be tested without training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from fsvi.diagnosis.findings import Finding, Level

ALPHA = 0.01
"""The false-alarm rate of every test."""
_BINS, _ROWS_PER_BIN = 10, 20
_SEVERE = 0.15
"""Overconfidence by more than this is a reason not to rely on the model."""
Array = NDArray[Any]


@dataclass(frozen=True)
class HeldOut:
    """What a model said about rows that it was not trained on; one entry per row.

    Args:
        log_prob: log p(y|x).
        swapped: The log of the mean density of y over predictions for other rows: how well the model does without x.
        guess: log p(y) of the best constant prediction on the training rows.
        loss: 1 for a wrong class, or the squared error.
        guess_loss: The same for the constant prediction.
        residuals: The truth minus the prediction, (n, classes) or (n, targets).
    """

    log_prob: Array
    swapped: Array
    guess: Array
    loss: Array
    guess_loss: Array
    residuals: Array


@dataclass(frozen=True)
class Promise:
    """A probability, and how often it came true.

    Args:
        words: What was promised, such as "95% intervals".
        promised: The probability.
        kept: The number of rows for which it came true.
        num: The number of rows.
    """

    words: str
    promised: float
    kept: float
    num: int

    def interval(self, alpha: float) -> tuple[float, float]:
        """The Clopper–Pearson interval of the true probability."""
        kept, missed = self.kept, self.num - self.kept
        low = stats.beta.ppf(alpha / 2, kept, missed + 1) if kept > 0 else 0.0
        high = stats.beta.isf(alpha / 2, kept + 1, missed) if missed > 0 else 1.0
        return float(low), float(high)

    def gap(self, alpha: float) -> float:
        """How far outside of its margin it certainly is: negative if too few were kept, positive if too many."""
        low, high = self.interval(alpha)
        margin = max(0.025, 0.2 * self.promised * (1 - self.promised))
        return min(high - self.promised + margin, 0.0) or max(low - self.promised - margin, 0.0)


def class_promises(confidence: Array, hits: Array) -> list[Promise]:
    """Rows in groups of similar confidence, with the number of hits of each."""
    groups = np.array_split(np.argsort(confidence, kind="stable"), max(1, min(_BINS, len(hits) // _ROWS_PER_BIN)))
    found = [Promise("predicted classes", float(confidence.mean()), float(hits.sum()), len(hits))]
    for group in groups if len(groups) > 1 else []:
        mean = float(confidence[group].mean())
        words = f"classes with a probability of about {mean:.0%}"
        found.append(Promise(words, mean, float(hits[group].sum()), len(group)))
    return found


def interval_promises(kept: dict[float, Array]) -> list[Promise]:
    """How often intervals hold the truth."""
    return [
        Promise(f"{level:.0%} intervals", level, float(held.reshape(len(held), -1).mean(1).sum()), len(held))
        for level, held in kept.items()
    ]


def check_calibration(promises: Sequence[Promise]) -> Finding:
    """Test every promise in both directions; all tests together have one false alarm in a hundred."""
    alpha = ALPHA / len(promises)
    worst = max(
        promises, key=lambda promise: (abs(promise.gap(alpha)), abs(promise.kept / promise.num - promise.promised))
    )
    gap, (low, high) = worst.gap(alpha), worst.interval(alpha)
    kept = worst.kept / worst.num
    sentence = (
        f"The {worst.words} promise {worst.promised:.1%} and hold for {kept:.1%} of {worst.num} rows "
        f"({1 - alpha:.1%} interval {low:.1%} to {high:.1%})"
    )
    numbers = {"promised": worst.promised, "kept": kept, "low": low, "high": high}
    if gap == 0:
        sentence = f"Promises are kept; the least exact of {len(promises)}: {sentence[0].lower()}{sentence[1:]}."
        return Finding("calibration", "ok", sentence, numbers=numbers)
    level: Level = "no" if gap < 0 and worst.promised - kept > _SEVERE else "care"
    kind = "too sure" if gap < 0 else "not sure enough"
    return Finding("calibration", level, f"{sentence}: the model is {kind}.", "Calibrate it on held-out data.", numbers)


@dataclass(frozen=True)
class Paired:
    """A paired comparison: the mean gain per row, its 95% interval, and the p-value of "no gain"."""

    mean: float
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


@dataclass(frozen=True)
class Relation:
    """The column that is most clearly related to the target in plain linear tests, and the corrected p-value."""

    name: str
    t: float
    p: float


def check_useful(seen: HeldOut, relation: Relation | None, score: str) -> Finding:
    """Compare with guessing: with the best constant, and with the model's own predictions dealt to other rows.

    If the columns say nothing about the target, the second comparison cannot be won in expectation, whatever shape the
    predictive distribution has (Jensen's inequality). Both must be won.
    """
    constant, own, loss = (
        Paired.test(gain)
        for gain in (seen.log_prob - seen.guess, seen.log_prob - seen.swapped, seen.guess_loss - seen.loss)
    )
    weaker = max((constant, own), key=lambda each: each.p)
    gain = f"{weaker.mean:+.3f} nats per row (95% interval {weaker.low:+.3f} to {weaker.high:+.3f})"
    numbers = {"gain": weaker.mean, "low": weaker.low, "high": weaker.high, "p": weaker.p, "loss_p": loss.p}
    if weaker.p <= ALPHA and loss.high > 0:
        return Finding(
            "useful", "ok", f"It predicts better than guessing: the log-likelihood gains {gain}. {score}", "", numbers
        )
    advice = "Collect more rows or better columns."
    if weaker.p <= ALPHA:
        words = f"Its probabilities are better than guessing, {gain}, but its point predictions are worse. {score}"
    elif loss.p <= ALPHA:
        words = f"Its point predictions are better than guessing. {score} Its probabilities are not, {gain}."
        advice = "Calibrate it on held-out data, or train it with fewer epochs."
    elif relation is not None and relation.p <= ALPHA:
        words = (
            f"Column {relation.name!r} says something about the target (t = {relation.t:.1f}), but this model has not "
            f"shown that it can use it: {gain}. {score}"
        )
    else:
        words = f"There is no sign that it predicts better than guessing: the log-likelihood gains {gain}. {score}"
        return Finding("useful", "no", words, advice, numbers)
    return Finding("useful", "care", words, advice, numbers)


def strongest_relation(x: Array, y: Array, names: Sequence[str]) -> Relation | None:
    """Plain linear tests of every column by itself and, with enough rows, next to all others."""
    kept = np.flatnonzero(x.std(0) > 0)
    if not len(kept) or len(x) < 8:
        return None
    x, y = x[:, kept] - x[:, kept].mean(0), y - y.mean(0)
    num = len(x)
    correlation = x.T @ y / np.sqrt((x**2).sum(0)[:, None] * np.maximum((y**2).sum(0), 1e-300))
    t = [correlation * np.sqrt((num - 2) / np.maximum(1 - correlation**2, 1e-12))]
    freedom = [num - 2]
    if num > 3 * len(kept) + 10:
        inverse = np.linalg.pinv(x.T @ x)
        weights = inverse @ x.T @ y
        left = ((y - x @ weights) ** 2).sum(0) / (num - len(kept) - 1)
        t.append(weights / np.sqrt(np.maximum(np.diag(inverse)[:, None] * left, 1e-300)))
        freedom.append(num - len(kept) - 1)
    p = np.stack([2 * stats.t.sf(np.abs(each), degrees) for each, degrees in zip(t, freedom, strict=True)])
    at = np.unravel_index(p.argmin(), p.shape)
    return Relation(names[kept[at[1]]], float(abs(t[at[0]][at[1:]])), float(min(1.0, p.min() * p.size)))


def check_order(seen: HeldOut, order: Array, y: Array) -> Finding | None:
    """Test whether neighboring rows resemble each other beyond what the columns explain, as rows in time order do."""
    order = np.argsort(order)
    if _is_sorted(y[order]):
        return None
    r = seen.residuals[order] - seen.residuals.mean(0)
    products = (r[1:] * r[:-1]).sum(1)
    size = float(np.sqrt((products**2).sum()))
    z = float(products.sum()) / size if size > 0 else 0.0
    p, correlation = float(stats.norm.sf(z)), float(products.sum() / max((r**2).sum(), 1e-300))
    numbers = {"correlation": correlation, "p": p}
    if p > ALPHA / 10:
        sentence = f"The errors of neighboring rows are not related (correlation {correlation:+.2f})."
        return Finding("order", "ok", sentence, numbers=numbers)
    sentence = (
        f"The errors of neighboring rows resemble each other (correlation {correlation:+.2f}), as in rows in order of "
        "time: random test rows are then easier than future ones."
    )
    return Finding("order", "care", sentence, 'If the order is time, check with time="rows".', numbers)


def _is_sorted(y: Array) -> bool:
    """Whether rows are sorted by the target, which says nothing about time."""
    y = np.unique(y.reshape(len(y), -1)[:, 0], return_inverse=True)[1]
    steps, values = np.diff(y), len(np.unique(y))
    in_blocks = 2 * values < len(y) and int((steps != 0).sum()) < values
    return in_blocks or bool((steps >= 0).all() or (steps <= 0).all())
