"""The report: all results of a folder next to the paper's, as one HTML page and as Markdown tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import ChoiceLoader, Environment, FileSystemLoader, StrictUndefined

from fsvi.errors import FileFormatError, InvalidInputError
from fsvi.serialization import check_writable, write_bytes
from paper.names import full_name, split_label
from paper.published import SOURCE
from paper.records import DIAGNOSIS, Result, read_document, read_results
from paper.report.figures import build_figures
from paper.report.standing import CONFIDENCE, Comparison, build_standings, count_verdicts, decisive_errors
from paper.report.tables import build_sections
from paper.sweeps import duration

_TEMPLATES = Path(__file__).parent
_PROFILES = {
    "paper": "The paper's protocol, except for what the notes below say.",
    "desk": "All data, with a network for computers without a GPU: compare with the paper's values with care.",
    "quick": "Less data or fewer epochs than in the paper: compare with its values for orientation only.",
    "smoke": "A few steps of training, to check that everything works: the numbers mean nothing.",
}
_LEVELS = {"fault": "no", "warning": "care"}
"""The names of a finding's levels in committed results."""


def write_report(folder: Path, out: Path, tell: Callable[[str], None] = print, is_demo: bool = False) -> Path:
    """Write `report.html` and `report.md` about all results below a folder; returns the path of the page."""
    values = report_values(folder)
    page = check_writable(out) / "report.html"
    for path in (page, page.with_suffix(".md")):
        text = render(path.name, **values, is_demo=is_demo, figures=build_figures)
        write_bytes(path, text.encode())
    for problem in values["problems"]:
        tell(f"Left out: {problem}")
    tell(f"{len(values['results'])} results. The report: {page}")
    return page


def report_values(folder: Path) -> dict[str, Any]:
    """What the templates of reports show: results, tables, comparisons, and functions that write them as text."""
    found, problems = _collect(folder)
    sections = build_sections(list(found.values()))
    standings = build_standings(sections)
    return {
        "sections": sections,
        "standings": standings,
        "compared": [each.title for each in sections if any(each.title in of.by_section for of in standings)],
        "results": list(found.values()),
        "diagnoses": [(found[path], each) for path in found if (each := _findings(path))],
        "problems": problems,
        "profiles": _PROFILES,
        "source": SOURCE,
        "confidence": CONFIDENCE,
        "decisive": decisive_errors,
        "count_verdicts": count_verdicts,
        "short_profile": short_profile,
        "errors_range": errors_range,
        "duration": duration,
        "full_name": full_name,
        "split_label": split_label,
        "seed_range": seed_range,
    }


def render(template: str, folder: Path | None = None, **values: Any) -> str:
    """The template filled with values; text in HTML is escaped, and Markdown can hold no tags of values."""
    is_page = template.endswith(".html")
    environment = Environment(
        loader=ChoiceLoader([FileSystemLoader(each) for each in (_TEMPLATES, folder) if each is not None]),
        autoescape=is_page,
        finalize=None if is_page else lambda value: value.replace("<", "&lt;") if isinstance(value, str) else value,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template(template).render(values)


def _collect(folder: Path) -> tuple[dict[Path, Result], list[str]]:
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


def _findings(path: Path) -> list[Mapping[str, Any]]:
    """What the diagnosis next to a result advises to change."""
    try:
        found = read_document(path.with_suffix(DIAGNOSIS))["findings"]
    except (FileFormatError, KeyError):  # no diagnosis, or a damaged one
        return []
    levels = [{**each, "level": each.get("level") or _LEVELS.get(each["severity"], "ok")} for each in found]
    return sorted((each for each in levels if each["level"] != "ok"), key=lambda each: each["level"] == "care")


def short_profile(comparisons: Sequence[Comparison]) -> str:
    """The profiles with less effort than the paper's that comparisons were made at; "" if there are none."""
    return ", ".join(dict.fromkeys(each.profile for each in comparisons if each.profile != "paper"))


def errors_range(errors: Sequence[float]) -> str:
    """The smallest and the largest of several numbers of standard errors."""
    low, high = _errors_text(min(errors)), _errors_text(max(errors))
    return low if low == high else f"{low} to {high}"


def _errors_text(errors: float) -> str:
    """A signed number of standard errors; beyond a hundred, only that."""
    sign = "+" if errors > 0 else "−" if errors < 0 else ""
    if abs(errors) < 100:
        return f"{sign}{abs(errors):.1f}"
    return f"{'≥' if errors > 0 else '≤'} {sign}100"


def seed_range(seeds: Sequence[int]) -> str:
    """`0`, `0–9`, or all seeds if some between them are missing."""
    seeds = sorted(set(seeds))
    if len(seeds) > 2 and seeds == list(range(seeds[0], seeds[-1] + 1)):
        return f"{seeds[0]}–{seeds[-1]}"
    return ", ".join(map(str, seeds))
