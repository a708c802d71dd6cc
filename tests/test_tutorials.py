"""The tutorials run as they stand: every block of Python on a page, in order, in one namespace."""

import re
from pathlib import Path

import matplotlib
import pytest

PAGES = sorted((Path(__file__).parent.parent / "docs" / "tutorials").glob("*.md"))


def code(page: Path) -> str:
    return "\n".join(re.findall(r"^```python\n(.*?)^```", page.read_text("utf-8"), re.MULTILINE | re.DOTALL))


def test_there_are_tutorials():
    assert len(PAGES) >= 7 and all(code(page) for page in PAGES)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_tutorial_runs_as_it_stands(page, tmp_path, monkeypatch):
    matplotlib.use("Agg")
    monkeypatch.chdir(tmp_path)
    exec(compile(code(page), str(page), "exec"), {"__name__": "__main__"})
    for name in re.findall(r"\]\((\w+\.png)\)", page.read_text("utf-8")):
        assert (tmp_path / name).stat().st_size > 5_000
        assert (page.parent / name).exists(), "run `make figures` and commit the picture"
