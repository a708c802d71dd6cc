"""A run: its files, its settings, interruptions, and other processes."""

import subprocess
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from filelock import FileLock

import fsvi
from fsvi.errors import DataNotFoundError, InvalidInputError
from fsvi.training.callbacks import Callback
from made_results import make_result
from paper import data, runs
from paper.experiment import Experiment, Order
from paper.records import read_result, result_path, write_result
from paper.runs import checked, model_path, run, state
from paper.tasks.registry import TASKS

ORDER = Order("two-moons", "fsvi", "smoke")
ORIGINAL = TASKS["two-moons"].recipe


pytestmark = pytest.mark.usefixtures("few_predictions")


def silent(_):
    pass


def replace_recipe(monkeypatch, recipe):
    monkeypatch.setitem(TASKS, "two-moons", replace(TASKS["two-moons"], recipe=recipe))


def test_a_run_leaves_a_result_a_model_and_nothing_else(tmp_path, monkeypatch):
    assert state(ORDER, tmp_path) == "missing"
    result = run(ORDER, tmp_path, silent, progress=False)
    path = result_path(tmp_path, ORDER)
    assert read_result(path) == result and state(ORDER, tmp_path) == "done"
    assert (result.task, result.method, result.profile, result.seed) == ("two-moons", "fsvi", "smoke", 0)
    assert 0 <= result.metrics["accuracy"] <= 1
    assert result.settings["fit"]["epochs"] == 5 and result.settings["method"]["class"] == "FSVI"
    assert len(result.history["loss"]) == 5 and result.versions["torch"] == torch.__version__
    files = sorted(str(f.relative_to(tmp_path)) for f in tmp_path.rglob("*") if f.is_file() and f.suffix != ".lock")
    name = "two-moons/fsvi.smoke.0"
    assert files == [f"models/{name}.fsvi", f"{name}.diagnosis.json", f"{name}.json"]
    model = fsvi.load(model_path(tmp_path, path))
    assert TASKS["two-moons"].experiment(ORDER).evaluate(model).metrics == pytest.approx(result.metrics)
    replace_recipe(monkeypatch, lambda order: pytest.fail("it was run again"))
    said = []
    assert run(ORDER, tmp_path, said.append) == result and "already" in said[0]


def test_precision_is_noted_and_does_not_make_another_run(tmp_path):
    result = run(replace(ORDER, precision="bf16"), tmp_path, silent, progress=False)
    assert result.settings["fit"]["precision"] == "bf16" and "trained in bf16" in result.notes
    assert run(ORDER, tmp_path, silent) == result


def start_from_map(order):
    """The recipe of two moons; FSVI starts from the network of MAP."""
    experiment = ORIGINAL(order)
    if order.method == "map":
        return experiment

    def make(*trained):
        fresh = experiment.make()
        return fsvi.FSVI.from_trained(*trained, context=fresh.context) if trained else fresh

    return replace(experiment, make=make, starts=[replace(order, method="map", context=None)])


def test_a_run_makes_the_run_that_it_starts_from(tmp_path, monkeypatch):
    replace_recipe(monkeypatch, start_from_map)
    result = run(ORDER, tmp_path, silent, progress=False)
    first = replace(ORDER, method="map")
    before = read_result(result_path(tmp_path, first))
    assert result.seconds["start"] == before.seconds["train"] and "start" not in before.seconds
    result_path(tmp_path, ORDER).unlink()
    model_path(tmp_path, result_path(tmp_path, first)).unlink()
    with pytest.raises(InvalidInputError, match=r"no model.*map\.smoke\.0\.fsvi.*remove.*map\.smoke\.0\.json"):
        run(ORDER, tmp_path, silent, progress=False)


class Interrupt(Callback):
    epoch = 3

    def on_epoch_end(self, state):
        if state.epoch == self.epoch:
            raise KeyboardInterrupt


def test_an_interrupted_run_goes_on_to_the_same_bits(tmp_path, monkeypatch):
    whole = run(ORDER, tmp_path / "whole", silent, progress=False)
    monkeypatch.setattr("fsvi.training.checkpoints.INTERVAL", 0.0)
    train = Experiment.train
    monkeypatch.setattr(Experiment, "train", lambda *a, **k: train(*a, **k, callbacks=[Interrupt()]))
    with pytest.raises(KeyboardInterrupt):
        run(ORDER, tmp_path / "parts", silent, progress=False)
    assert state(ORDER, tmp_path / "parts") == "interrupted"
    monkeypatch.setattr(Interrupt, "epoch", 0)
    parts = run(ORDER, tmp_path / "parts", silent, progress=False)
    assert replace(parts, seconds=whole.seconds) == whole
    assert not list((tmp_path / "parts" / ".unfinished").rglob("*.fsvi"))


def test_a_result_that_another_process_makes_is_waited_for(tmp_path):
    lock = tmp_path / ".unfinished" / "two-moons" / "fsvi.smoke.0.lock"
    lock.parent.mkdir(parents=True)
    held = FileLock(lock, thread_local=False)
    holder = threading.Thread(target=held.acquire)
    holder.start()
    holder.join()
    assert state(ORDER, tmp_path) == "running"
    made = make_result("fsvi", task="two-moons", profile="smoke")

    def finish():
        write_result(result_path(tmp_path, ORDER), made)
        held.release()

    threading.Timer(0.3, finish).start()
    said = []
    assert run(ORDER, tmp_path, said.append) == made
    assert "Waiting" in said[0]


def test_missing_test_data_are_noticed_before_training(tmp_path, monkeypatch):
    replace_recipe(monkeypatch, lambda order: replace(ORIGINAL(order), tests=("concrete",)))
    monkeypatch.setenv("FSVI_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(Experiment, "train", lambda *_, **__: pytest.fail("it was trained"))
    monkeypatch.setattr(data, "ensure", lambda name, split: data.load(name))
    with pytest.raises(DataNotFoundError, match="concrete"):
        run(ORDER, tmp_path / "out", silent)


def test_bad_orders():
    changes = {
        "did you mean 'two-moons'": {"task": "two-mons"},
        "did you mean 'fsvi'": {"method": "fsvy"},
        r"'desk'.*two-moons.*cifar10 and retina": {"profile": "desk"},
        "fixed": {"context": "kmnist"},
        "takes none": {"task": "fashion-mnist", "method": "map", "context": "kmnist"},
        "did you mean 'kmnist'": {"task": "fashion-mnist", "context": "kmist"},
    }
    for said, change in changes.items():
        with pytest.raises(InvalidInputError, match=said):
            checked(replace(ORDER, **change))
    with pytest.raises(InvalidInputError, match="recipe"):
        run(replace(ORDER, settings={"num_context": 3}), Path("out"))


def test_the_commit_of_the_source(tmp_path, monkeypatch):
    (tmp_path / "src").mkdir()
    monkeypatch.setattr(runs, "__file__", str(tmp_path / "paper" / "runs.py"))
    git = lambda *args: subprocess.run(["git", *args], cwd=tmp_path, check=True, capture_output=True)  # noqa: E731
    git("init")
    assert runs.source_commit() is None
    (tmp_path / "src" / "a.py").write_text("")
    git("add", ".")
    git("-c", "user.name=a", "-c", "user.email=a@example.org", "commit", "-m", "one")
    head = runs.source_commit()
    assert len(head) == 40
    (tmp_path / "src" / "a.py").write_text("changed")
    assert runs.source_commit() == f"{head}+changes"
