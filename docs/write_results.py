"""Write docs/results.md from the files in results/: `python docs/write_results.py`.

The prose is in results.md.jinja; all numbers come from the results. A test checks that the page is up to date.
"""

from pathlib import Path

from fsvi.experiments.report.comparison import Table
from fsvi.experiments.report.render import render
from fsvi.experiments.report.write import report_values

DOCS = Path(__file__).resolve().parent


def results_page() -> str:
    """The page as it follows from the template and the results."""
    values = report_values(DOCS.parent / "results")

    def tables(section: str, profile: str) -> list[Table]:
        """The tables of a section of the report, by its anchor."""
        parts = [part for each in values["sections"] if each.name == section for part in each.parts]
        return [table for part in parts if part.profile == profile for table in part.tables]

    return render("results.md.jinja", DOCS, **values, tables_of=tables)


if __name__ == "__main__":
    (DOCS / "results.md").write_text(results_page(), "utf-8")
