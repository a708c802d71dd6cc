"""Tuning: held-out data only, the recipe first, studies that continue."""

import json
import multiprocessing
from dataclasses import replace

import optuna
import pytest
import torch

from fsvi.errors import FSVIError, InvalidInputError
from fsvi.functions.priors import Constant
from fsvi.methods.registry import setting_names
from paper import tuning
from paper.experiment import Experiment, Order
from paper.tasks.registry import TASKS
from paper.tuning import SPACES, held_out, tune

ORDER = Order("snelson", "fsvi", "smoke")
pytestmark = pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")


def quiet(_):
    pass


@pytest.fixture(autouse=True)
def no_test_data(monkeypatch):
    """Nothing in a search evaluates; `evaluate` is what loads test data."""
    original = TASKS["snelson"].recipe
    recipe = lambda order: replace(original(order), evaluate=lambda _: pytest.fail("it was evaluated"))  # noqa: E731
    monkeypatch.setitem(TASKS, "snelson", replace(TASKS["snelson"], recipe=recipe))


def test_a_study_starts_with_the_recipe_and_continues(tmp_path):
    summary = tune(ORDER, tmp_path, 2, tell=quiet)
    assert json.loads((tmp_path / "snelson.fsvi.smoke.0.json").read_text()) == summary
    assert set(summary) >= {"task", "method", "profile", "seed", "splits", "contexts", "objective", "recipe", "best"}
    first, second = summary["trials"]
    assert set(first) == {"value", "state"} and summary["recipe"]["method"]["num_context"] == 20
    assert set(second) - set(first) == {*SPACES["fsvi"], "lr"}
    assert first != second and summary["best"]["value"] == max(each["value"] for each in summary["trials"])
    assert len(tune(ORDER, tmp_path, 3, tell=quiet)["trials"]) == 3
    assert tune(ORDER, tmp_path, 3, tell=lambda _: pytest.fail("another trial"))["trials"][:2] == [first, second]


def test_the_value_is_the_held_out_log_likelihood(tmp_path):
    summary = tune(ORDER, tmp_path, 1, tell=quiet, splits=2)
    scores = []
    for seed in (0, 1):
        experiment, (x, y) = held_out(TASKS["snelson"].experiment(replace(ORDER, seed=seed)), seed)
        assert len(y) == 15 and len(experiment.data[1]) == 133
        method = experiment.build(seed)
        experiment.train(method, seed, progress=False)
        scores.append(float(method.predict(x, num_samples=16).log_prob(y).mean()))
    assert summary["trials"][0]["value"] == pytest.approx(sum(scores) / 2, abs=0.3)
    assert (tmp_path / "snelson.fsvi.smoke.0-2.json").exists()


def test_a_task_with_validation_data_uses_them():
    own = torch.zeros(3, 1), torch.ones(3, 1)
    experiment = replace(TASKS["snelson"].experiment(ORDER), validation=lambda: own)
    assert held_out(experiment, 0) == (experiment, own)


@pytest.mark.parametrize("name", SPACES)
def test_every_setting_that_is_searched_is_the_methods(name):
    assert {setting.partition(".")[0] for setting in SPACES[name]} <= set(setting_names(name))


def test_a_choice_changes_the_parts_of_the_recipe_too():
    fixed = {"prior.variance": 7.0, "num_context": 8, "kl_weight": 1e-3, "num_samples": 5, "lr": 0.01}
    chosen = tuning._Search(ORDER, (), 1)._choose(optuna.trial.FixedTrial(fixed))
    method = TASKS["snelson"].experiment(chosen).build(0)
    assert (method.prior.variance, method.num_context, method.kl_weight) == (7.0, 8, 1e-3)
    assert isinstance(method.prior, Constant) and chosen.fit_settings == {"lr": 0.01}


def test_a_study_of_another_recipe_is_refused(tmp_path, monkeypatch):
    tune(ORDER, tmp_path, 1, tell=quiet)
    with pytest.raises(FSVIError, match="another version of the recipe"):
        tune(replace(ORDER, fit_settings={"epochs": 2}), tmp_path, 2, tell=quiet)


@pytest.mark.parametrize(
    ("order", "settings", "said"),
    [
        (replace(ORDER, method="s-fsvi"), {}, "no search space"),
        (ORDER, {"contexts": ("kmnist",)}, "fixed"),
        (ORDER, {"trials": 0}, "trials=0"),
        (ORDER, {"storage": "nonsense"}, "cannot be used"),
    ],
)
def test_bad_searches_are_one_sentence(tmp_path, order, settings, said):
    with pytest.raises((InvalidInputError, FSVIError), match=said):
        tune(order, tmp_path, **{"trials": 1, "tell": quiet, **settings})


def test_a_hopeless_trial_is_pruned(tmp_path, monkeypatch):
    monkeypatch.setattr(tuning, "_STARTUP", 1)
    monkeypatch.setattr(tuning, "_WARMUP", 0)
    values = iter([0.0] * 5 + [-1e9] * 100)
    monkeypatch.setattr(tuning, "log_likelihood", lambda *_: next(values))
    summary = tune(ORDER, tmp_path, 2, tell=quiet)
    assert [each["state"] for each in summary["trials"]] == ["complete", "pruned"]


def _die(folder):
    import os

    Experiment.train = lambda *_, **__: os._exit(9)
    tune(ORDER, folder, 2, tell=quiet)


def test_the_trial_of_a_killed_process_is_repeated(tmp_path, monkeypatch):
    child = multiprocessing.get_context("spawn").Process(target=_die, args=(tmp_path,))
    child.start()
    child.join()
    assert child.exitcode == 9
    monkeypatch.setattr(tuning, "_HEARTBEAT", 1)
    monkeypatch.setattr(optuna.storages.RDBStorage, "_get_stale_trial_ids", _all_running)
    summary = tune(ORDER, tmp_path, 1, tell=quiet)
    assert set(summary["trials"][0]) == {"value", "state"}  # the recipe, which was lost


def _all_running(self, study_id):
    """As if the heartbeats had stopped long ago."""
    running = self.get_all_trials(study_id, states=(optuna.trial.TrialState.RUNNING,))
    return [trial._trial_id for trial in running]
