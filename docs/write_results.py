"""Write docs/results.md from the files in results/ and studies/: `python docs/write_results.py`.

The prose is in results.md.jinja; all numbers come from the files. A test checks that the page is up to date.
"""

import json
from pathlib import Path

from fsvi.experiments.report.comparison import Table
from fsvi.experiments.report.render import render
from fsvi.experiments.report.write import report_values
from fsvi.methods.registry import METHODS

DOCS = Path(__file__).resolve().parent


def results_page() -> str:
    """The page as it follows from the template and the results."""
    values = report_values(DOCS.parent / "results")

    def tables(section: str, profile: str) -> list[Table]:
        """The tables of a section of the report, by its anchor."""
        parts = [part for each in values["sections"] if each.name == section for part in each.parts]
        return [table for part in parts if part.profile == profile for table in part.tables]

    return render("results.md.jinja", DOCS, **values, tables_of=tables, studies=studies)


def studies(task: str, profile: str) -> list[dict[str, object]]:
    """The studies of `fsvi tune` on a task, best first: held-out log-likelihoods with the recipe and the best trial."""
    rows = []
    for path in (DOCS.parent / "studies").glob(f"{task}.*.{profile}.0.json"):
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
