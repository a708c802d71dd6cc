from dataclasses import replace

import pytest
import torch

from fsvi import data
from fsvi.errors import FSVIError, InvalidInputError
from fsvi.experiments import tuning
from fsvi.experiments.experiment import Experiment, Order
from fsvi.experiments.tasks import TASKS, Task
from fsvi.experiments.tuning import SPACES, held_out, tune
from fsvi.methods.registry import METHODS

pytest.importorskip("optuna", reason="Optuna is an extra: pip install optuna")

ORDER = Order("two-moons", "fsvi", "smoke")


def silent(_):
    pass


def test_a_study_goes_on_where_it_stopped(tmp_path):
    first = tune(ORDER, tmp_path, 2, tell=silent)
    said = []
    second = tune(ORDER, tmp_path, 3, tell=said.append)
    assert len(said) == 1 and len(second["trials"]) == 3
    assert second["trials"][:2] == first["trials"]
    assert second["best"]["value"] == max(trial["value"] for trial in second["trials"])
    assert set(second["best"]) == {"value", "prior_variance", "num_context", "kl_weight", "num_samples"}


def test_trials_after_an_interruption_are_not_the_first_ones_again(tmp_path):
    tune(ORDER, tmp_path, 1, tell=silent)
    first, second = tune(ORDER, tmp_path, 2, tell=silent)["trials"]
    assert first["prior_variance"] != second["prior_variance"] and first["kl_weight"] != second["kl_weight"]


def test_the_recipes_own_settings_are_tried_first(tmp_path):
    method = TASKS["two-moons"].recipe(ORDER).build(0)
    trial = tune(ORDER, tmp_path, 1, tell=silent)["trials"][0]
    assert (trial["prior_variance"], trial["num_samples"]) == (method.prior.variance, method.num_samples)


@pytest.mark.parametrize("method", ["fsvi", "ensemble:fsvi"])
def test_a_weight_left_to_the_bound_and_an_ensembles_members_are_known(method):
    params = tuning._Search(Order("two-moons", method), (), 1).recipe_params()
    recipe = TASKS["two-moons"].recipe(Order("two-moons", method))
    assert params["kl_weight"] == pytest.approx(1 / len(recipe.data[0]))
    assert params["prior_variance"] > 0 and params["num_samples"] == 1


@pytest.mark.parametrize("task", ["two-moons", "snelson"])
def test_a_recipe_without_epochs_of_its_own_can_be_tuned(tmp_path, monkeypatch, task):
    monkeypatch.setattr(Experiment, "train", lambda self, method, seed, **settings: method.begin(self.data[0], 1))
    assert tune(Order(task, "map", "paper"), tmp_path, 1, tell=silent)["best"] is not None


def test_a_study_of_another_search_space_says_so(tmp_path, monkeypatch):
    order = Order("two-moons", "mfvi", "smoke")
    tune(order, tmp_path, 1, tell=silent)
    monkeypatch.setitem(SPACES, "mfvi", {**SPACES["mfvi"], "num_samples": tuning.Choice((1, 7))})
    with pytest.raises(FSVIError, match="of another search space: choose another --out"):
        tune(order, tmp_path, 2, tell=silent)


def test_a_trials_value_is_the_mean_over_splits(tmp_path):
    """MAP's recipe lies in the search space, so that the first trial has nothing random but the seed."""
    order = Order("two-moons", "map", "smoke")
    alone = [tune(replace(order, seed=seed), tmp_path, 1, tell=silent)["best"]["value"] for seed in (3, 4)]
    both = tune(replace(order, seed=3), tmp_path, 1, tell=silent, splits=2)
    assert both["best"]["value"] == pytest.approx(sum(alone) / 2)
    assert both["splits"] == 2 and both["objective"].endswith("of the training data, over 2 random splits")


def test_small_networks_are_trained_together_and_for_as_long_as_is_best(tmp_path, monkeypatch):
    seen = []

    def fit_together(methods, pairs, **settings):
        seen.append((len(methods), [len(x) for x, _ in pairs], settings["epochs"]))

    table = data.Dataset(torch.rand(50, 2).double(), torch.rand(50, 1).double(), "yacht", "train", sha256="0")
    monkeypatch.setattr(data, "load", lambda *args, **kwargs: table)
    monkeypatch.setattr(tuning, "fit_together", fit_together)
    order = Order("uci-yacht", "fsvi", "paper")
    trials = tune(order, tmp_path, 3, tell=silent, splits=2)["trials"]
    recipe = TASKS["uci-yacht"].recipe(order)
    assert [num for num, _, _ in seen] == [2, 2, 2] and seen[0][1] == [41, 41]
    assert trials[0]["length"] == 1 and trials[0]["linearize"] == recipe.build(0).linearize
    epochs = recipe.fit_settings["epochs"]
    assert [each for _, _, each in seen] == [round(trial["length"] * epochs) for trial in trials]


@pytest.fixture
def scored(monkeypatch):
    """Trials that train nothing."""

    def value(self, trial):
        if self.contexts:
            trial.suggest_categorical("context", self.contexts)
        return 0.0

    monkeypatch.setattr(tuning._Search, "value", value)


def test_another_seed_or_other_contexts_are_another_study(tmp_path, scored):
    order = Order("fashion-mnist", "fsvi", "smoke")
    asked = [(0, ()), (1, ()), (0, ("monochrome", "kmnist")), (0, ("batch", "kmnist")), (0, ("kmnist", "monochrome"))]
    found = [tune(replace(order, seed=seed), tmp_path, 1, contexts, silent) for seed, contexts in asked]
    assert [(each["seed"], each["contexts"]) for each in found[:4]] == [
        (0, ["kmnist"]),
        (1, ["kmnist"]),
        (0, ["kmnist", "monochrome"]),
        (0, ["batch", "kmnist"]),
    ]
    assert found[4] == found[2]
    assert sorted(path.name for path in tmp_path.glob("*.json")) == [
        "fashion-mnist.fsvi-batch+kmnist.smoke.0.json",
        "fashion-mnist.fsvi-kmnist+monochrome.smoke.0.json",
        "fashion-mnist.fsvi-kmnist.smoke.0.json",
        "fashion-mnist.fsvi-kmnist.smoke.1.json",
    ]


def test_contexts_to_search_are_checked_first(tmp_path, scored):
    with pytest.raises(InvalidInputError, match="did you mean 'kmnist'"):
        tune(Order("fashion-mnist", "fsvi", "smoke"), tmp_path, 1, ("monochrome", "kmnst"))
    assert not list(tmp_path.iterdir())


def test_the_summary_says_what_was_predicted(tmp_path, monkeypatch):
    recipe = TASKS["two-moons"].recipe
    assert tune(ORDER, tmp_path, 1, tell=silent)["objective"].endswith("of a held-out 10% of the training data")

    def with_validation(order):
        experiment = recipe(order)
        return replace(experiment, validation=lambda: experiment.data)

    monkeypatch.setitem(TASKS, "two-moons", Task("", with_validation))
    found = tune(replace(ORDER, seed=1), tmp_path, 1, tell=silent)
    assert found["objective"] == "mean log-likelihood of the validation data of the task"


def test_what_is_tried_is_what_is_trained(tmp_path, monkeypatch):
    orders = []
    recipe = TASKS["two-moons"].recipe
    monkeypatch.setitem(TASKS, "two-moons", Task("", lambda order: (orders.append(order), recipe(order))[1]))
    trial = tune(ORDER, tmp_path, 1, tell=silent)["trials"][0]
    settings = orders[-1].settings
    assert settings["prior"].variance == trial["prior_variance"]
    assert (settings["num_context"], settings["kl_weight"]) == (trial["num_context"], trial["kl_weight"])


def test_test_data_are_never_seen(tmp_path, monkeypatch):
    """Neither loaded nor passed on: the recipe's test images would raise, and what is held out is training data."""
    seen = []
    images = torch.randint(256, (40, 1, 28, 28), dtype=torch.uint8)
    labels = torch.arange(40) % 10

    def load(name, split="train", root=None):
        if name != "kmnist":
            assert split == "train", f"{name} {split} was loaded"
        return data.Dataset(images, labels, name, split)

    monkeypatch.setattr(data, "load", load)
    monkeypatch.setattr(data, "available", lambda name, split="train", root=None: split == "test")
    original = tuning.held_out
    monkeypatch.setattr(tuning, "held_out", lambda *args: seen.append(original(*args)) or seen[-1])
    tune(Order("fashion-mnist", "fsvi", "smoke"), tmp_path, 1, tell=silent)
    experiment, (x, _) = seen[0]
    normalised = {tuple(image.flatten().tolist()) for image in data.Normalize.of(images)(images)}
    held, kept = ({tuple(image.flatten().tolist()) for image in each} for each in (x, experiment.data[0]))
    assert len(held) == 4 and len(kept) == 36 and held.isdisjoint(kept) and held | kept == normalised


def test_a_tenth_is_held_out():
    experiment = Experiment(None, (torch.arange(50.0)[:, None], torch.arange(50)), {}, None)
    rest, (x, y) = held_out(experiment, seed=0)
    assert len(y) == 5 and len(rest.data[1]) == 45
    assert sorted([*y.tolist(), *rest.data[1].tolist()]) == list(range(50))
    assert torch.equal(x.squeeze(1), y.float())


def test_a_trial_that_fails_is_kept_as_such(tmp_path, monkeypatch):
    def explode(order):
        experiment = TASKS["snelson"].recipe(Order("snelson", "map", "smoke"))
        x, y = experiment.data
        return Experiment(experiment.make, (x, y), {**experiment.fit_settings, "lr": 1e30}, experiment.evaluate)

    monkeypatch.setitem(TASKS, "two-moons", Task("", explode))
    summary = tune(Order("two-moons", "map", "smoke"), tmp_path, 1, tell=silent)
    assert summary["best"] is None and summary["trials"][0]["value"] is None


def test_methods_without_a_search_space_say_so(tmp_path):
    with pytest.raises(InvalidInputError, match="no search space for 'duq'"):
        tune(Order("two-moons", "duq", "smoke"), tmp_path, 1)


def test_search_spaces_are_of_arguments_that_exist():
    import inspect

    small = {name: {**SPACES[name], **space} for name, space in tuning._SMALL_SPACES.items()}
    for name, space in (*SPACES.items(), *small.items()):
        arguments = {"prior" if (name, each) == ("fsvi", "prior_variance") else each for each in space}
        assert arguments <= inspect.signature(METHODS[name]).parameters.keys()
