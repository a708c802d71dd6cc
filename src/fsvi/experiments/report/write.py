"""`fsvi report`: all results of a folder beside the paper's, as one HTML page and as Markdown tables."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import fsvi
from fsvi.diagnosis import Diagnosis, Finding
from fsvi.diagnosis.findings import SEVERITIES, Severity
from fsvi.errors import FileFormatError, InvalidInputError
from fsvi.experiments.report.figures import Figure, build_figures, check_curves
from fsvi.experiments.report.names import full_name, split_label
from fsvi.experiments.report.page import render
from fsvi.experiments.report.paper import SOURCE, Estimate
from fsvi.experiments.report.tables import Table, build_tables
from fsvi.experiments.results import Result, read_results
from fsvi.experiments.runner.diagnoses import diagnosis_path, read_diagnosis
from fsvi.serialization import check_writable, write_bytes

PROFILE_NOTES: dict[str, str] = {
    "paper": "The paper's protocol, but for what the notes below say.",
    "quick": "Fewer data or epochs than the paper's protocol: its figures stand beside ours for orientation only.",
    "smoke": "A few steps of training, to see that everything works: the numbers mean nothing.",
}

ABOUT: dict[str, tuple[str, str]] = {
    "fashion-mnist": (
        "FashionMNIST",
        "A small convolutional network learns clothes. Does its entropy tell digits (MNIST) and letters (notMNIST) "
        "from them?",
    ),
    "cifar10": (
        "CIFAR-10",
        "A ResNet-18 on photographs; house numbers (SVHN) are to be told from them, and corrupted photographs to be "
        "recognised.",
    ),
    "rotated-mnist": ("Rotated MNIST", "Digits are turned further and further away from those that were learned."),
    "retina": (
        "Diabetic retinopathy",
        "Which photographs of the retina show a disease, and which should an expert look at?",
    ),
    "uci": (
        "UCI regression",
        "One hidden layer of 50 units on six tables, 90% for training, in the tables' own units.",
    ),
    "two-moons": ("Two moons", "Two interleaved half circles, asked about on a square far wider than the data."),
    "snelson": ("Snelson", "A regression with one input and a gap in the data; numbers in standardised units."),
    "oat1d": ("OAT-1D", "A wavy function seen in two clusters far apart."),
    "subspace": ("Subspace inference", "400 points in three clusters; the network sees x/2 and (x/2)²."),
}
"""Title and subject of the report's sections."""


@dataclass(frozen=True)
class Problem:
    """A file that is not in the tables, and why."""

    path: str
    reason: str


@dataclass(frozen=True)
class Settings:
    """The runs of one method on one task that have the same settings."""

    task: str
    name: str
    settings: str
    results: Sequence[Result]

    @property
    def metrics(self) -> dict[str, Estimate]:
        """Every metric of the runs."""
        names = dict.fromkeys(name for result in self.results for name in result.metrics)
        found = {name: [result.metrics.get(name) for result in self.results] for name in names}
        numbers = {name: [value for value in values if value is not None] for name, values in found.items()}
        return {name: Estimate.of(values) for name, values in numbers.items() if values}


@dataclass(frozen=True)
class Part:
    """One profile of a section: its tables, figures and runs."""

    profile: str
    tables: Sequence[Table]
    figures: Sequence[Figure]
    runs: Sequence[Settings]

    @property
    def results(self) -> list[Result]:
        """All results."""
        return [result for settings in self.runs for result in settings.results]


@dataclass(frozen=True)
class Section:
    """A task of the paper, or several that share a table."""

    name: str
    title: str
    about: str
    parts: Sequence[Part]


@dataclass(frozen=True)
class Diagnosed:
    """What was found about a run's uncertainty, the worst first."""

    result: Result
    diagnosis: Diagnosis

    @property
    def findings(self) -> list[Finding]:
        """Faults, then warnings, then what is well."""
        return sorted(self.diagnosis, key=lambda finding: SEVERITIES.index(finding.severity))

    @property
    def is_well(self) -> bool:
        """Whether nothing has to be changed."""
        return all(finding.severity == "ok" for finding in self.diagnosis)

    def count(self, severity: Severity) -> int:
        """How many findings are of this kind."""
        return sum(finding.severity == severity for finding in self.diagnosis)


def write_report(folder: Path, out: Path, tell: Callable[[str], None] = print) -> Path:
    """Write `report.html` and `report.md` about all results below `folder` into the folder `out`.

    A file that cannot be read, or holds the same run as another, is listed in the report with its reason; diagnoses
    are shown where they are kept beside the results. Returns the page's path.
    """
    found, problems = collect(folder)
    diagnoses, more = collect_diagnoses(found)
    results, problems = list(found.values()), [*problems, *more]
    values = {
        "sections": build_sections(results),
        "results": results,
        "diagnoses": diagnoses,
        "problems": problems,
        "profiles": PROFILE_NOTES,
        "source": SOURCE,
        "version": fsvi.__version__,
    }
    page = check_writable(out) / "report.html"
    shown = {"duration": duration, "full_name": full_name, "split_label": split_label, "seed_range": seed_range}
    for path in (page, page.with_suffix(".md")):
        write_bytes(path, render(f"results{path.suffix}", **values, **shown).encode())
    for problem in problems:
        tell(f"Left out: {problem.reason}")
    tell(f"{len(results)} results. The report: {page}")
    return page


def collect(folder: Path) -> tuple[dict[Path, Result], list[Problem]]:
    """The results below `folder`, each run once, and the files that are not among them."""
    if not folder.is_dir():
        raise InvalidInputError(f"there is no folder {folder}: name the one that `fsvi run` wrote its results into.")
    runs: dict[tuple[str, str, str, int], tuple[Path, Result]] = {}
    problems = []
    for path, found in read_results(folder):
        try:
            found = _drawable(path, found)
        except FileFormatError as error:
            problems.append(Problem(str(path), str(error)))
            continue
        first, _ = runs.setdefault((found.task, found.label, found.profile, found.seed), (path, found))
        if first != path:
            problems.append(Problem(str(path), f"{path} holds the same run as {first}, which is shown instead."))
    if not runs and not problems:
        raise InvalidInputError(f"{folder} holds no results: make some with `fsvi run TASK METHOD --out {folder}`.")
    return dict(runs.values()), problems


def _drawable(path: Path, found: Result | FileFormatError) -> Result:
    if isinstance(found, FileFormatError):
        raise found
    try:
        check_curves(found.curves)
    except FileFormatError as error:
        raise FileFormatError(f"{path} holds what no run writes, {error}: delete it and run it again.") from error
    return found


def collect_diagnoses(results: Mapping[Path, Result]) -> tuple[list[Diagnosed], list[Problem]]:
    """The diagnoses kept beside results, those with the most faults first, then warnings; and unreadable files."""
    found, problems = [], []
    for path, result in results.items():
        try:
            if diagnosis_path(path).exists():
                found.append(Diagnosed(result, read_diagnosis(diagnosis_path(path))))
        except FileFormatError as error:
            problems.append(Problem(str(diagnosis_path(path)), str(error)))
    return sorted(found, key=lambda each: (-each.count("fault"), -each.count("warning"))), problems


def build_sections(results: Sequence[Result]) -> list[Section]:
    """Tables and figures by task, then by profile."""
    sections = []
    for name, group in groupby(build_tables(results), lambda table: table.layout.section):
        tables = sorted(group, key=lambda table: list(PROFILE_NOTES).index(table.profile))
        title, about = ABOUT.get(name, (name, ""))
        parts = [_part(list(part)) for _, part in groupby(tables, lambda table: table.profile)]
        sections.append(Section(name, title, about, parts))
    return sections


def _part(tables: Sequence[Table]) -> Part:
    rows = [row for table in tables for row in table.rows]
    results = list({id(result): result for row in rows for result in row.results}.values())
    figures = [figure for _, group in _by_task(results) for figure in build_figures(group)]
    runs = [run for task, group in _by_task(results) for run in _runs(task, group)]
    return Part(tables[0].profile, tables, figures, runs)


def _by_task(results: Iterable[Result]) -> Iterator[tuple[str, list[Result]]]:
    for task, group in groupby(sorted(results, key=lambda r: r.task), lambda r: r.task):
        yield task, list(group)


def _runs(task: str, results: Sequence[Result]) -> Iterator[Settings]:
    """One for each method, or more where its settings differ between seeds."""
    groups: dict[tuple[str, str], list[Result]] = {}
    for result in sorted(results, key=lambda r: r.seed):
        groups.setdefault((result.label, _settings_text(result.settings)), []).append(result)
    for (label, settings), group in groups.items():
        yield Settings(task, full_name(label), settings, group)


def _settings_text(settings: Any) -> str:
    return json.dumps(settings, indent=1, ensure_ascii=False)


def duration(seconds: float) -> str:
    """A wall time that is easy to read."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def seed_range(seeds: Sequence[int]) -> str:
    """`0`, `0–9`, or the seeds one by one where some are missing in between."""
    seeds = sorted(set(seeds))
    if len(seeds) > 2 and seeds == list(range(seeds[0], seeds[-1] + 1)):
        return f"{seeds[0]}–{seeds[-1]}"
    return ", ".join(map(str, seeds))
