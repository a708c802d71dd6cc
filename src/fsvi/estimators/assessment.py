"""Whether to trust a model of a table: what it gets right, how honest it is, and what it says about unfamiliar rows.

Everything is measured on rows that were not used for training, next to `MAP` on the same network.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fsvi.estimators.base import Estimator
from fsvi.estimators.classifier import FSVIClassifier
from fsvi.estimators.regressor import FSVIRegressor
from fsvi.metrics import accuracy, coverage, ece, nll, reliability, rmse
from fsvi.tables import CategoryColumn, Column, NumberColumn, Table, TableEncoder
from fsvi.tables.columns import UNKNOWN

SHIFTS = (-8.0, -4.0, -2.0, -1.0, 0.0, 1.0, 2.0, 4.0, 8.0)
"""How far columns are moved, in standard deviations."""
LEVELS = (0.5, 0.8, 0.9, 0.95)
"""Levels of intervals whose coverage is measured."""
_MOVED_ROWS = 200
_FAR = 8.0
_ALPHA = 0.05
_LISTED = 3
_RELIABILITY_BINS = 10
_ROWS_PER_BIN = 20
_SIMULATIONS = 100
_SLACK = 0.02
"""A calibration error this much beyond chance does no harm."""
_TOGETHER = {"classes": 0.85, "numbers": 0.7}
"""What uncertainty must reach with all columns 8 standard deviations away: a share of the largest entropy, or of the
targets' standard deviation."""
_SIMILAR = {"classes": 0.02, "numbers": 0.1}
"""An NLL that is larger by up to this many nats, or by a tenth, counts as the same: the NLL of real numbers
depends on their unit and may be close to 0."""
_ALONE = {"classes": (0.6, 0.3), "numbers": (2.0, 1.25)}
"""What it must reach with one column that far away, on average over columns and for each: a share of the largest
entropy, or a multiple of the standard deviation on the data."""


@dataclass(frozen=True)
class Check:
    """One reason to trust the model, or not to.

    Args:
        name: What is asked.
        passed: The answer.
        sentence: What was measured.
    """

    name: str
    passed: bool
    sentence: str


@dataclass(frozen=True)
class Growth:
    """How uncertainty changes when one column leaves the data.

    Args:
        name: The column.
        shifts: How far it was moved, in standard deviations; for categories (0, 1): a known and an unknown one.
        levels: For each model, the mean uncertainty at each shift: the share of the largest entropy, or the standard
            deviation in units of the targets'.
        reached: The model's uncertainty at the farther of these, or for numbers its multiple of that on the data.
        is_noticed: Whether that is enough.
    """

    name: str
    shifts: Sequence[float]
    levels: Mapping[str, Sequence[float]]
    reached: float
    is_noticed: bool


@dataclass(frozen=True)
class ReferredRow:
    """A held-out row that the model is least sure of.

    Args:
        line: Its line in the file.
        predicted: What the model predicts.
        sure: How sure it is: a probability, or an interval.
        actual: The truth.
        is_wrong: Whether the prediction, or the interval, misses it.
    """

    line: int
    predicted: str
    sure: str
    actual: str
    is_wrong: bool


@dataclass(frozen=True)
class Assessment:
    """All that was measured.

    Args:
        task: "classification" or "regression".
        num_rows: Held-out rows.
        metrics: For each model and for guessing, numbers by name.
        checks: Reasons to trust the model or not.
        reliability: For each model, points (promised, observed): confidence and accuracy, or nominal and actual
            coverage.
        referral: Points (share of rows referred, error among the others).
        referred: The rows that the model is least sure of.
        growth: For each column, what happens when it leaves the data.
        together: For each model and each way to move all columns by 8 standard deviations, the uncertainty.
    """

    task: str
    num_rows: int
    metrics: dict[str, dict[str, float]]
    checks: list[Check]
    reliability: dict[str, list[tuple[float, float]]]
    referral: list[tuple[float, float]]
    referred: list[ReferredRow]
    growth: list[Growth]
    together: dict[str, dict[str, float]]

    @property
    def verdict(self) -> str:
        """One of "trust", "care" and "no"."""
        if not self.checks[0].passed:
            return "no"
        return "trust" if all(check.passed for check in self.checks) else "care"

    @property
    def headline(self) -> str:
        """The verdict in one sentence."""
        failed = [check.name for check in self.checks if not check.passed]
        if self.verdict == "no":
            return "Do not trust this model: it predicts no better than a guess."
        if self.verdict == "care":
            return f"Use this model with care: {len(failed)} of {len(self.checks)} checks failed."
        return "You can trust this model for rows like those it was trained on, and its doubts about others."


def assess(models: Mapping[str, Any], table: Table, y: NDArray[Any], num_referred: int = 10) -> Assessment:
    """Measure fitted estimators on held-out rows. The first one is the model in question.

    Args:
        models: Fitted classifiers or regressors, by name; the second is compared with.
        table: Held-out rows.
        y: Their labels or targets.
        num_referred: How many of the most uncertain rows to list.
    """
    first = next(iter(models.values()))
    task = _Classes(first, y) if isinstance(first, FSVIClassifier) else _Numbers(first, y)
    predictions = {name: model.predictive(table) for name, model in models.items()}
    metrics = {name: {**task.metrics(p), **task.promised(models[name], table)} for name, p in predictions.items()}
    metrics["guess"] = task.guess()
    growth, together = _leave(models, task, table)
    main = next(iter(models))
    return Assessment(
        task=task.name,
        num_rows=len(table),
        metrics=metrics,
        checks=_checks(task, list(models), predictions[main], metrics, growth, together[main]),
        reliability={name: task.reliability(p) for name, p in predictions.items()},
        referral=task.referral(predictions[main]),
        referred=_least_sure(task, predictions[main], table, num_referred),
        growth=growth,
        together=together,
    )


class _Classes:
    """How classification is measured."""

    name, kind = "classification", "classes"

    def __init__(self, model: FSVIClassifier, y: NDArray[Any]) -> None:
        self.model = model
        self.y = torch.as_tensor(model._as_indices(y))

    def metrics(self, p: Any) -> dict[str, float]:
        return {"accuracy": accuracy(p, self.y), "nll": nll(p, self.y), "ece": ece(p, self.y, _RELIABILITY_BINS)}

    def promised(self, model: Any, table: Table) -> dict[str, float]:
        """How often calibrated sets hold the truth, and how large they are."""
        if not model._is_conformal:
            return {}
        sets = torch.as_tensor(model.predict_set(table, _ALPHA))
        hits = sets[torch.arange(len(self.y)), self.y].double()
        return {"conformal": float(hits.mean()), "set_size": float(sets.sum(1).double().mean())}

    def guess(self) -> dict[str, float]:
        """Always the same probabilities: the held-out rows' own frequencies, which no guess beats."""
        shares = torch.bincount(self.y, minlength=len(self.model.classes_)).double() / len(self.y)
        return {"accuracy": float(shares.max()), "nll": float(torch.special.entr(shares).sum())}

    def level(self, p: Any) -> Tensor:
        return p.entropy() / math.log(len(self.model.classes_))

    def errors(self, p: Any) -> Tensor:
        return (p.labels() != self.y).double()

    def reliability(self, p: Any) -> list[tuple[float, float]]:
        bins = max(2, min(_RELIABILITY_BINS, len(self.y) // _ROWS_PER_BIN))
        found = reliability(p, self.y, bins, adaptive=True)
        return [(float(c), float(a)) for c, a in zip(found.confidence, found.accuracy, strict=True) if c == c]

    def referral(self, p: Any) -> list[tuple[float, float]]:
        return _referral(p.score, self.errors(p), lambda mean: mean)

    def honest(self, metrics: dict[str, float], p: Any) -> Check:
        """The calibration error next to what it would be for labels drawn from the model's own probabilities."""
        generator = torch.Generator().manual_seed(0)
        probabilities = p.mean.double()
        drawn = (torch.multinomial(probabilities, 1, generator=generator)[:, 0] for _ in range(_SIMULATIONS))
        errors = torch.tensor([ece(p, labels, _RELIABILITY_BINS) for labels in drawn])
        tolerance = _SLACK + float(errors.quantile(0.95))
        sentence = (
            f"Predicted probabilities differ from observed frequencies by {metrics['ece']:.3f} on average; "
            f"up to {tolerance:.3f} can be chance with {len(self.y)} rows."
        )
        return Check("Are its probabilities right?", metrics["ece"] <= tolerance, sentence)

    def useful(self, metrics: Mapping[str, dict[str, float]], name: str) -> Check:
        own, guess = metrics[name], metrics["guess"]
        sentence = f"It is right for {own['accuracy']:.1%} of held-out rows; always guessing the most frequent class, "
        by_chance = 2 * math.sqrt(0.25 / len(self.y))
        passed = own["nll"] < guess["nll"] or own["accuracy"] > guess["accuracy"] + by_chance
        return Check("Does it beat guessing?", passed, f"{sentence}for {guess['accuracy']:.1%}.")

    def row(self, p: Any, at: int) -> tuple[str, str, str, bool]:
        best = int(p.labels()[at])
        classes = self.model.classes_
        actual = int(self.y[at])
        return str(classes[best]), f"{float(p.mean[at, best]):.0%}", str(classes[actual]), best != actual

    def reached(self, on_data: float, far: float) -> float:
        return far


class _Numbers:
    """How regression is measured."""

    name, kind = "regression", "numbers"

    def __init__(self, model: FSVIRegressor, y: NDArray[Any]) -> None:
        self.model = model
        self.y = torch.as_tensor(np.asarray(y, dtype=np.float64)).reshape(len(y), -1)
        self.scale = torch.as_tensor(model.target_scaler_.scale_)

    def metrics(self, p: Any) -> dict[str, float]:
        y = self.y
        log_density = float(p.log_prob(y).mean())
        return {"rmse": rmse(p, y), "nll": -log_density, **{f"coverage_{v:g}": coverage(p, y, v) for v in LEVELS}}

    def promised(self, model: Any, table: Table) -> dict[str, float]:
        """How often calibrated intervals hold the truth."""
        if not model._is_conformal:
            return {}
        low, high = (torch.as_tensor(end).reshape(self.y.shape) for end in model.predict_interval(table, _ALPHA))
        return {"conformal": float(((low <= self.y) & (self.y <= high)).double().mean())}

    def guess(self) -> dict[str, float]:
        """Always the held-out rows' own mean and standard deviation, which no guess beats."""
        variance = self.y.var(0, correction=0)
        entropy = 0.5 * (2 * math.pi * math.e * variance).log().sum()
        return {"rmse": float(variance.mean().sqrt()), "nll": float(entropy)}

    def level(self, p: Any) -> Tensor:
        return (p.variance.sqrt() / self.scale).mean(1)

    def errors(self, p: Any) -> Tensor:
        return (p.mean - self.y).square().mean(1)

    def reliability(self, p: Any) -> list[tuple[float, float]]:
        return [(level, coverage(p, self.y, level)) for level in LEVELS]

    def referral(self, p: Any) -> list[tuple[float, float]]:
        return _referral(p.score, self.errors(p), math.sqrt)

    def honest(self, metrics: dict[str, float], p: Any) -> Check:
        """The coverage of 95% intervals, next to what chance can make of it."""
        found, tolerance = metrics["coverage_0.95"], 0.03 + 2 * math.sqrt(0.05 * 0.95 / len(self.y))
        sentence = (
            f"95% intervals hold {found:.1%} of held-out targets; between {0.95 - tolerance:.1%} and "
            f"{min(1.0, 0.95 + tolerance):.1%} is fine with {len(self.y)} rows."
        )
        return Check("Are its intervals right?", abs(found - 0.95) <= tolerance, sentence)

    def useful(self, metrics: Mapping[str, dict[str, float]], name: str) -> Check:
        own, guess = metrics[name]["rmse"], metrics["guess"]["rmse"]
        sentence = f"Its typical error is {own:.4g}; always guessing the mean, it would be {guess:.4g}."
        return Check("Does it beat guessing?", own < 0.95 * guess, sentence)

    def row(self, p: Any, at: int) -> tuple[str, str, str, bool]:
        mean, std, actual = float(p.mean[at, 0]), float(p.variance[at, 0].sqrt()), float(self.y[at, 0])
        low, high = mean - 1.96 * std, mean + 1.96 * std
        shown = [f"{value:.4g}".replace("-", "−") for value in (mean, low, high, actual)]
        return shown[0], f"{shown[1]} to {shown[2]}", shown[3], not low <= actual <= high

    def reached(self, on_data: float, far: float) -> float:
        return far / on_data


def _checks(
    task: Any,
    names: Sequence[str],
    prediction: Any,
    metrics: Mapping[str, dict[str, float]],
    growth: Sequence[Growth],
    together: Mapping[str, float],
) -> list[Check]:
    main = names[0]
    checks = [task.useful(metrics, main), task.honest(metrics[main], prediction)]
    if len(names) > 1:
        own, other = metrics[main]["nll"], metrics[names[1]]["nll"]
        sentence = (
            f"NLL {own:.3f}, against {other:.3f} for {names[1]}, one network without uncertainty (less is better)."
        )
        passed = own <= other + max(0.1 * abs(other), _SIMILAR[task.kind])
        checks.append(Check(f"Is it as good as {names[1]} on familiar rows?", passed, sentence))
    least, bar = min(together, key=lambda way: together[way]), _TOGETHER[task.kind]
    unit = "of the largest possible entropy" if task.kind == "classes" else "of the targets' standard deviation"
    sentence = (
        f"With all columns 8 standard deviations away ({least}), its uncertainty is {together[least]:.2f} {unit}; "
        f"{bar:g} is asked for."
    )
    checks.append(Check("Does it notice rows far from all data?", together[least] >= bar, sentence))
    return [*checks, _column_check(task, growth)]


def _column_check(task: Any, growth: Sequence[Growth]) -> Check:
    missed = [each.name for each in growth if not each.is_noticed]
    mean, bar = float(np.mean([each.reached for each in growth])), _ALONE[task.kind][0]
    unit = "of the largest possible entropy" if task.kind == "classes" else "times that on the data"
    sentence = f"With one of the {len(growth)} columns far away, its uncertainty is {mean:.2f} {unit} on average; "
    sentence += f"{bar:g} is asked for."
    if missed:
        more = f" and {len(missed) - _LISTED} more" if len(missed) > _LISTED else ""
        sentence += f" It stays sure when these leave the data: {', '.join(missed[:_LISTED])}{more}."
    return Check("Does it notice a single strange column?", mean >= bar and not missed, sentence)


def _leave(
    models: Mapping[str, Estimator], task: Any, table: Table
) -> tuple[list[Growth], dict[str, dict[str, float]]]:
    """Move columns of held-out rows outward, one by one and all together."""
    index = np.linspace(0, len(table) - 1, min(len(table), _MOVED_ROWS)).round().astype(int)
    rows = table.take(index)
    inputs = {name: model._inputs(rows) for name, model in models.items()}
    growth = []
    encoder = next(iter(models.values())).encoder_
    for column, places in _places(encoder):
        if isinstance(column, NumberColumn) and column.is_constant:
            continue
        is_category = isinstance(column, CategoryColumn)
        shifts = (0.0, 1.0) if is_category else SHIFTS
        levels = {
            name: _levels(model, task, [_moved(model, inputs[name], places, shift, is_category) for shift in shifts])
            for name, model in models.items()
        }
        own = next(iter(levels.values()))
        on_data = own[shifts.index(0.0)]
        far = own[-1] if is_category else min(own[0], own[-1])
        reached = task.reached(on_data, far)
        growth.append(Growth(column.name, shifts, levels, reached, reached >= _ALONE[task.kind][1]))
    together = {name: _together(model, task, inputs[name]) for name, model in models.items()}
    return growth, together


def _places(encoder: TableEncoder) -> list[tuple[Column, list[int]]]:
    """Each column with its places among the network's inputs."""
    ends = np.cumsum([len(column.outputs) for column in encoder.columns]).tolist()
    return [
        (column, list(range(end - len(column.outputs), end))) for column, end in zip(encoder.columns, ends, strict=True)
    ]


def _moved(model: Estimator, inputs: Tensor, places: list[int], shift: float, is_category: bool) -> Tensor:
    """Standardized inputs with one column moved; a category is replaced by one that was never seen."""
    moved = inputs.clone()
    if not is_category:
        moved[:, places[0]] += shift
    elif shift:
        unknown = torch.as_tensor((UNKNOWN - model.scaler_.mean_) / model.scaler_.scale_)
        moved[:, places] = unknown[places]
    return moved


def _together(model: Estimator, task: Any, inputs: Tensor) -> dict[str, float]:
    """Numbers and dates 8 standard deviations away in three ways, and all categories unknown."""
    movable = torch.zeros(inputs.shape[1], dtype=inputs.dtype)
    for column, places in _places(model.encoder_):
        if isinstance(column, CategoryColumn):
            inputs = _moved(model, inputs, places, 1.0, True)
        elif not (isinstance(column, NumberColumn) and column.is_constant):
            movable[places[0]] = _FAR
    signs = torch.randint(2, inputs.shape, generator=torch.Generator().manual_seed(0)) * 2.0 - 1.0
    ways: dict[str, Tensor] = {"all up": movable, "all down": -movable, "each its own way": movable * signs}
    return dict(zip(ways, _levels(model, task, [inputs + shift for shift in ways.values()]), strict=True))


def _levels(model: Estimator, task: Any, sets: Sequence[Tensor]) -> list[float]:
    """The mean uncertainty of each set of inputs."""
    p = model._calibrated(model._in_target_units(model._predict(torch.cat(list(sets)), model.num_samples)))
    return [float(part.mean()) for part in task.level(p).chunk(len(sets))]


def _referral(uncertainty: Tensor, errors: Tensor, summary: Any) -> list[tuple[float, float]]:
    """The error among rows that are kept when the most uncertain tenth, two tenths, … are referred."""
    order = uncertainty.argsort()
    counts = [max(1, round(len(order) * (1 - tenth / 10))) for tenth in range(10)]
    return [(tenth / 10, summary(float(errors[order[:count]].mean()))) for tenth, count in enumerate(counts)]


def _least_sure(task: Any, p: Any, table: Table, most: int) -> list[ReferredRow]:
    order = p.score.argsort(descending=True)[:most].tolist()
    return [ReferredRow(int(table.lines[at]), *task.row(p, at)) for at in order]
