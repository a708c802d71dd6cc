"""The columns of result tables: which number is shown, how it is written, and which direction is better."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from paper.records import Result

Better: TypeAlias = Literal["higher", "lower", ""]


@dataclass(frozen=True)
class Column:
    """A measure of a task; `name` is that in the paper's table.

    Results have it under the first name of `recorded` that they have; under those of `by_entropy`, it is computed from
    the predictive entropy instead of the method's own score.
    """

    task: str
    name: str
    label: str
    better: Better = ""
    decimals: int = 3
    scale: float = 1.0
    unit: str = ""
    recorded: tuple[str, ...] = ()
    by_entropy: tuple[str, ...] = ()

    @property
    def heading(self) -> str:
        """The label, with an arrow toward better values."""
        return self.label + {"higher": " ↑", "lower": " ↓", "": ""}[self.better]

    def value(self, result: Result, names: Sequence[str] = ()) -> float | None:
        """The measure of one result in the table's unit; None if the result does not have it."""
        found = (result.metrics.get(name) for name in names or self.recorded or (self.name,))
        return next((self.scale * value for value in found if value is not None), None)

    def show(self, value: float, error: float | None = None) -> str:
        """The number as text, with its standard error if there is one."""
        text = f"{value:.{self.decimals}f}{self.unit}".replace("-", "−")
        return text if error is None else f"{text} ± {self.show(error)}"


@dataclass(frozen=True)
class TableLayout:
    """A table: its title, its columns, and differences from the paper that concern every row."""

    title: str
    columns: tuple[Column, ...]
    notes: tuple[str, ...] = ()

    @property
    def tasks(self) -> list[str]:
        """The tasks of the columns."""
        return list(dict.fromkeys(column.task for column in self.columns))


def percent(task: str, name: str, label: str, decimals: int = 2) -> Column:
    """A share of 1, shown in percent; higher is better."""
    return Column(task, name, label, "higher", decimals, 100.0)


def detection(task: str, dataset: str, label: str) -> Column:
    """The AUROC for telling a dataset from the test data, by the score that the method's authors use.

    Results hold it as `auroc_own_…` and `auroc_…`; in early ones `auroc_…` is the AUROC by entropy.
    """
    name, own, by_entropy = f"auroc_{dataset}", f"auroc_own_{dataset}", f"auroc_entropy_{dataset}"
    return Column(task, name, f"AUROC {label}", "higher", 2, 100.0, "", (own, name), (by_entropy, name))


def calibration_error(task: str, ending: str = "") -> Column:
    """The expected calibration error in 15 bins."""
    return Column(task, f"ece_15{ending}", "ECE", "lower")


def negative_log_likelihood(task: str, ending: str = "") -> Column:
    """The mean negative log probability of the right class."""
    return Column(task, f"nll{ending}", "NLL", "lower")
