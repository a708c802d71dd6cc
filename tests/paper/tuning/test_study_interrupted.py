"""What becomes of a study whose process was interrupted, killed, or failed."""

import json
import math
from dataclasses import replace

import pytest

from fsvi.errors import FSVIError, InvalidInputError
from fsvi.methods.registry import METHODS
from paper.experiment import Experiment, Order
from paper.tasks.registry import TASKS
from paper.tuning import study as tuning
from paper.tuning.storage import Place
from paper.tuning.study import tune

pytest.importorskip("optuna", reason="Optuna is an extra: pip install optuna")

ORDER = Order("two-moons", "mfvi", "smoke")
OWN = {"prior_variance": 1.0, "num_samples": 1}


def silent(_):
    pass


def settings(summary):
    """Those of every trial, none of which may have failed."""
    assert all(trial["state"] == "complete" for trial in summary["trials"])
    return [{name: trial[name] for name in OWN} for trial in summary["trials"]]


def break_training(monkeypatch, error):
    def train(*args, **kwargs):
        raise error

    monkeypatch.setattr(Experiment, "train", train)


def left_running(tmp_path):
    """Begin a trial as a process does that is killed then."""
    search = tuning._Search(ORDER, (), 1)
    path = search.path(tmp_path)
    return tuning._open_study(search, path, Place(str(path.with_suffix(".log")), tmp_path)).study.ask()


def test_an_interrupted_trial_is_made_again(tmp_path, monkeypatch, capfd):
    with monkeypatch.context() as patch:
        break_training(patch, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            tune(ORDER, tmp_path, 2, tell=silent)
    assert capfd.readouterr() == ("", "")
    said = []
    first = tune(ORDER, tmp_path, 1, tell=said.append)
    assert settings(first) == [OWN]
    assert len(said) == 1 and said[0].startswith("trial 1/1: ")


def interrupt(monkeypatch, tmp_path, times):
    """Interrupt a study's second trial so often; returns the settings that were tried."""
    tried = []
    value = tuning._Search.value
    with monkeypatch.context() as patch:
        break_training(patch, KeyboardInterrupt())
        patch.setattr(
            tuning._Search, "value", lambda self, trial, watch: tried.append(trial) or value(self, trial, watch)
        )
        for _ in range(times):
            with pytest.raises(KeyboardInterrupt):
                tune(ORDER, tmp_path, 2, tell=silent)
    return [trial.params for trial in tried]


def test_an_interrupted_later_trial_is_made_again_with_its_own_settings(tmp_path, monkeypatch):
    tune(ORDER, tmp_path, 1, tell=silent)
    tried = interrupt(monkeypatch, tmp_path, 1)
    assert settings(tune(ORDER, tmp_path, 2, tell=silent)) == [OWN, *tried]


@pytest.mark.parametrize("begun", [(), ("prior_variance",), ("prior_variance", "num_samples")])
def test_a_trial_of_a_killed_process_is_made_again_once(tmp_path, begun):
    trial = left_running(tmp_path)
    for name in begun:
        METHODS["mfvi"].search[name].suggest(trial, name)
    summary = tune(ORDER, tmp_path, 2, tell=silent)
    assert settings(summary)[0] == OWN != settings(summary)[1]
    assert len(summary["trials"]) == 2


def test_settings_that_end_the_process_are_not_tried_for_ever(tmp_path, monkeypatch):
    tune(ORDER, tmp_path, 1, tell=silent)
    first, second, third = interrupt(monkeypatch, tmp_path, 3)
    assert first == second != third


def test_a_study_of_another_version_of_the_recipe_is_refused(tmp_path, monkeypatch):
    summary = tune(ORDER, tmp_path, 1, tell=silent)
    assert summary["recipe"]["fit"]["epochs"] == 5 and "prior_variance" not in summary["recipe"]["method"]
    task = TASKS["two-moons"]
    longer = lambda order: replace(  # noqa: E731
        task.recipe(order), fit_settings={**task.recipe(order).fit_settings, "epochs": 6}
    )
    monkeypatch.setitem(TASKS, "two-moons", replace(task, recipe=longer))
    with pytest.raises(FSVIError, match="recipe"):
        tune(ORDER, tmp_path, 2, tell=silent)


def test_a_recipes_trial_that_failed_is_made_again(tmp_path, monkeypatch, capfd):
    with monkeypatch.context() as patch:
        break_training(patch, MemoryError("no memory"))
        with pytest.raises(MemoryError):
            tune(ORDER, tmp_path, 1, tell=silent)
    assert capfd.readouterr() == ("", "")
    assert settings(tune(ORDER, tmp_path, 1, tell=silent)) == [OWN]


def test_a_later_trial_that_failed_is_neither_counted_nor_made_again(tmp_path, monkeypatch):
    tune(ORDER, tmp_path, 1, tell=silent)
    with monkeypatch.context() as patch:
        break_training(patch, MemoryError("no memory"))
        with pytest.raises(MemoryError):
            tune(ORDER, tmp_path, 2, tell=silent)
    assert len(tune(ORDER, tmp_path, 1, tell=silent)["trials"]) == 1
    assert len(tune(ORDER, tmp_path, 2, tell=silent)["trials"]) == 2


def test_a_likelihood_that_is_no_number_is_a_trial_without_a_value(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(tuning._Search, "_scores", lambda *args: [math.nan])
        with pytest.raises(FSVIError, match="2 trials"):
            tune(ORDER, tmp_path, 2, tell=silent)
    summary = tune(ORDER, tmp_path, 3, tell=silent)
    assert [trial["state"] for trial in summary["trials"]] == ["pruned", "pruned", "complete"]


def test_time_is_up(tmp_path, monkeypatch):
    """The trial that was being made is made again the next time, with its settings."""
    with pytest.raises(FSVIError, match="--time-budget"):
        tune(ORDER, tmp_path, 2, tell=silent, time_budget=1e-9)
    clock = iter(range(0, 10_000, 20))
    said = []
    tune(ORDER, tmp_path, 1, tell=silent)
    with monkeypatch.context() as patch:
        patch.setattr(tuning.time, "monotonic", lambda: next(clock))  # the budget ends within a few steps
        tune(ORDER, tmp_path, 3, tell=said.append, time_budget=100)
    assert said == ["Time is up after 1 of 3 trials; the same command continues."]
    summary = tune(ORDER, tmp_path, 3, tell=silent)
    assert [trial["state"] for trial in summary["trials"]] == ["complete"] * 3
    with pytest.raises(InvalidInputError, match="time_budget=0"):
        tune(ORDER, tmp_path, 3, tell=silent, time_budget=0)


def test_the_summary_is_written_even_if_there_is_nothing_to_try(tmp_path):
    order = replace(ORDER, seed=3)
    summary = tune(order, tmp_path, 1, tell=silent)
    path = tmp_path / "two-moons.mfvi.smoke.3.json"
    path.unlink()
    assert tune(order, tmp_path, 1, tell=silent) == summary == json.loads(path.read_text())
