"""The tables of the paper (Rudner, Chen, Teh and Gal, NeurIPS 2022) under our names of methods and metrics.

The numbers of the continual tasks are those of S-FSVI's authors (Rudner, Bickford Smith, Feng, Teh, Gal; ICML 2022).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from paper.columns import MeanOverSeeds

SOURCE = "Rudner, Chen, Teh and Gal 2022"


@dataclass(frozen=True)
class PaperTable:
    """A table of the paper in its printed units: shares are percentages.

    Attributes:
        source: Which table it is, as in "Table 1 of the paper".
        rows: Means by metric, by the label of the method; values that the paper leaves out are absent.
    """

    source: str
    rows: Mapping[str, Mapping[str, MeanOverSeeds]]

    def row(self, label: str) -> str | None:
        """The row to compare a label of ours with: the same label, or its method if the paper names no context."""
        return next((name for name in (label, label.partition(" (")[0]) if name in self.rows), None)

    def has(self, name: str) -> bool:
        """Whether a row has the metric called `name`."""
        return any(name in row for row in self.rows.values())

    def rows_without(self, labels: Iterable[str]) -> list[str]:
        """The paper's rows that match none of our `labels`."""
        taken = {self.row(label) for label in labels}
        return [name for name in self.rows if name not in taken]


def _table(printed: Mapping[str, Any]) -> PaperTable:
    rows = {
        label: {name: MeanOverSeeds(*cell) for name, cell in zip(printed["columns"], cells, strict=True) if cell}
        for label, cells in printed["rows"].items()
    }
    return PaperTable(printed["source"], rows)


def _read() -> dict[str, PaperTable]:
    text = files("paper").joinpath("published.json").read_text("utf-8")
    return {task: _table(printed) for task, printed in json.loads(text).items()}


PAPER: dict[str, PaperTable] = _read()
"""The tables by task; measures on shifted photographs of the retina end in `_shifted`."""
