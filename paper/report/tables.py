"""Tables that compare our results with the paper's: one row per method, one column per measure.

A cell holds the paper's value, ours, and the difference. If one side lacks a value, its place stays empty.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import numpy as np

from paper.columns import Column, MeanOverSeeds, TableLayout, plain_layout
from paper.experiment import PROFILES
from paper.published import PAPER
from paper.records import Result
from paper.task import Section
from paper.tasks.registry import TASKS
from paper.tasks.uci_regression import PREFIX


@dataclass(frozen=True)
class Cell:
    """A method by a measure.

    Attributes:
        column: The measure.
        paper: The paper's value; None if it has none.
        ours: Our value; None if there is no result.
        by_entropy: Our value computed from predictive entropy, if the method's own score gives another value.
        best: Whether none of our values is better.
    """

    column: Column
    paper: MeanOverSeeds | None
    ours: MeanOverSeeds | None
    by_entropy: MeanOverSeeds | None = None
    best: bool = False

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's, rounded as shown."""
        if self.paper is None or self.ours is None:
            return None
        return self.column.rounded(self.ours.mean - self.paper.mean)

    @property
    def difference_text(self) -> str:
        """The difference with its sign."""
        if self.difference is None:
            return ""
        return ("+" if self.difference > 0 else "") + self.column.metric.show(self.difference + 0.0)

    @property
    def verdict(self) -> str:
        """`better` or `worse` than the paper, or "" if they are equal or cannot be compared."""
        if not self.difference or math.isnan(self.difference) or not self.column.better:
            return ""
        return "better" if (self.difference > 0) == (self.column.better == "higher") else "worse"


@dataclass(frozen=True)
class TableRow:
    """A method, with its context if it has one: its cells, and the results behind them."""

    label: str
    cells: tuple[Cell, ...]
    results: tuple[Result, ...]

    @property
    def seeds(self) -> list[int]:
        """The seeds of the results."""
        return sorted({result.seed for result in self.results})

    @property
    def seconds(self) -> float | None:
        """Mean wall time per run, training and evaluation; None without results."""
        times = [sum(result.seconds.values()) for result in self.results]
        return float(np.mean(times)) if times else None

    @property
    def notes(self) -> list[str]:
        """Differences from the paper that a reader of the numbers must know."""
        tasks: dict[str, dict[str, None]] = {}
        for result in self.results:
            members = result.settings.get("method", {}).get("settings", {}).get("members")
            for note in (*([f"{len(members)} members"] if members else []), *result.notes):
                tasks.setdefault(note, {})[result.task] = None
        everywhere = len({result.task for result in self.results})
        names = {note: ", ".join(task.removeprefix(PREFIX) for task in of) for note, of in tasks.items()}
        notes = [note if len(of) == everywhere else f"{names[note]}: {note}" for note, of in tasks.items()]
        first: dict[str, Mapping[str, Any]] = {}
        same = all(_same(first.setdefault(each.task, each.settings), each.settings) for each in self.results)
        return notes if same else [*notes, "settings differ between seeds"]


@dataclass(frozen=True)
class Table:
    """A layout filled with the results of one profile and the values of the paper."""

    layout: TableLayout
    profile: str
    columns: tuple[Column, ...]
    rows: tuple[TableRow, ...]

    @property
    def source(self) -> str:
        """Where the published values are from; "" if there are none."""
        printed = ((PAPER.get(column.task), column.name) for column in self.layout.columns)
        return next((table.source for table, name in printed if table and table.has(name)), "")

    @property
    def remarks(self) -> tuple[str, ...]:
        """Differences from the paper that concern every row."""
        return self.layout.notes

    @property
    def notes(self) -> list[str]:
        """The notes of the rows, each once."""
        return list(dict.fromkeys(note for row in self.rows for note in row.notes))


@dataclass(frozen=True)
class ProfilePart:
    """One profile of a section: its tables and results."""

    profile: str
    tables: Sequence[Table]
    results: Sequence[Result]


@dataclass(frozen=True)
class FilledSection:
    """A section of the report with its results by profile; `name` is its anchor on the page."""

    name: str
    title: str
    about: str
    parts: Sequence[ProfilePart]


def build_sections(results: Sequence[Result]) -> list[FilledSection]:
    """Tables by task, then by profile."""
    sections = []
    for section, group in groupby(build_tables(results), _section_of):
        tables = sorted(group, key=lambda table: PROFILES.index(table.profile))
        parts = [_part(list(part)) for _, part in groupby(tables, lambda table: table.profile)]
        tasks = [task for task in TASKS.values() if task.section == section]
        name = section.title if not tasks else tasks[0].name if len(tasks) == 1 else tasks[0].sweep.name
        sections.append(FilledSection(name, section.title, section.about, parts))
    return sections


def _section_of(table: Table) -> Section:
    """The section of the table's task; a plain one if the task is not registered."""
    task = table.layout.tasks[0]
    return TASKS[task].section if task in TASKS else Section(task, "", (table.layout,))


def _part(tables: Sequence[Table]) -> ProfilePart:
    found = {id(result): result for table in tables for row in table.rows for result in row.results}
    results = sorted(found.values(), key=lambda result: (result.task, result.label, result.seed))
    return ProfilePart(tables[0].profile, tables, results)


def build_tables(results: Sequence[Result]) -> list[Table]:
    """Every table with results: by layout, then by profile, the paper's first."""
    tasks = {result.task for result in results}
    known = list(dict.fromkeys(layout for task in TASKS.values() for layout in task.section.tables))
    laid_out = {task for layout in known for task in layout.tasks}
    layouts = [layout for layout in known if tasks.intersection(layout.tasks)]
    layouts += [plain_layout(task, results) for task in sorted(tasks - laid_out)]
    tables = (_table(layout, profile, results) for layout in layouts for profile in PROFILES)
    return [table for table in tables if any(cell.ours for row in table.rows for cell in row.cells)]


def _table(layout: TableLayout, profile: str, results: Iterable[Result]) -> Table:
    ours: dict[str, list[Result]] = {}
    for result in results:
        if result.task in layout.tasks and result.profile == profile:
            ours.setdefault(result.label, []).append(result)
    found = {label: ours.get(label, []) for label in _labels(layout, list(ours))}
    cells = {label: [_cell(column, label, of) for column in layout.columns] for label, of in found.items()}
    kept = [i for i in range(len(layout.columns)) if any(row[i].ours or row[i].paper for row in cells.values())]
    for i in kept:
        best = _best(layout.columns[i], [row[i].ours for row in cells.values()])
        for row in cells.values():
            ours_here = row[i].ours
            row[i] = replace(row[i], best=ours_here is not None and row[i].column.rounded(ours_here.mean) == best)
    rows = tuple(TableRow(label, tuple(cells[label][i] for i in kept), tuple(of)) for label, of in found.items())
    return Table(layout, profile, tuple(layout.columns[i] for i in kept), rows)


def _cell(column: Column, label: str, results: Sequence[Result]) -> Cell:
    ours, by_entropy = column.mean(results), column.mean_by_entropy(results)
    if ours is None or by_entropy is None or column.rounded(ours.mean) == column.rounded(by_entropy.mean):
        by_entropy = None
    table = PAPER.get(column.task)
    row = table and table.row(label)
    return Cell(column, table.rows[row].get(column.name) if table and row else None, ours, by_entropy)


def _labels(layout: TableLayout, ours: Sequence[str]) -> list[str]:
    """Our rows in the paper's order, and the paper's other rows; ensembles last."""
    papers = [PAPER[task] for task in layout.tasks if task in PAPER]
    order = [name for paper in papers for name in paper.rows]
    missing = [name for paper in papers[:1] for name in paper.rows_without(ours)]

    def place(label: str) -> tuple[bool, int]:
        row = next((name for paper in papers if (name := paper.row(label))), None)
        return label.startswith("ensemble:"), order.index(row) if row else len(order)

    return sorted([*sorted(ours), *missing], key=place)


def _best(column: Column, estimates: Iterable[MeanOverSeeds | None]) -> float | None:
    """The best of the values as they are shown; None if all are equal."""
    values = [column.rounded(each.mean) for each in estimates if each and math.isfinite(each.mean)]
    if len(set(values)) < 2 or not column.better:
        return None
    return max(values) if column.better == "higher" else min(values)


def _same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two results have the same settings; files of earlier versions name fewer method settings."""
    rest = ({name: value for name, value in each.items() if name != "method"} for each in (one, other))
    return next(rest) == next(rest) and _agree(one.get("method"), other.get("method"))


def _agree(one: Any, other: Any) -> bool:
    """Whether the values that both sides name are the same."""
    if isinstance(one, dict) and isinstance(other, dict):
        return all(_agree(one[name], other[name]) for name in one.keys() & other.keys())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_agree, one, other))
    return bool(one == other)
