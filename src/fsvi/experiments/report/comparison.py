"""Tables that set our results beside the paper's: a row for each method, a column for each measure.

`build_tables` makes one for every layout and profile of which there are results. A cell holds the paper's value, ours,
and the difference; what one side has and the other lacks is left empty, never left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fsvi.experiments.experiment import PROFILES
from fsvi.experiments.report.columns import LAYOUTS, Column, Layout, plain_layout
from fsvi.experiments.report.paper import PAPER, Estimate
from fsvi.experiments.results import Result
from fsvi.experiments.tasks.uci import PREFIX

_DIFFER = "settings differ between seeds"


@dataclass(frozen=True)
class Cell:
    """What a method is worth by a measure; `best` says that none of ours is better.

    Attributes:
        column: The measure.
        paper: The paper's value; None where it prints none.
        ours: Ours; None where there is no result.
        best: Whether none of ours is better.
    """

    column: Column
    paper: Estimate | None
    ours: Estimate | None
    best: bool = False

    @property
    def difference(self) -> float | None:
        """Ours less the paper's, as far as it is shown."""
        if self.paper is None or self.ours is None:
            return None
        return self.column.rounded(self.ours.mean - self.paper.mean)

    @property
    def difference_text(self) -> str:
        """The difference with its sign."""
        if self.difference is None:
            return ""
        sign = "+" if self.difference > 0 else ""
        return sign + self.column.metric.show(self.difference + 0.0)

    @property
    def verdict(self) -> str:
        """`better` or `worse` than the paper, or "" where they are equal or cannot be compared."""
        if not self.difference or math.isnan(self.difference) or not self.column.better:
            return ""
        return "better" if (self.difference > 0) == (self.column.better == "higher") else "worse"


@dataclass(frozen=True)
class Row:
    """A method, with its context where it has one: a cell for every column, and the results behind them."""

    label: str
    cells: tuple[Cell, ...]
    results: tuple[Result, ...]

    @property
    def seeds(self) -> list[int]:
        """Of the results."""
        return sorted({result.seed for result in self.results})

    @property
    def seconds(self) -> float | None:
        """Mean wall time of a run, training and evaluation; None where there are no results."""
        times = [sum(result.seconds.values()) for result in self.results]
        return float(np.mean(times)) if times else None

    @property
    def notes(self) -> list[str]:
        """What a reader of the numbers must know."""
        tasks: dict[str, dict[str, None]] = {}
        for result in self.results:
            for note in (*_size_of_ensemble(result), *result.notes):
                tasks.setdefault(note, {})[result.task] = None
        everywhere = len({result.task for result in self.results})
        notes = [note if len(of) == everywhere else f"{_named(of)}: {note}" for note, of in tasks.items()]
        return [*notes, _DIFFER] if self._settings_differ() else notes

    def _settings_differ(self) -> bool:
        first: dict[str, Mapping[str, Any]] = {}
        return not all(_same(first.setdefault(each.task, each.settings), each.settings) for each in self.results)


@dataclass(frozen=True)
class Table:
    """A layout filled with the results of one profile, and the paper's."""

    layout: Layout
    profile: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]

    @property
    def source(self) -> str:
        """The number of the paper's table; "" where it has none."""
        return next((PAPER[task].source for task in self.layout.tasks if task in PAPER), "")

    @property
    def detailed(self) -> bool:
        """Whether cells hold more than our mean: an error, or the paper's value."""
        ours = (cell.ours for row in self.rows for cell in row.cells)
        return bool(self.source) or any(each is not None and each.error is not None for each in ours)

    @property
    def notes(self) -> list[str]:
        """The rows' notes, each once."""
        return list(dict.fromkeys(note for row in self.rows for note in row.notes))


def _size_of_ensemble(result: Result) -> list[str]:
    members = result.settings.get("method", {}).get("settings", {}).get("members")
    return [f"{len(members)} members"] if members else []


def _named(tasks: Iterable[str]) -> str:
    return ", ".join(task.removeprefix(PREFIX) for task in tasks)


def _same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two results have the same settings; of a method's, those of earlier versions name fewer."""
    rest = ({name: value for name, value in each.items() if name != "method"} for each in (one, other))
    return next(rest) == next(rest) and _agree(one.get("method"), other.get("method"))


def _agree(one: Any, other: Any) -> bool:
    """Whether values are the same as far as both name what is in them."""
    if isinstance(one, dict) and isinstance(other, dict):
        return all(_agree(one[name], other[name]) for name in one.keys() & other.keys())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_agree, one, other))
    return bool(one == other)


def build_tables(results: Sequence[Result]) -> list[Table]:
    """Every table of which there are results: by layout, then by profile, the paper's first."""
    tasks = {result.task for result in results}
    laid_out = {task for layout in LAYOUTS for task in layout.tasks}
    layouts = [layout for layout in LAYOUTS if tasks.intersection(layout.tasks)]
    layouts += [plain_layout(task, results) for task in sorted(tasks - laid_out)]
    tables = (_table(layout, profile, results) for layout in layouts for profile in PROFILES)
    return [table for table in tables if any(cell.ours for row in table.rows for cell in row.cells)]


def _table(layout: Layout, profile: str, results: Iterable[Result]) -> Table:
    ours: dict[str, list[Result]] = {}
    for result in results:
        if result.task in layout.tasks and result.profile == profile:
            ours.setdefault(result.label, []).append(result)
    rows = [_row(label, layout.columns, ours.get(label, [])) for label in _labels(layout, list(ours))]
    return _without_empty_columns(Table(layout, profile, layout.columns, tuple(_with_best(rows, layout.columns))))


def _row(label: str, columns: Iterable[Column], results: Sequence[Result]) -> Row:
    cells = tuple(Cell(column, column.printed(label), column.ours(results)) for column in columns)
    return Row(label, cells, tuple(results))


def _labels(layout: Layout, ours: Sequence[str]) -> list[str]:
    """Ours in the paper's order, where they compare with it, and the paper's others; ensembles last."""
    papers = [PAPER[task] for task in layout.tasks if task in PAPER]
    order = [name for paper in papers for name in paper.rows]
    missing = [name for paper in papers[:1] for name in paper.rows_without(ours)]

    def place(label: str) -> tuple[bool, int]:
        row = next((name for paper in papers if (name := paper.row(label))), None)
        return label.startswith("ensemble:"), order.index(row) if row else len(order)

    return sorted([*sorted(ours), *missing], key=place)


def _with_best(rows: Sequence[Row], columns: Sequence[Column]) -> list[Row]:
    best = [_best(column, [row.cells[i].ours for row in rows]) for i, column in enumerate(columns)]
    return [
        replace(row, cells=tuple(_marked(cell, top) for cell, top in zip(row.cells, best, strict=True))) for row in rows
    ]


def _best(column: Column, estimates: Iterable[Estimate | None]) -> float | None:
    """The best value as far as it is shown, where they differ."""
    values = [column.rounded(each.mean) for each in estimates if each and math.isfinite(each.mean)]
    if len(set(values)) < 2 or not column.better:
        return None
    return max(values) if column.better == "higher" else min(values)


def _marked(cell: Cell, best: float | None) -> Cell:
    return replace(cell, best=cell.ours is not None and cell.column.rounded(cell.ours.mean) == best)


def _without_empty_columns(table: Table) -> Table:
    kept = [i for i in range(len(table.columns)) if any(row.cells[i].ours or row.cells[i].paper for row in table.rows)]
    rows = tuple(replace(row, cells=tuple(row.cells[i] for i in kept)) for row in table.rows)
    return replace(table, columns=tuple(table.columns[i] for i in kept), rows=rows)
