"""The tutorials run: every block of Python on a page, in order, in one namespace, with fewer epochs."""

import importlib
import importlib.util
from pathlib import Path

import pytest

DOCS = Path(__file__).parent.parent / "docs"
GUIDES = [DOCS / name for name in ("calibration.md", "training.md", "models.md", "new_likelihood.md")]
EPOCHS = 40
_spec = importlib.util.spec_from_file_location("draw", DOCS / "draw.py")
draw = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(draw)


@pytest.mark.parametrize("page", [*draw.PAGES, *GUIDES], ids=lambda page: page.stem)
def test_a_tutorial_runs(page, tmp_path, monkeypatch):
    training = importlib.import_module("fsvi.training.fit")
    whole = training.Run

    def shorter(method, batches, held_out, stepper, rates, epochs, *others):
        return whole(method, batches, held_out, stepper, rates, min(epochs, EPOCHS), *others)

    monkeypatch.setattr(training, "Run", shorter)
    monkeypatch.chdir(tmp_path)
    draw.run(page)
    for name in draw.pictures(page):
        assert (tmp_path / name).stat().st_size > 5_000
        assert (page.parent / name).exists(), "run `make figures` and commit the picture"
