"""What the paper prints: the tables of Rudner, Chen, Teh and Gal, NeurIPS 2022, by our names of methods and metrics."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import numpy as np

SOURCE = "Rudner, Chen, Teh and Gal 2022"


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds.

    Attributes:
        mean: The mean.
        error: Its standard error; None where there is one seed.
        count: How many seeds; None for the paper's, which differ between its tables.
    """

    mean: float
    error: float | None
    count: int | None = None

    @classmethod
    def of(cls, values: Sequence[float]) -> Estimate:
        """Mean x̄ and standard error s/√n, where s² = Σ(x − x̄)²/(n − 1)."""
        with np.errstate(invalid="ignore"):
            error = None if len(values) == 1 else float(np.std(values, ddof=1) / np.sqrt(len(values)))
            return cls(float(np.mean(values)), error, len(values))


@dataclass(frozen=True)
class PaperTable:
    """One of the paper's tables, in the units in which it is printed: shares are percentages.

    Attributes:
        source: Its number.
        rows: Estimates by metric, by the method's label; what the paper leaves out is absent.
    """

    source: str
    rows: Mapping[str, Mapping[str, Estimate]]

    def row(self, label: str) -> str | None:
        """The row that a label of ours compares with: its own, or its method's where the paper names no context."""
        return next((name for name in (label, label.partition(" (")[0]) if name in self.rows), None)

    def rows_without(self, labels: Iterable[str]) -> list[str]:
        """The paper's rows that none of our `labels` compares with."""
        taken = {self.row(label) for label in labels}
        return [name for name in self.rows if name not in taken]


def _table(printed: Mapping[str, Any]) -> PaperTable:
    rows = {
        label: {name: Estimate(*cell) for name, cell in zip(printed["columns"], cells, strict=True) if cell}
        for label, cells in printed["rows"].items()
    }
    return PaperTable(printed["source"], rows)


def _read() -> dict[str, PaperTable]:
    text = files("fsvi.experiments.report").joinpath("paper_tables.json").read_text("utf-8")
    return {task: _table(printed) for task, printed in json.loads(text).items()}


PAPER: dict[str, PaperTable] = _read()
"""The tables by task; measures on shifted photographs of the retina end in `_shifted`."""
