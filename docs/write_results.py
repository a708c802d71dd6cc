"""Write docs/results.md from the files in results/ and studies/: `python docs/write_results.py`.

The prose is in results.md.jinja; all numbers come from the files. A test checks that the page is up to date.
"""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean

from paper.methods import METHODS
from paper.records import Result
from paper.report import render, report_values
from paper.report.tables import Table

DOCS = Path(__file__).resolve().parent


def results_page() -> str:
    """The page as it follows from the template and the results."""
    values = report_values(DOCS.parent / "paper" / "results")

    def tables(section: str, profile: str) -> list[Table]:
        """The tables of a section of the report, by its anchor."""
        parts = [part for each in values["sections"] if each.name == section for part in each.parts]
        return [table for part in parts if part.profile == profile for table in part.tables]

    def runs(task: str, method: str, profile: str, context: str | None = None) -> Runs:
        wanted = (task, method, profile, context)
        found = [each for each in values["results"] if (each.task, each.method, each.profile, each.context) == wanted]
        return Runs(sorted(found, key=lambda result: result.seed))

    return render("results.md.jinja", DOCS, **values, tables_of=tables, studies=studies, runs=runs)


class Runs:
    """A method's results on a task by seed, whose numbers sentences of the page quote."""

    def __init__(self, results: list[Result]) -> None:
        self.results = results

    def values(self, metric: str) -> list[float]:
        """The metric of every seed."""
        return [result.metrics[metric] for result in self.results]

    def percents(self, metric: str, digits: int = 1) -> str:
        """The metric of every seed in percent: "98.5, 97.7 and 98.0"."""
        return listed([100 * value for value in self.values(metric)], digits)

    def numbers(self, metric: str, digits: int = 3) -> str:
        """The metric of every seed as it is."""
        return listed(self.values(metric), digits)

    def mean(self, metric: str, digits: int = 2, factor: float = 100) -> str:
        """The mean over seeds, in percent; a factor of 1 leaves it as it is."""
        return shown(factor * fmean(self.values(metric)), digits)

    def below(self, other: Runs, metric: str, digits: int = 2) -> str:
        """How many points the metric is below the other's with the same seed, for every seed."""
        return listed(self._gaps(other, metric), digits)

    def mean_below(self, other: Runs, metric: str, digits: int = 2) -> str:
        """The mean of these differences."""
        return shown(fmean(self._gaps(other, metric)), digits)

    def _gaps(self, other: Runs, metric: str) -> list[float]:
        pairs = zip(self.values(metric), other.values(metric), strict=True)
        return [100 * (theirs - own) for own, theirs in pairs]


def listed(values: list[float], digits: int) -> str:
    """Numbers in a sentence."""
    *most, last = [shown(value, digits) for value in values]
    return f"{', '.join(most)} and {last}" if most else last


def shown(value: float, digits: int) -> str:
    """A number without the zero before its point."""
    text = f"{value:.{digits}f}"
    return text.replace("0.", ".", 1) if text.startswith(("0.", "-0.")) else text


def studies(task: str, profile: str) -> list[dict[str, object]]:
    """The studies of `fsvi tune` on a task, best first: held-out log-likelihoods with the recipe and the best trial."""
    rows = []
    for path in (DOCS.parent / "paper" / "studies").glob(f"{task}.*.{profile}.0.json"):
        study = json.loads(path.read_text("utf-8"))
        context = path.name.split(".")[1].removeprefix(study["method"]).lstrip("-")
        title = METHODS[study["method"]].title + (f" ({context})" if context else "")
        best = dict(study["best"])
        value = best.pop("value")
        settings = ", ".join(f"`{name}` {_short(setting)}" for name, setting in best.items() if name != "context")
        recipe = f"{study['trials'][0]['value']:.3f}"
        row = {"title": title, "trials": len(study["trials"]), "recipe": recipe, "best": f"{value:.3f}"}
        rows.append((value, {**row, "settings": settings}))
    return [row for _, row in sorted(rows, key=lambda pair: -pair[0])]


def _short(value: object) -> str:
    return f"{value:.2g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    (DOCS / "results.md").write_text(results_page(), "utf-8")
