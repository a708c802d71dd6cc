"""What the tables show: for each task, which measures, how they are written, and which values are better."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from fsvi.experiments.report.demo_report import METRICS, Metric
from fsvi.experiments.report.names import dataset_name
from fsvi.experiments.report.paper import PAPER, Estimate
from fsvi.experiments.results import Result
from fsvi.experiments.tasks.uci import PREFIX, TABLES

Better: TypeAlias = Literal["higher", "lower", ""]


@dataclass(frozen=True)
class Column:
    """A measure on a task.

    Attributes:
        task: The task.
        name: The measure's name in results, and in the paper's table.
        metric: How it is shown.
        better: Which values are better, or "" where neither is.
        scale: By what a result's number is multiplied to be in the table's unit.
    """

    task: str
    name: str
    metric: Metric
    better: Better = ""
    scale: float = 1.0

    def ours(self, results: Iterable[Result]) -> Estimate | None:
        """The mean over the results of this task that hold the measure, in the table's unit."""
        found = (result.metrics.get(self.name) for result in results if result.task == self.task)
        values = [self.scale * value for value in found if value is not None]
        return Estimate.of(values) if values else None

    def printed(self, label: str) -> Estimate | None:
        """What the paper prints for the method."""
        table = PAPER.get(self.task)
        row = table and table.row(label)
        return table.rows[row].get(self.name) if table and row else None

    def show(self, estimate: Estimate) -> str:
        """The estimate as text, with its error where there is one."""
        mean = self.metric.show(estimate.mean)
        return mean if estimate.error is None else f"{mean} ± {self.metric.show(estimate.error)}"

    def rounded(self, value: float) -> float:
        """The value as far as it is shown."""
        return round(value, self.metric.decimals)


@dataclass(frozen=True)
class Layout:
    """What a table shows.

    Attributes:
        section: What it belongs to, such as `uci`.
        title: Its name.
        columns: The measures.
    """

    section: str
    title: str
    columns: tuple[Column, ...]

    @property
    def tasks(self) -> list[str]:
        """The columns' tasks."""
        return list(dict.fromkeys(column.task for column in self.columns))


def _percent(task: str, name: str, label: str, meaning: str, decimals: int = 2) -> Column:
    return Column(task, name, Metric(label, meaning, decimals), "higher", scale=100.0)


def _classification(task: str, ood: Sequence[str]) -> tuple[Column, ...]:
    """What the paper's tables of image classification have in common."""
    return (
        _percent(task, "accuracy", "Accuracy", "percent of test images"),
        Column(task, "ece_15", Metric("ECE", "expected calibration error, 15 bins", 3), "lower"),
        *(
            _percent(task, f"auroc_{name}", f"AUROC {dataset_name(name)}", "percent; out-of-distribution by entropy")
            for name in ood
        ),
    )


def _nll(task: str) -> Column:
    return Column(task, "nll", Metric("NLL", "mean −log probability of the right class", 3), "lower")


def _toy(task: str, *measures: tuple[str, Better]) -> tuple[Column, ...]:
    return tuple(Column(task, name, METRICS[name], better) for name, better in measures)


def _retina(domain: str) -> tuple[Column, ...]:
    """The paper's table: AUC and accuracy of what is kept when none, half or most of the photographs are referred."""
    shares = {"": "all kept", "_referred_50": "50% referred", "_referred_70": "70% referred"}
    measures = {"auroc": "AUC", "accuracy": "Accuracy"}
    return tuple(
        _percent("retina", f"{key}{share}{domain}", f"{measure}, {meaning}", f"percent; {meaning}", 1)
        for share, meaning in shares.items()
        for key, measure in measures.items()
    )


def _uci(name: str, meaning: str, better: Better) -> tuple[Column, ...]:
    return tuple(Column(PREFIX + each, name, Metric(each.capitalize(), meaning, 3), better) for each in TABLES)


_ONE_DIMENSION: tuple[tuple[str, Better], ...] = (
    ("rmse", "lower"),
    ("log_likelihood", "higher"),
    ("noise", ""),
    ("data_std", ""),
    ("gap_std_ratio", ""),
    ("left_std_ratio", ""),
    ("right_std_ratio", ""),
)
_TWO_MOONS: tuple[tuple[str, Better], ...] = (
    ("accuracy", "higher"),
    ("nll", "lower"),
    ("far_entropy", "higher"),
    ("far_entropy_min", "higher"),
    ("near_entropy", ""),
)

LAYOUTS: tuple[Layout, ...] = (
    Layout(
        "fashion-mnist",
        "FashionMNIST",
        (*_classification("fashion-mnist", ("mnist", "notmnist")), _nll("fashion-mnist")),
    ),
    Layout(
        "cifar10",
        "CIFAR-10",
        (
            *_classification("cifar10", ("svhn",)),
            _percent("cifar10", "accuracy_corrupted", "Corrupted", "accuracy on corrupted test images, percent"),
        ),
    ),
    Layout(
        "rotated-mnist",
        "Rotated MNIST",
        (
            _percent("rotated-mnist", "accuracy", "Accuracy", "percent of upright test images"),
            Column("rotated-mnist", "brier", Metric("Brier, 0°", "of upright digits", 3), "lower"),
            Column("rotated-mnist", "brier_45plus", Metric("Brier, > 45°", "mean beyond 45°", 3), "lower"),
            Column("rotated-mnist", "entropy_45plus", Metric("Entropy, > 45°", "mean beyond 45°", 3), "higher"),
            Column("rotated-mnist", "entropy_rise", Metric("Entropy’s rise", "from 0° to beyond 45°", 3), "higher"),
        ),
    ),
    Layout("retina", "Retina, in domain", _retina("")),
    Layout("retina", "Retina, shifted", _retina("_shifted")),
    Layout("uci", "RMSE", _uci("rmse", "root mean squared error", "lower")),
    Layout("uci", "Log-likelihood", _uci("log_likelihood", "mean log density of the targets", "higher")),
    Layout("two-moons", "Two moons", _toy("two-moons", *_TWO_MOONS)),
    Layout("snelson", "Snelson", _toy("snelson", *_ONE_DIMENSION)),
    Layout("oat1d", "OAT-1D", _toy("oat1d", *_ONE_DIMENSION)),
    Layout("subspace", "Subspace inference", _toy("subspace", *_ONE_DIMENSION)),
)
"""Every table, in the report's order."""


def plain_layout(task: str, results: Iterable[Result]) -> Layout:
    """All metrics of a task that has no layout of its own."""
    names = dict.fromkeys(name for r in results if r.task == task for name in r.metrics)
    return Layout(task, task, tuple(Column(task, name, Metric(name.replace("_", " "), "", 3)) for name in names))
