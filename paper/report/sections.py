"""The sections of a report: tables, figures and runs of each task, by profile."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from paper.columns import MeanOverSeeds
from paper.experiment import PROFILES
from paper.names import full_name
from paper.records import Result
from paper.report.comparison import Table, build_tables
from paper.report.figures import ReportFigure, build_figures
from paper.task import Section
from paper.tasks.registry import TASKS


@dataclass(frozen=True)
class RunGroup:
    """The runs of one method on one task with the same settings.

    Attributes:
        task: The task's name.
        name: The method's display name.
        settings: The settings that all runs share, as text.
        results: One result per seed.
    """

    task: str
    name: str
    settings: str
    results: Sequence[Result]

    @property
    def metrics(self) -> dict[str, MeanOverSeeds]:
        """Every metric of the runs."""
        names = dict.fromkeys(name for result in self.results for name in result.metrics)
        found = {name: [result.metrics.get(name) for result in self.results] for name in names}
        numbers = {name: [value for value in values if value is not None] for name, values in found.items()}
        return {name: MeanOverSeeds.of(values) for name, values in numbers.items() if values}


@dataclass(frozen=True)
class ProfilePart:
    """One profile of a section: its tables, figures and runs.

    Attributes:
        profile: The profile.
        tables: Its tables.
        runs: Its runs.
    """

    profile: str
    tables: Sequence[Table]
    runs: Sequence[RunGroup]

    @property
    def results(self) -> list[Result]:
        """All results."""
        return [result for group in self.runs for result in group.results]

    @property
    def figures(self) -> list[ReportFigure]:
        """Its figures, drawn when they are asked for; they name their task if there are several."""
        by_task = dict(_by_task(self.results))
        found = [(task, figure) for task, group in by_task.items() for figure in build_figures(group)]
        return [
            figure if len(by_task) == 1 else replace(figure, title=f"{figure.title}: {task}") for task, figure in found
        ]


@dataclass(frozen=True)
class FilledSection:
    """A section with its results.

    Attributes:
        name: Its anchor on the page.
        title: Its heading.
        about: One or two sentences about the task.
        parts: Its results by profile.
    """

    name: str
    title: str
    about: str
    parts: Sequence[ProfilePart]


def build_sections(results: Sequence[Result]) -> list[FilledSection]:
    """Tables and figures by task, then by profile."""
    sections = []
    for section, group in groupby(build_tables(results), _section_of):
        tables = sorted(group, key=lambda table: PROFILES.index(table.profile))
        parts = [_part(list(part)) for _, part in groupby(tables, lambda table: table.profile)]
        sections.append(FilledSection(_anchor(section), section.title, section.about, parts))
    return sections


def _section_of(table: Table) -> Section:
    """The section of the table's task; a plain one if the task is not registered."""
    task = table.layout.tasks[0]
    return TASKS[task].section if task in TASKS else Section(task, "", (table.layout,))


def _anchor(section: Section) -> str:
    tasks = [task for task in TASKS.values() if task.section == section]
    if not tasks:
        return section.title
    return tasks[0].name if len(tasks) == 1 else tasks[0].sweep.name


def _part(tables: Sequence[Table]) -> ProfilePart:
    rows = [row for table in tables for row in table.rows]
    results = list({id(result): result for row in rows for result in row.results}.values())
    runs = [run for task, group in _by_task(results) for run in _run_groups(task, group)]
    return ProfilePart(tables[0].profile, tables, runs)


def _by_task(results: Iterable[Result]) -> Iterator[tuple[str, list[Result]]]:
    for task, group in groupby(sorted(results, key=lambda r: r.task), lambda r: r.task):
        yield task, list(group)


def _run_groups(task: str, results: Sequence[Result]) -> Iterator[RunGroup]:
    """One group per method, or more if settings differ between seeds."""
    groups: dict[tuple[str, str], list[Result]] = {}
    for result in sorted(results, key=lambda r: r.seed):
        groups.setdefault((result.label, _settings_text(result.settings)), []).append(result)
    for (label, settings), group in groups.items():
        yield RunGroup(task, full_name(label), settings, group)


def _settings_text(settings: Any) -> str:
    return json.dumps(settings, indent=1, ensure_ascii=False)
