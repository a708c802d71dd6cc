"""The columns of result tables: which number is shown, how it is written, and which direction is better."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from paper.records import Result

Better: TypeAlias = Literal["higher", "lower", ""]


@dataclass(frozen=True)
class MeanOverSeeds:
    """A mean over seeds.

    Attributes:
        mean: The mean.
        error: Its standard error; None for a single seed.
        count: The number of seeds; None for the paper's values, whose number differs between its tables.
    """

    mean: float
    error: float | None
    count: int | None = None

    @classmethod
    def of(cls, values: Sequence[float]) -> MeanOverSeeds:
        """Mean x̄ and standard error s/√n, where s² = Σ(x − x̄)²/(n − 1)."""
        with np.errstate(invalid="ignore"):
            error = None if len(values) == 1 else float(np.std(values, ddof=1) / np.sqrt(len(values)))
            return cls(float(np.mean(values)), error, len(values))


@dataclass(frozen=True)
class Metric:
    """How a table shows a number.

    Attributes:
        label: Its name.
        meaning: An explanation for first-time readers.
        decimals: Digits after the point.
        unit: Text after the number.
    """

    label: str
    meaning: str
    decimals: int = 2
    unit: str = ""

    def show(self, value: float) -> str:
        """The number as text."""
        return f"{value:.{self.decimals}f}{self.unit}".replace("-", "−")


@dataclass(frozen=True)
class Column:
    """A measure of a task.

    Attributes:
        task: The task's name.
        name: The measure's name in the paper's table, and in results unless `recorded` is given.
        metric: How it is shown.
        better: Which values are better; "" if neither.
        scale: Factor from the number in a result to the unit of the table.
        recorded: Names of the measure in results; the first name that a result has is used.
        by_entropy: Names of the same measure computed from the predictive entropy, if `recorded` uses another score.
    """

    task: str
    name: str
    metric: Metric
    better: Better = ""
    scale: float = 1.0
    recorded: tuple[str, ...] = ()
    by_entropy: tuple[str, ...] = ()

    def value(self, result: Result) -> float | None:
        """The measure of one result in the table's unit; None if the result does not have it."""
        return self._first(result, self.recorded or (self.name,))

    def mean(self, results: Iterable[Result]) -> MeanOverSeeds | None:
        """The mean over those results of this task that have the measure."""
        return self._mean(results, self.recorded or (self.name,))

    def mean_by_entropy(self, results: Iterable[Result]) -> MeanOverSeeds | None:
        """The same mean computed from the predictive entropy; None if the column has no such variant."""
        return self._mean(results, self.by_entropy)

    def show(self, estimate: MeanOverSeeds) -> str:
        """The mean as text, with its standard error if there is one."""
        mean = self.metric.show(estimate.mean)
        return mean if estimate.error is None else f"{mean} ± {self.metric.show(estimate.error)}"

    def rounded(self, value: float) -> float:
        """The value with the digits that are shown."""
        return round(value, self.metric.decimals)

    def _mean(self, results: Iterable[Result], names: Sequence[str]) -> MeanOverSeeds | None:
        found = (self._first(result, names) for result in results if result.task == self.task)
        values = [value for value in found if value is not None]
        return MeanOverSeeds.of(values) if values else None

    def _first(self, result: Result, names: Sequence[str]) -> float | None:
        found = (result.metrics.get(name) for name in names)
        return next((self.scale * value for value in found if value is not None), None)


@dataclass(frozen=True)
class TableLayout:
    """The columns of a table.

    Attributes:
        title: Its name.
        columns: The measures.
        notes: Differences from the paper that concern every row.
    """

    title: str
    columns: tuple[Column, ...]
    notes: tuple[str, ...] = ()

    @property
    def tasks(self) -> list[str]:
        """The tasks of the columns."""
        return list(dict.fromkeys(column.task for column in self.columns))


def percent(task: str, name: str, label: str, meaning: str, decimals: int = 2) -> Column:
    """A share of 1, shown in percent; higher is better."""
    return Column(task, name, Metric(label, meaning, decimals), "higher", scale=100.0)


def detection(task: str, dataset: str, label: str) -> Column:
    """The AUROC for telling a dataset from the test data, by the score that the method's authors use.

    Results hold it as `auroc_own_…` and `auroc_…`; in early ones `auroc_…` is the AUROC by entropy.
    """
    meaning = "percent; by the score that the method's authors use, which is the entropy unless noted"
    return Column(
        task,
        f"auroc_{dataset}",
        Metric(f"AUROC {label}", meaning),
        "higher",
        scale=100.0,
        recorded=(f"auroc_own_{dataset}", f"auroc_{dataset}"),
        by_entropy=(f"auroc_entropy_{dataset}", f"auroc_{dataset}"),
    )


def calibration_error(task: str) -> Column:
    """The expected calibration error."""
    return Column(task, "ece_15", Metric("ECE", "expected calibration error, 15 bins", 3), "lower")


def negative_log_likelihood(task: str) -> Column:
    """The mean negative log probability of the right class."""
    return Column(task, "nll", Metric("NLL", "mean −log probability of the right class", 3), "lower")


def plain_layout(task: str, results: Iterable[Result]) -> TableLayout:
    """All metrics of a task that is not registered."""
    names = dict.fromkeys(name for r in results if r.task == task for name in r.metrics)
    return TableLayout(task, tuple(Column(task, name, Metric(name.replace("_", " "), "", 3)) for name in names))
