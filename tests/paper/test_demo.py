"""The demo is the toy sweep followed by the report."""

import pytest

from fsvi.errors import InvalidInputError
from pages import Page
from paper import sweeps
from paper.demo import run_demo
from paper.records import read_results
from paper.tasks.toy_sweep import TOY_SWEEP

TASKS = ("two-moons", "snelson", "oat1d", "subspace")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder and the lines of one quick run in this process."""
    folder, lines = tmp_path_factory.mktemp("demo") / "new", []
    assert run_demo(folder, seed=5, quick=True, jobs=1, tell=lines.append) == folder / "report.html"
    return folder, lines


def test_every_run_has_a_result(run):
    results = [result for _, result in read_results(run[0])]
    assert {(result.task, result.method) for result in results} == {
        (task, method) for task in TASKS for method, _ in TOY_SWEEP.rows
    }
    assert {(result.seed, result.profile) for result in results} == {(5, "smoke")}


def test_the_page_explains_and_shows_every_task(run):
    page = Page((run[0] / "report.html").read_text("utf-8"))
    assert page.open == [] and set(TASKS) <= set(page.ids)
    assert "Networks that know what they do not know" in page.text
    assert "numbers mean nothing" in page.text, "a quick run says so"
    pictures = [source for source in page.fetched if source.startswith("data:image/png;base64,")]
    assert len(pictures) == len(page.fetched) == 4 * len(TASKS)


def test_a_second_run_reuses_the_results(run, monkeypatch):
    monkeypatch.setattr("paper.runner.runs._make", lambda *_: pytest.fail("it was run again"))
    run_demo(run[0], seed=5, quick=True, jobs=1, tell=lambda _: None)


def test_an_unwritable_folder_is_found_before_training(tmp_path, monkeypatch):
    monkeypatch.setattr(sweeps, "each_made", lambda *_, **__: pytest.fail("training started"))
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInputError, match="cannot be written"):
        run_demo(tmp_path / "file" / "demo", jobs=1)


def test_bad_counts_are_refused(tmp_path):
    with pytest.raises(InvalidInputError, match="seed=-1"):
        run_demo(tmp_path, seed=-1)
    with pytest.raises(InvalidInputError, match="jobs=0"):
        run_demo(tmp_path, jobs=0)
