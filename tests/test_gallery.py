"""The gallery: every script runs by itself and draws its picture. `make gallery` runs these; `make test` does not."""

import runpy
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

GALLERY = Path(__file__).parent.parent / "docs" / "gallery"
SCRIPTS = sorted(GALLERY.glob("*.py"))


@pytest.mark.gallery
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_an_example_draws_its_picture(script, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(GALLERY)
    with plt.rc_context({"backend": "Agg"}):
        runpy.run_path(str(script), run_name="__main__")
        plt.close("all")
    assert (tmp_path / f"{script.stem}.png").stat().st_size > 5_000


def test_every_example_has_its_picture_and_a_place_on_the_page():
    hooks = (GALLERY.parent / "hooks.py").read_text()
    assert len(SCRIPTS) >= 12
    for script in SCRIPTS:
        assert script.with_suffix(".png").exists(), "run `make figures` and commit the picture"
        assert script.stem in hooks
