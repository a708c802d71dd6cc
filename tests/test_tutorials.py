"""The tutorials run as they stand: every block of Python on a page, in order, in one namespace."""

import importlib.util
from pathlib import Path

import pytest

DOCS = Path(__file__).parent.parent / "docs"
GUIDES = [DOCS / name for name in ("calibration.md", "training.md", "models.md", "new_likelihood.md")]
_spec = importlib.util.spec_from_file_location("draw", DOCS / "draw.py")
draw = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(draw)


def test_there_are_tutorials():
    assert len(draw.PAGES) >= 7 and all(draw.code(page) for page in draw.PAGES)


@pytest.mark.parametrize("page", [*draw.PAGES, *GUIDES], ids=lambda page: page.stem)
def test_a_tutorial_runs_as_it_stands(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    draw.run(page)
    for name in draw.pictures(page):
        assert (tmp_path / name).stat().st_size > 5_000
        assert (page.parent / name).exists(), "run `make figures` and commit the picture"
