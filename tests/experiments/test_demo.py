"""The demo from end to end, with hardly any training."""

import json
import math
import os

import pytest
import torch

from fsvi.errors import FSVIError, InvalidInputError
from fsvi.experiments import demo
from fsvi.experiments.demo import Job, run_demo, run_job
from fsvi.experiments.report.demo_report import METRICS
from fsvi.experiments.tasks.toy import METHODS, RECIPES


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder and the lines of one quick run in this process."""
    folder, lines = tmp_path_factory.mktemp("demo") / "new", []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "_QUICK_EPOCHS", 2)
        assert run_demo(folder, seed=5, quick=True, workers=1, tell=lines.append) == folder / "report.html"
    return folder, lines


def test_report_metrics_and_figures_are_written(run):
    folder, _ = run
    names = {path.name for path in folder.iterdir()}
    assert names == {"report.html", "metrics.json", *(f"{task}.png" for task in RECIPES)}
    for task in RECIPES:
        assert (folder / f"{task}.png").read_bytes().startswith(b"\x89PNG")
    assert (folder / "report.html").read_text().count("data:image/png;base64,") == 4 * len(RECIPES)


def test_metrics_say_what_was_measured_and_how(run):
    summary = json.loads((run[0] / "metrics.json").read_text())
    assert summary["seed"] == 5 and summary["quick"] is True
    assert {"fsvi", "python", "torch"} <= summary["versions"].keys()
    assert summary["tasks"].keys() == RECIPES.keys()
    for methods in summary["tasks"].values():
        result = methods["FSVI"]
        assert result["metrics"].keys() <= METRICS.keys()
        assert all(math.isfinite(value) for value in result["metrics"].values())
        assert 0 < result["seconds"] <= summary["seconds"]
        assert result["settings"]["method"]["class"] == "FSVI"
        assert result["settings"]["fit"]["epochs"] == 2 and result["settings"]["fit"]["lr"] > 0


def test_progress_is_told_in_short_lines(run):
    folder, lines = run
    assert len(lines) == len(RECIPES) * len(METHODS) + 2
    assert all(len(line) < 100 for line in lines[:-1])
    assert str(folder / "report.html") in lines[-1]


def test_an_unwritable_folder_is_found_before_training(tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "run_job", lambda job: pytest.fail("training started"))
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInputError, match="written"):
        run_demo(tmp_path / "file" / "demo", workers=1)


def test_bad_counts_are_refused(tmp_path):
    with pytest.raises(InvalidInputError, match="seed=-1"):
        run_demo(tmp_path, seed=-1)
    with pytest.raises(InvalidInputError, match="workers=0"):
        run_demo(tmp_path, workers=0)


def test_a_process_of_its_own_finds_what_this_one_finds():
    job = Job("oat1d", "FSVI", seed=0, quick=True)
    (found,) = demo._outcomes([job], workers=2)
    with demo._one_thread():
        assert found.evaluation.metrics == run_job(job).evaluation.metrics


def test_a_process_that_dies_is_one_sentence(monkeypatch):
    monkeypatch.setattr(demo, "run_job", os._exit)
    with pytest.raises(FSVIError, match="--workers 1"):
        list(demo._outcomes([1], workers=2))


def test_the_number_of_threads_is_restored():
    before = torch.get_num_threads()
    with demo._one_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before
