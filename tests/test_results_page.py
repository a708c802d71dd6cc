"""The results page of the documentation says what the files in results/ say."""

import importlib.util
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"


def test_the_results_page_is_up_to_date():
    spec = importlib.util.spec_from_file_location("write_results", DOCS / "write_results.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    page = (DOCS / "results.md").read_text("utf-8")
    assert module.results_page() == page, "run `python docs/write_results.py`, which writes docs/results.md again"
