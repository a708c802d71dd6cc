"""The results and diagnoses below a folder, and the files that cannot be used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fsvi.diagnosis import Diagnosis, Finding
from fsvi.diagnosis.findings import LEVELS, Level
from fsvi.errors import FileFormatError, InvalidInputError
from paper.records import Result, read_results
from paper.report.figures import check_curves
from paper.runner.diagnoses import diagnosis_path, read_diagnosis


@dataclass(frozen=True)
class Problem:
    """A file that is left out, and why.

    Attributes:
        path: The file.
        reason: One sentence.
    """

    path: str
    reason: str


@dataclass(frozen=True)
class DiagnosedRun:
    """A run with its diagnosis.

    Attributes:
        result: The run's result.
        diagnosis: Its diagnosis.
    """

    result: Result
    diagnosis: Diagnosis

    @property
    def findings(self) -> list[Finding]:
        """The worst first."""
        return sorted(self.diagnosis, key=lambda finding: LEVELS.index(finding.level))

    @property
    def is_well(self) -> bool:
        """Whether nothing has to be changed."""
        return all(finding.level == "ok" for finding in self.diagnosis)

    def count(self, level: Level) -> int:
        """The number of findings of this level."""
        return sum(finding.level == level for finding in self.diagnosis)


def collect(folder: Path) -> tuple[dict[Path, Result], list[Problem]]:
    """The results below `folder`, each run once, and the files that are left out."""
    if not folder.is_dir():
        raise InvalidInputError(
            f"there is no folder {folder}: give the folder into which `fsvi run` wrote its results."
        )
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
        raise FileFormatError(f"{path} is damaged, {error}: delete it and run it again.") from error
    return found


def collect_diagnoses(results: Mapping[Path, Result]) -> tuple[list[DiagnosedRun], list[Problem]]:
    """The diagnoses next to results, the worst first; and unreadable files."""
    found, problems = [], []
    for path, result in results.items():
        try:
            if diagnosis_path(path).exists():
                found.append(DiagnosedRun(result, read_diagnosis(diagnosis_path(path))))
        except FileFormatError as error:
            problems.append(Problem(str(diagnosis_path(path)), str(error)))
    return sorted(found, key=lambda each: (-each.count("no"), -each.count("care"))), problems
