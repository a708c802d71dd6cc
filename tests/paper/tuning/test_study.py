import json
from dataclasses import replace

import pytest
import torch

from fsvi.errors import FSVIError, InvalidInputError
from fsvi.functions.gaussian import FunctionGaussian
from fsvi.functions.priors import Constant, Empirical, GaussianProcess, Induced, Prior
from fsvi.methods.registry import METHODS
from fsvi.methods.search_space import Choice
from fsvi.networks import mlp
from paper import data
from paper.experiment import Experiment, Order
from paper.runner.runs import checked
from paper.tasks.continual import CONTINUAL_TASKS
from paper.tasks.registry import TASKS
from paper.tuning import study as tuning
from paper.tuning.study import held_out, tune
from pictures import SHAPES, make_up, pretend
from review_texts import make_up as make_up_texts

pytest.importorskip("optuna", reason="Optuna is an extra: pip install optuna")

ORDER = Order("two-moons", "fsvi", "smoke")
TUNABLE = [name for name, entry in METHODS.items() if entry.search]
CLASSIFICATIONS = ("two-moons", "fashion-mnist", "rotated-mnist", "cifar10", "retina", "reviews")
TUNABLE_TASKS = [name for name, task in TASKS.items() if task not in CONTINUAL_TASKS]


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


@pytest.mark.parametrize(("task", "num_context"), [("two-moons", 24), ("snelson", 20)])
def test_the_recipes_own_settings_are_tried_first(tmp_path, task, num_context):
    order = Order(task, "fsvi", "smoke")
    method = TASKS[task].experiment(order).build(0)
    trial = tune(order, tmp_path, 1, tell=silent)["trials"][0]
    assert (trial["prior_variance"], trial["num_samples"]) == (method.prior.variance, method.num_samples)
    assert trial["num_context"] == method.num_context == num_context


@pytest.fixture
def made_up(monkeypatch):
    """Made-up images and tables in place of real ones; the names and splits that are asked for."""
    asked = pretend(monkeypatch)
    images = data.load

    def load(name, split="train"):
        if name in SHAPES:
            return images(name, split)
        asked.append((name, split))
        generator = torch.Generator().manual_seed(0)
        x, y = (torch.randn(60, columns, generator=generator, dtype=torch.float64) for columns in (3, 1))
        return data.DataSplit(x, y, name, split, sha256="0")

    def load_texts(name, split="train"):
        asked.append((name, split))
        return make_up_texts(name, split)

    monkeypatch.setattr(data, "load", load)
    monkeypatch.setattr(data, "load_texts", load_texts)
    return asked


@pytest.mark.parametrize("task", TUNABLE_TASKS)
@pytest.mark.parametrize("method", TUNABLE)
def test_every_setting_of_a_recipe_can_be_searched(made_up, task, method):
    if method == "duq" and task not in CLASSIFICATIONS:
        with pytest.raises(InvalidInputError, match="classes"):
            tuning._Search(checked(Order(task, method, "smoke")), (), 1).check()
        return
    search = tuning._Search(checked(Order(task, method, "smoke")), (), 1)
    switched_off = {
        name for name in search.space if search._own.get(name, 0) is None
    }  # a prior that a recipe leaves out
    assert search.recipe_params().keys() == search.space.keys() - switched_off


def test_the_learning_rate_of_a_trial_is_that_of_its_training(tmp_path, monkeypatch):
    used = []
    train = Experiment.train
    monkeypatch.setattr(
        Experiment, "train", lambda self, *a, **k: used.append(self.fit_settings["lr"]) or train(self, *a, **k)
    )
    order = replace(ORDER, task="snelson")
    first, second = tune(order, tmp_path, 2, tell=silent)["trials"]
    own = TASKS["snelson"].experiment(order).fit_settings["lr"]
    assert [first["lr"], second["lr"]] == used and first["lr"] == own != second["lr"]
    assert own / 4 <= second["lr"] <= own * 4


class Unwritable(Prior):
    """A prior of a user's own, which `config` cannot write down."""

    def __init__(self, variance):
        super().__init__()

    def gaussian(self, x, noise=None):
        mean = torch.zeros(len(x), 2, dtype=torch.float64)
        return FunctionGaussian(mean, mean.new_zeros(len(x), 0), mean.new_zeros(1, 0), 1.0)


def tried_prior(prior, tmp_path, monkeypatch):
    """The first trial where this is the recipe's prior, and the prior that it was trained with."""
    made = []
    build = Experiment.build
    monkeypatch.setattr(Experiment, "build", lambda self, seed: made.append(build(self, seed)) or made[-1])
    trial = tune(replace(ORDER, settings={"prior": prior}), tmp_path, 1, tell=silent)["trials"][0]
    return trial, made[-1].prior


@pytest.mark.parametrize("prior", [Constant(2.0), Induced(0.3, 0.01, seed=5), GaussianProcess(0.7, 2.0)])
def test_a_prior_is_searched_as_the_kind_that_it_is(tmp_path, monkeypatch, prior):
    trial, tried = tried_prior(prior, tmp_path, monkeypatch)
    assert trial["prior_variance"] == prior.variance and tried.config() == prior.config()
    second = tune(replace(ORDER, settings={"prior": prior}), tmp_path, 2, tell=silent)["trials"][1]
    assert second["prior_variance"] != prior.variance


@pytest.mark.parametrize(
    "prior",
    [Empirical(mlp(2, (30, 30), 2), 2.0), Unwritable(2.0)],
    ids=["made of a network", "unwritable"],
)
def test_a_prior_that_cannot_be_made_anew_is_left_alone(tmp_path, monkeypatch, prior):
    trial, tried = tried_prior(prior, tmp_path, monkeypatch)
    assert "prior_variance" not in trial and type(tried) is type(prior)


def test_cifar10_keeps_its_prior(tmp_path, monkeypatch, made_up):
    tried = []
    monkeypatch.setattr(tuning._Search, "_scores", lambda self, orders, *_: tried.append(orders[0]) or [0.0])
    trial = tune(Order("cifar10", "fsvi", "smoke"), tmp_path, 1, tell=silent)["trials"][0]
    prior = tried[0].settings["prior"]
    assert isinstance(prior, Induced) and prior.variance == trial["prior_variance"] == 0.1


def test_the_samplers_seed_is_one_that_it_takes(tmp_path):
    assert len(tune(replace(ORDER, seed=2**32 - 1), tmp_path, 2, tell=silent)["trials"]) == 2


def test_the_last_seed_of_several_splits_is_checked_first(tmp_path):
    with pytest.raises(InvalidInputError, match="seed=4294967296"):
        tune(replace(ORDER, seed=2**32 - 1), tmp_path, 1, splits=2)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("method", ["fsvi", "ensemble:fsvi"])
def test_a_weight_left_to_the_bound_and_an_ensembles_members_are_known(method):
    params = tuning._Search(Order("two-moons", method), (), 1).recipe_params()
    recipe = TASKS["two-moons"].experiment(Order("two-moons", method))
    assert params["kl_weight"] == pytest.approx(1 / len(recipe.data[0]))
    assert params["prior_variance"] > 0 and params["num_samples"] == 1


@pytest.mark.parametrize("task", ["two-moons", "snelson"])
def test_a_recipe_without_epochs_of_its_own_can_be_tuned(tmp_path, monkeypatch, task):
    monkeypatch.setattr(Experiment, "train", lambda self, method, seed, **settings: method.begin(self.data[0], 1))
    assert tune(Order(task, "map", "paper"), tmp_path, 1, tell=silent)["best"] is not None


def test_a_study_of_another_search_space_says_so(tmp_path, monkeypatch):
    order = Order("two-moons", "mfvi", "smoke")
    tune(order, tmp_path, 1, tell=silent)
    changed = replace(METHODS["mfvi"], search={**METHODS["mfvi"].search, "num_samples": Choice((1, 7))})
    monkeypatch.setitem(METHODS, "mfvi", changed)
    with pytest.raises(FSVIError, match="search space"):
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
        settings["after_epoch"](1)

    table = data.DataSplit(torch.rand(50, 2).double(), torch.rand(50, 1).double(), "yacht", "train", sha256="0")
    monkeypatch.setattr(data, "load", lambda *args, **kwargs: table)
    monkeypatch.setattr(tuning, "fit_together", fit_together)
    order = Order("uci-yacht", "fsvi", "paper")
    trials = tune(order, tmp_path, 3, tell=silent, splits=2)["trials"]
    recipe = TASKS["uci-yacht"].experiment(order)
    assert [num for num, _, _ in seen] == [2, 2, 2] and seen[0][1] == [41, 41]
    assert trials[0]["length"] == 1 and trials[0]["linearize"] == recipe.build(0).linearize
    epochs = recipe.fit_settings["epochs"]
    assert [each for _, _, each in seen] == [round(trial["length"] * epochs) for trial in trials]


@pytest.fixture
def scored(monkeypatch):
    """Trials that train nothing."""

    def value(self, trial, watch):
        if self.contexts:
            trial.suggest_categorical("context", self.contexts)
        return 0.0

    monkeypatch.setattr(tuning._Search, "value", value)


def test_another_seed_or_other_contexts_are_another_study(tmp_path, scored, monkeypatch):
    pretend(monkeypatch)
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

    monkeypatch.setitem(TASKS, "two-moons", replace(TASKS["two-moons"], recipe=with_validation))
    found = tune(replace(ORDER, seed=1), tmp_path, 1, tell=silent)
    assert found["objective"] == "mean log-likelihood of the validation data of the task"


def test_what_is_tried_is_what_is_trained(tmp_path, monkeypatch):
    orders = []
    recipe = TASKS["two-moons"].recipe
    seen = lambda order: (orders.append(order), recipe(order))[1]  # noqa: E731
    monkeypatch.setitem(TASKS, "two-moons", replace(TASKS["two-moons"], recipe=seen))
    trial = tune(ORDER, tmp_path, 1, tell=silent)["trials"][0]
    settings = orders[-1].settings
    assert settings["prior"].variance == trial["prior_variance"]
    assert (settings["num_context"], settings["kl_weight"]) == (trial["num_context"], trial["kl_weight"])


def rows(pair):
    """Every input with its target, for comparison."""
    return {(*x.flatten().tolist(), *y.flatten().tolist()) for x, y in zip(*pair, strict=True)}


def training_rows(task, seed):
    """What a recipe may show to tuning; a table has its test rows in the same file, so these are left out here."""
    if not task.startswith("uci-"):
        return rows(TASKS[task].experiment(Order(task, "map", "smoke", seed)).data)
    table = data.load(task.removeprefix("uci-"))
    train, _ = data.splits(len(table.x), 0.1, seed)
    return rows(tuple(data.Standardize.of(each[train])(each[train]).float() for each in (table.x, table.y)))


def watch(monkeypatch, task):
    """Make the task's evaluation raise; returns what is held out from now on, and for which seed."""
    original, recipe, seen = tuning.held_out, TASKS[task].recipe, []

    def refuse(method):
        raise AssertionError("tuning has called what loads test data")

    def spied(experiment, seed):
        seen.append((seed, *original(experiment, seed)))
        return seen[-1][1:]

    if task in ("cifar10", "retina"):  # a ResNet takes long, and what it would be trained on is seen above
        monkeypatch.setattr(Experiment, "train", lambda self, method, seed, **settings: method.begin(self.data[0], 1))
    guarded = replace(TASKS[task], recipe=lambda order: replace(recipe(order), evaluate=refuse))
    monkeypatch.setitem(TASKS, task, guarded)
    monkeypatch.setattr(tuning, "held_out", spied)
    return seen


@pytest.mark.parametrize("task", [task for task in TUNABLE_TASKS if task != "reviews"])  # which has a validation split
def test_test_data_are_never_seen(tmp_path, monkeypatch, made_up, task):
    """Neither loaded nor passed on: what is trained on and what is held out are the training data, and nothing else."""
    seen = watch(monkeypatch, task)
    seeds = [3, 4] if TASKS[task].can_stack else [3]
    tune(Order(task, "fsvi", "smoke", seeds[0]), tmp_path, 1, tell=silent, splits=len(seeds))
    assert {split for _, split in made_up} <= {"train"}
    assert [seed for seed, *_ in seen] == seeds
    for seed, experiment, held in seen:
        whole = training_rows(task, seed)
        assert len(held[0]) == round(0.1 * len(whole)) and len(held[0]) + len(experiment.data[0]) == len(whole)
        assert rows(held) | rows(experiment.data) == whole


def test_test_texts_are_never_seen(tmp_path, monkeypatch, made_up):
    watch(monkeypatch, "reviews")
    tune(Order("reviews", "fsvi", "smoke"), tmp_path, 1, tell=silent)
    assert {split for _, split in made_up} == {"train", "validation"}


def test_validation_data_are_not_test_data(tmp_path, monkeypatch):
    asked = pretend(monkeypatch, note="stands in")
    seen = watch(monkeypatch, "retina")
    tune(Order("retina", "fsvi", "smoke"), tmp_path, 1, tell=silent)
    assert {split for _, split in asked} == {"train", "validation"}
    (_, experiment, held), labels = seen[0], make_up("retina", "validation", 24).y
    assert torch.equal(held[1], labels) and rows(held).isdisjoint(rows(experiment.data))


def test_test_points_of_the_two_moons_are_not_held_out():
    """They are no file that could be watched."""
    experiment, held = held_out(TASKS["two-moons"].experiment(ORDER), 0)
    assert rows(data.two_moons(1000, noise=0.2, seed=1)).isdisjoint(rows(held) | rows(experiment.data))


def test_a_tenth_is_held_out():
    experiment = Experiment(None, (torch.arange(50.0)[:, None], torch.arange(50)), {}, None)
    rest, (x, y) = held_out(experiment, seed=0)
    assert len(y) == 5 and len(rest.data[1]) == 45
    assert sorted([*y.tolist(), *rest.data[1].tolist()]) == list(range(50))
    assert torch.equal(x.squeeze(1), y.float())


def test_a_trial_that_fails_is_kept_as_such(tmp_path, monkeypatch):
    def explode(order):
        experiment = TASKS["snelson"].experiment(Order("snelson", "map", "smoke"))
        x, y = experiment.data
        return Experiment(experiment.make, (x, y), {**experiment.fit_settings, "lr": 1e30}, experiment.evaluate)

    monkeypatch.setitem(TASKS, "two-moons", replace(TASKS["two-moons"], recipe=explode))
    with pytest.raises(FSVIError, match="--trials"):
        tune(Order("two-moons", "map", "smoke"), tmp_path, 1, tell=silent)
    summary = json.loads((tmp_path / "two-moons.map.smoke.0.json").read_text())
    assert summary["best"] is None and summary["trials"][0]["state"] == "pruned"
    assert summary["trials"][0]["value"] is None and "loss" in summary["trials"][0]["reason"]


def test_methods_without_a_search_space_say_so(tmp_path):
    with pytest.raises(InvalidInputError, match="'s-fsvi'"):
        tune(Order("two-moons", "s-fsvi", "smoke"), tmp_path, 1)


def test_search_spaces_are_of_arguments_that_exist():
    parts = {"prior_variance": "prior", "gamma": "divergence"}
    for name, entry in METHODS.items():
        space = {**entry.search, **entry.small_search}
        arguments = {parts.get(each, each) if entry.takes_context else each for each in space}
        assert arguments <= set(METHODS[name].arguments)
