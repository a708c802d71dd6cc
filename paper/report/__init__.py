"""The report: all results of a folder next to the paper's, as one HTML page and as Markdown."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from fsvi.errors import FileFormatError, InvalidInputError
from fsvi.serialization import check_writable, write_bytes
from paper.experiment import PROFILES
from paper.methods import full_name
from paper.records import DIAGNOSIS, Result, read_document, read_results
from paper.report.figures import build_figures
from paper.report.tables import Table, compare_like_with_like, fill
from paper.task import Section
from paper.tasks.registry import TASKS

SOURCE = "Rudner, Chen, Teh and Gal 2022"
_PROFILES = {
    "paper": "The paper's protocol, except for what the notes below say.",
    "desk": "All data, with a network for computers without a GPU: compare with the paper's values with care.",
    "quick": "Less data or fewer epochs than in the paper: compare with its values for orientation only.",
    "smoke": "A few steps of training, to check that everything works: the numbers mean nothing.",
}
_LEVELS = {"fault": "no", "warning": "care"}
"""The names of a finding's levels in committed results."""


class Part(NamedTuple):
    """A section at one profile: its tables, and the results behind them."""

    section: Section
    profile: str
    tables: Sequence[Table]
    results: Sequence[Result]


def write_report(folder: Path, out: Path, tell: Callable[[str], None] = print, is_demo: bool = False) -> Path:
    """Write `report.html` and `report.md` about all results below a folder; returns the path of the page."""
    found, problems = collect(folder)
    results = list(found.values())
    values = {
        "parts": build_parts(results),
        "first": None if is_demo else compare_like_with_like(results),
        "diagnoses": [(each, findings) for path, each in found.items() if (findings := _findings(path))],
        "num_results": len(results),
        "problems": problems,
        "profiles": _PROFILES,
        "source": SOURCE,
        "is_demo": is_demo,
        "figures": build_figures,
        "full_name": full_name,
    }
    page = check_writable(out) / "report.html"
    for path in (page, page.with_suffix(".md")):
        write_bytes(path, render(path.name, values).encode())
    for problem in problems:
        tell(f"Left out: {problem}")
    tell(f"{len(results)} results. The report: {page}")
    return page


def render(template: str, values: Mapping[str, Any]) -> str:
    """The template filled with values; text in HTML is escaped, and Markdown can hold no tags of values."""
    is_page = template.endswith(".html")
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=is_page,
        finalize=None if is_page else lambda value: value.replace("<", "&lt;") if isinstance(value, str) else value,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template(template).render(values)


def collect(folder: Path) -> tuple[dict[Path, Result], list[str]]:
    """The results below `folder`, each run once, and the reasons why files are left out."""
    runs: dict[tuple[str, str, str, int], tuple[Path, Result]] = {}
    problems = []
    for path, found in read_results(folder):
        if isinstance(found, FileFormatError):
            problems.append(str(found))
            continue
        first, _ = runs.setdefault((found.task, found.label, found.profile, found.seed), (path, found))
        if first != path:
            problems.append(f"{path} holds the same run as {first}, which is shown instead.")
    if not runs and not problems:
        raise InvalidInputError(f"{folder} holds no results: make some with `python -m paper run TASK METHOD`.")
    return dict(runs.values()), problems


def build_parts(results: Sequence[Result]) -> list[Part]:
    """Sections in the order of tasks, each at every profile that has results."""
    parts = []
    for section in dict.fromkeys(task.section for task in TASKS.values()):
        tasks = {task for layout in section.tables for task in layout.tasks}
        for profile in PROFILES:
            filled = [table for layout in section.tables if (table := fill(layout, profile, results))]
            own = [each for each in results if each.task in tasks and each.profile == profile]
            if filled:
                own.sort(key=lambda each: (each.task, each.label, each.seed))
                parts.append(Part(section, profile, filled, own))
    return parts


def _findings(path: Path) -> list[Mapping[str, Any]]:
    """What the diagnosis next to a result advises to change."""
    try:
        found = read_document(path.with_suffix(DIAGNOSIS))["findings"]
    except (FileFormatError, KeyError):  # no diagnosis, or a damaged one
        return []
    levels = [{**each, "level": each.get("level") or _LEVELS.get(each["severity"], "ok")} for each in found]
    return sorted((each for each in levels if each["level"] != "ok"), key=lambda each: each["level"] == "care")
