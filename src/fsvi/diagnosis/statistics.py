"""The statistics of the verdict: functions of held-out predictions only, which can be tested without training."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats

from fsvi.diagnosis.findings import Finding, Level, shown

LEVELS = (0.5, 0.95)
"""Intervals whose coverage is tested."""
LEAST = 1e-12
_SWAPS = 20
ALPHA = 0.01
"""The false-alarm rate of every test."""
_BINS, _ROWS_PER_BIN = 10, 20
_SEVERE = 0.15
"""Overconfidence by more than this is a reason not to rely on the model."""
_HINT, _PERMUTATIONS = 0.1, 199
"""The p-value up to which a relation is a sign that columns say something, and the permutations that it comes from."""
_STEPS = np.linspace(0.05, 0.95, 19)
_MOST_RELATED, _MOST_PAIRED = 5_000, 50
"""Rows that relations are looked for in, and columns whose products are among them."""
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


# Better than guessing? ------------------------------------------------------------------------------------------------


class Relation(NamedTuple):
    """What is most clearly related to the target, in words; the t value, and the p-value corrected for all tests."""

    words: str
    t: float
    p: float


def check_useful(seen: HeldOut, relation: Relation) -> Finding:
    """Compare with guessing."""
    gain, loss, score = seen.gain, Paired.test(seen.guess_loss - seen.loss), seen.score
    numbers = {**gain._asdict(), "loss_p": loss.p}
    level: Level = "care"
    advice = "Collect more rows or better columns."
    if gain.p <= ALPHA and loss.gain > 0:
        level, advice = "ok", ""
        sentence = f"It predicts better than guessing: the log-likelihood gains {gain}. {score}"
    elif gain.p <= ALPHA:
        sentence = f"Its probabilities are better than guessing, {gain}, but its point predictions are not. {score}"
    elif loss.p <= ALPHA:
        sentence = f"Its point predictions are better than guessing. {score} Its probabilities are not: {gain}."
        advice = "Calibrate it on held-out data, or train it with fewer epochs."
    elif relation.p <= _HINT:
        sentence = (
            f"{relation.words} may say something about the target (t = {relation.t:.1f}, p = {relation.p:.3g}), but "
            f"this model shows no certain gain over guessing: {gain}. {score}"
        )
    else:
        level = "no"
        sentence = f"There is no sign that it predicts better than guessing: the log-likelihood gains {gain}. {score}"
    return Finding("useful", level, sentence, advice, numbers)


def strongest_relation(x: Array, y: Array, names: Sequence[str]) -> Relation:
    """The largest correlation of targets, or their ranks, with columns, squares, steps and products of columns.

    Its p-value comes from permuted targets, so it accounts for the number of tests and for heavy tails.
    """
    generator = np.random.default_rng(0)
    rows = generator.permutation(len(x))[:_MOST_RELATED]
    words, features = _simple_features(x[rows], names)
    targets = _standardized(np.column_stack([y[rows], stats.rankdata(y[rows], axis=0)]))
    found = np.abs(features.T @ targets).max(1) / len(rows)
    best = int(found.argmax())
    others = [
        float(np.abs(features.T @ targets[generator.permutation(len(rows))]).max()) / len(rows)
        for _ in range(_PERMUTATIONS)
    ]
    p = float(1 + sum(other >= found[best] for other in others)) / (1 + _PERMUTATIONS)
    t = found[best] * np.sqrt((len(rows) - 2) / max(1 - found[best] ** 2, 1e-12))
    return Relation(words[best], float(t), p)


def _simple_features(x: Array, names: Sequence[str]) -> tuple[list[str], Array]:
    """Simple functions of columns that a target may depend on, standardized, and what they are in words."""
    num, count = x.shape
    z = _standardized(x)
    words, features = [f"Column {name!r}" for name in names], [z]
    if num > 3 * count + 10:
        words += [f"Column {name!r} next to the others" for name in names]
        features.append(z @ np.linalg.pinv(z.T @ z))
    words += [f"The square of {name!r}" for name in names]
    features.append(z**2)
    for at, name in enumerate(names):
        cuts = np.unique(np.quantile(x[:, at], _STEPS, method="inverted_cdf"))
        words += [f"Whether {name!r} is above {cut:.4g}" for cut in cuts]
        features.append(x[:, at, None] > cuts)
    by_values = np.argsort([-len(np.unique(column)) for column in x.T], kind="stable")[:_MOST_PAIRED]
    for place, first in enumerate(by_values):
        seconds = by_values[place + 1 :]
        words += [f"The product of {names[first]!r} and {names[second]!r}" for second in seconds]
        features.append(z[:, first, None] * z[:, seconds])
    return words, _standardized(np.column_stack(features))


def _standardized(x: Array) -> Array:
    """Columns with mean 0 and standard deviation 1; constant ones become 0."""
    centered = x - x.mean(0)
    std = centered.std(0)
    return (centered / np.where(std > 1e-9 * (1 + np.abs(x).max(0)), std, np.inf)).astype(np.float32)


# Promises -------------------------------------------------------------------------------------------------------------


class Promise(NamedTuple):
    """A probability that was promised for `num` rows, in words and as a number, and for how many it came true."""

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


def promises(seen: HeldOut) -> list[Promise]:
    """What was promised: for numbers, intervals; for classes, probabilities, in groups of similar ones."""
    num = len(seen.kept)
    if not seen.is_classes:
        shares = zip(LEVELS, seen.kept.sum(0).tolist(), strict=True)
        return [Promise(f"{level:.0%} intervals", level, kept, num) for level, kept in shares]
    confidence, hits = seen.promised[:, 0], seen.kept[:, 0]
    groups = np.array_split(np.argsort(confidence, kind="stable"), max(1, min(_BINS, num // _ROWS_PER_BIN)))
    found = [Promise("predicted classes", float(confidence.mean()), float(hits.sum()), num)]
    for group in groups if len(groups) > 1 else []:
        mean = float(confidence[group].mean())
        words = f"classes with a probability of about {mean:.0%}"
        found.append(Promise(words, mean, float(hits[group].sum()), len(group)))
    return found


def check_calibration(seen: HeldOut) -> Finding:
    """Test every promise in both directions; all tests together have one false alarm in a hundred."""
    found = promises(seen)
    alpha = ALPHA / len(found)
    worst = max(found, key=lambda each: (abs(each.gap(alpha)), abs(each.kept / each.num - each.promised)))
    gap, (low, high), kept = worst.gap(alpha), worst.interval(alpha), worst.kept / worst.num
    words = (
        f"{worst.words} promise {worst.promised:.1%} and hold for {kept:.1%} of {worst.num} rows "
        f"({1 - alpha:.1%} interval {low:.1%} to {high:.1%})"
    )
    numbers = {"promised": worst.promised, "kept": kept, "low": low, "high": high}
    if gap == 0:
        sentence = f"Promises are kept; the least exact of {len(found)}: the {words}."
        return Finding("calibration", "ok", sentence, numbers=numbers)
    level: Level = "no" if gap < 0 and worst.promised - kept > _SEVERE else "care"
    sentence = f"The {words}: the model is {'too sure' if gap < 0 else 'not sure enough'}."
    return Finding("calibration", level, sentence, "Calibrate it on held-out data.", numbers)


# Rows in order of time ------------------------------------------------------------------------------------------------


def check_order(seen: HeldOut, order: Array, y: Array) -> Finding | None:
    """Test whether neighboring rows resemble each other beyond what the columns explain, as rows in time order do.

    Rows that are sorted by the target say nothing about time.
    """
    order = np.argsort(order)
    if _is_sorted(y[order]):
        return None
    r = seen.residuals[order] - seen.residuals.mean(0)
    products = (r[1:] * r[:-1]).sum(1)
    p = float(stats.norm.sf(products.sum() / max(np.sqrt((products**2).sum()), 1e-300)))
    correlation = float(products.sum() / max((r**2).sum(), 1e-300))
    numbers = {"correlation": correlation, "p": p}
    if p > ALPHA / 10:
        sentence = f"The errors of neighboring rows are not related (correlation {correlation:+.2f})."
        return Finding("order", "ok", sentence, numbers=numbers)
    sentence = (
        f"The errors of neighboring rows resemble each other (correlation {correlation:+.2f}), as in rows in order of "
        "time: random test rows are then easier than future ones."
    )
    return Finding("order", "care", sentence, 'If the order is time, check with time="rows" (--time rows).', numbers)


def _is_sorted(y: Array) -> bool:
    """Whether equal targets stand next to each other, or targets only rise or only fall."""
    y = np.unique(y.reshape(len(y), -1)[:, 0], return_inverse=True)[1]
    steps, values = np.diff(y), y.max() + 1
    in_blocks = 2 * values < len(y) and int((steps != 0).sum()) < values
    return bool(in_blocks or (steps >= 0).all() or (steps <= 0).all())
