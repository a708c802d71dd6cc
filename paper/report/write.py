"""`fsvi report`: all results of a folder next to the paper's, as one HTML page and as Markdown tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import fsvi
from fsvi.serialization import check_writable, write_bytes
from paper.names import full_name, split_label
from paper.published import SOURCE
from paper.report.collection import collect, collect_diagnoses
from paper.report.line_charts import COLORS
from paper.report.render import render
from paper.report.sections import build_sections
from paper.report.standing import CONFIDENCE, Comparison, build_standings, count_verdicts, decisive_errors

PROFILE_NOTES: dict[str, str] = {
    "paper": "The paper's protocol, except for what the notes below say.",
    "desk": "All data, with a network for computers without a GPU: compare with the paper's values with care.",
    "quick": "Less data or fewer epochs than in the paper: compare with its values for orientation only.",
    "smoke": "A few steps of training, to check that everything works: the numbers mean nothing.",
}


def write_report(folder: Path, out: Path, tell: Callable[[str], None] = print, introduction: str | None = None) -> Path:
    """Write `report.html` and `report.md` about all results below a folder; returns the path of the page.

    The report lists files that cannot be read, and files with the same run as another, with the reason. It shows the
    diagnoses that are kept next to results.

    Args:
        folder: The folder with results.
        out: The folder for the report.
        tell: Receives a line about each problem, and one at the end.
        introduction: A template that replaces the introduction of the page.
    """
    values = report_values(folder)
    page = check_writable(out) / "report.html"
    for path in (page, page.with_suffix(".md")):
        write_bytes(path, render(path.name, **values, introduction=introduction).encode())
    for problem in values["problems"]:
        tell(f"Left out: {problem.reason}")
    tell(f"{len(values['results'])} results. The report: {page}")
    return page


def report_values(folder: Path) -> dict[str, Any]:
    """What the templates of reports show: results, tables, comparisons, and functions that write them as text.

    Args:
        folder: The folder with results.
    """
    found, problems = collect(folder)
    diagnoses, more = collect_diagnoses(found)
    sections = build_sections(list(found.values()))
    standings = build_standings(sections)
    return {
        "sections": sections,
        "standings": standings,
        "compared": [each.title for each in sections if any(each.title in of.by_section for of in standings)],
        "results": list(found.values()),
        "diagnoses": diagnoses,
        "problems": [*problems, *more],
        "profiles": PROFILE_NOTES,
        "source": SOURCE,
        "version": fsvi.__version__,
        "colors": COLORS,
        "confidence": CONFIDENCE,
        "decisive": decisive_errors,
        "count_verdicts": count_verdicts,
        "short_profile": short_profile,
        "errors_text": errors_text,
        "errors_range": errors_range,
        "duration": duration,
        "full_name": full_name,
        "split_label": split_label,
        "seed_range": seed_range,
    }


def short_profile(comparisons: Sequence[Comparison]) -> str:
    """The profiles with less effort than the paper's that comparisons were made at; "" if there are none."""
    return ", ".join(dict.fromkeys(each.profile for each in comparisons if each.profile != "paper"))


def errors_text(errors: float) -> str:
    """A signed number of standard errors; beyond a hundred, only that."""
    sign = "+" if errors > 0 else "−" if errors < 0 else ""
    if abs(errors) < 100:
        return f"{sign}{abs(errors):.1f}"
    return f"{'≥' if errors > 0 else '≤'} {sign}100"


def errors_range(errors: Sequence[float]) -> str:
    """The smallest and the largest of several numbers of standard errors."""
    low, high = errors_text(min(errors)), errors_text(max(errors))
    return low if low == high else f"{low} to {high}"


def duration(seconds: float) -> str:
    """A wall time that is easy to read."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def seed_range(seeds: Sequence[int]) -> str:
    """`0`, `0–9`, or all seeds if some between them are missing."""
    seeds = sorted(set(seeds))
    if len(seeds) > 2 and seeds == list(range(seeds[0], seeds[-1] + 1)):
        return f"{seeds[0]}–{seeds[-1]}"
    return ", ".join(map(str, seeds))
