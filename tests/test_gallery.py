"""The gallery: every script runs by itself and draws its picture. `make gallery` runs these; `make test` does not."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

GALLERY = Path(__file__).parent.parent / "docs" / "gallery"
SCRIPTS = sorted(GALLERY.glob("*.py"))


@pytest.mark.gallery
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_an_example_draws_its_picture(script, tmp_path):
    environment = {**os.environ, "MPLBACKEND": "Agg"}
    done = subprocess.run([sys.executable, str(script)], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert (tmp_path / f"{script.stem}.png").stat().st_size > 5_000


def test_every_example_has_its_picture_and_a_place_on_the_page():
    hooks = (GALLERY.parent / "hooks.py").read_text()
    assert len(SCRIPTS) >= 12
    for script in SCRIPTS:
        assert script.with_suffix(".png").exists(), "run `make figures` and commit the picture"
        assert script.stem in hooks
