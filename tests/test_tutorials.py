"""The pages run as they stand: every block of Python and every `fsvi` command on a page, in order, in one namespace."""

import importlib.util
from pathlib import Path

import pytest

DOCS = Path(__file__).parent.parent / "docs"
_spec = importlib.util.spec_from_file_location("draw", DOCS / "draw.py")
draw = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(draw)
PAGES = [page for page in draw.PAGES if draw.blocks(page)]


@pytest.mark.gallery
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_runs_as_it_stands(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    draw.run(page)
    for name in draw.pictures(page):
        assert (tmp_path / name).stat().st_size > 5_000


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_pictures_of_a_page_are_there(page):
    assert all((page.parent / name).exists() for name in draw.pictures(page)), "run `make figures` and commit them"
