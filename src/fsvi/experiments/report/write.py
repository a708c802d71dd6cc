"""`fsvi report`: all results of a folder next to the paper's, as one HTML page and as Markdown tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import fsvi
from fsvi.experiments.names import full_name, split_label
from fsvi.experiments.paper import SOURCE
from fsvi.experiments.report.collection import collect, collect_diagnoses
from fsvi.experiments.report.line_charts import COLORS
from fsvi.experiments.report.render import render
from fsvi.experiments.report.sections import build_sections
from fsvi.serialization import check_writable, write_bytes

PROFILE_NOTES: dict[str, str] = {
    "paper": "The paper's protocol, except for what the notes below say.",
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
        "introduction": introduction,
        "colors": COLORS,
    }
    page = check_writable(out) / "report.html"
    shown = {"duration": duration, "full_name": full_name, "split_label": split_label, "seed_range": seed_range}
    for path in (page, page.with_suffix(".md")):
        write_bytes(path, render(path.name, **values, **shown).encode())
    for problem in problems:
        tell(f"Left out: {problem.reason}")
    tell(f"{len(results)} results. The report: {page}")
    return page


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
