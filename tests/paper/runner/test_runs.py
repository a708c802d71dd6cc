from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from filelock import FileLock

import fsvi
from fsvi.errors import DataNotFoundError, FSVIError, InvalidInputError
from fsvi.training.loop import Run
from made_results import make_result
from paper import data
from paper.experiment import Compute, Experiment, Order
from paper.records import read_result, result_path, write_result
from paper.runner import runs
from paper.runner.runs import checked, model_path, run, run_stacked
from paper.tasks.registry import TASKS

ORDER = Order("two-moons", "fsvi", "smoke")
ORIGINAL = TASKS["two-moons"].recipe


def silent(_):
    pass


def replace_recipe(monkeypatch, recipe):
    monkeypatch.setitem(TASKS, "two-moons", replace(TASKS["two-moons"], recipe=recipe))


def test_a_run_leaves_a_result_a_model_and_nothing_else(tmp_path):
    result = run(ORDER, tmp_path, silent, progress=False)
    path = result_path(tmp_path, ORDER)
    assert read_result(path) == result
    assert (result.task, result.method, result.profile, result.seed) == ("two-moons", "fsvi", "smoke", 0)
    assert 0 <= result.metrics["accuracy"] <= 1
    assert result.settings["fit"]["epochs"] == 5 and result.settings["method"]["class"] == "FSVI"
    assert len(result.history["loss"]) == 5
    assert result.versions["torch"] == torch.__version__
    files = sorted(str(f.relative_to(tmp_path)) for f in tmp_path.rglob("*") if f.is_file() and f.suffix != ".lock")
    names = (
        "models/two-moons/fsvi.smoke.0.fsvi",
        "two-moons/fsvi.smoke.0.diagnosis.json",
        "two-moons/fsvi.smoke.0.json",
    )
    assert files == list(names)
    assert path.stat().st_size < 100_000


def test_the_saved_model_is_the_one_that_was_measured(tmp_path):
    result = run(ORDER, tmp_path, silent, progress=False)
    experiment = TASKS["two-moons"].experiment(ORDER)
    model = fsvi.load(model_path(tmp_path, result_path(tmp_path, ORDER)))
    assert experiment.evaluate(model).metrics == pytest.approx(result.metrics)


@pytest.mark.parametrize("method", ["map", "ensemble:map"])
def test_a_result_of_other_settings_is_not_taken_for_the_one_asked_for(tmp_path, method):
    order = replace(ORDER, method=method, settings={"prior_variance": 2.0}, fit_settings={"epochs": 1})
    result = run(order, tmp_path, silent, progress=False)
    assert run(order, tmp_path, silent) == result
    for other, said in (
        ({"settings": {"prior_variance": 3.0}}, "prior_variance=3.0, epochs=1"),
        ({"fit_settings": {"epochs": 2}}, "prior_variance=2.0, epochs=2"),
        ({"settings": {}, "fit_settings": {}}, "recipe"),
    ):
        with pytest.raises(InvalidInputError, match=said):
            run(replace(order, **other), tmp_path, silent)
        with pytest.raises(InvalidInputError, match=said):
            run_stacked([replace(order, **other)], tmp_path, silent)


def test_precision_is_noted_and_does_not_make_another_run(tmp_path, monkeypatch):
    seen = []
    train = Experiment.train
    monkeypatch.setattr(
        Experiment, "train", lambda self, *a, **k: seen.append(self.fit_settings) or train(self, *a, **k)
    )
    result = run(ORDER, tmp_path, silent, progress=False, compute=Compute(precision="bf16"))
    assert seen[0]["precision"] == result.settings["fit"]["precision"] == "bf16"
    assert "trained in bf16" in result.notes
    assert run(ORDER, tmp_path, silent) == result


def test_settings_that_are_objects_are_known_again(tmp_path):
    order = replace(ORDER, settings={"prior": fsvi.priors.Constant(2.0)}, fit_settings={"epochs": 1})
    result = run(order, tmp_path, silent, progress=False)
    assert run(replace(order, settings={"prior": fsvi.priors.Constant(2.0)}), tmp_path, silent) == result
    with pytest.raises(InvalidInputError, match="prior="):
        run(replace(order, settings={"prior": fsvi.priors.Constant(3.0)}), tmp_path, silent)


def start_from_map(order):
    """The recipe of two moons; FSVI starts from the network of MAP."""
    experiment = ORIGINAL(order)
    if order.method == "map":
        return experiment

    def make(*trained):
        fresh = experiment.make()
        return fsvi.FSVI.from_trained(*trained, context=fresh.context) if trained else fresh

    starts = [replace(order, method="map", context=None)]
    return replace(experiment, make=make, starts=starts, fit_settings={**experiment.fit_settings, "lr": 1e-30})


def test_a_run_makes_the_run_that_it_starts_from(tmp_path, monkeypatch):
    replace_recipe(monkeypatch, start_from_map)
    result = run(ORDER, tmp_path, silent, progress=False)
    first = read_result(result_path(tmp_path, replace(ORDER, method="map")))
    assert result.seconds["start"] == first.seconds["train"] and "start" not in first.seconds
    models = [
        fsvi.load(model_path(tmp_path, result_path(tmp_path, each))) for each in (replace(ORDER, method="map"), ORDER)
    ]
    point, started = ({name: p.detach() for name, p in model.net.named_parameters()} for model in models)
    started |= {name: value.detach() for name, value in models[1].posterior.params().items()}
    assert point.keys() <= started.keys()
    for name, value in point.items():
        torch.testing.assert_close(started[name], value, atol=1e-5, rtol=0)  # its own training hardly moves it


def test_a_run_whose_start_has_lost_its_model_says_what_to_remove(tmp_path, monkeypatch):
    replace_recipe(monkeypatch, start_from_map)
    first = replace(ORDER, method="map")
    run(first, tmp_path, silent, progress=False)
    model_path(tmp_path, result_path(tmp_path, first)).unlink()
    with pytest.raises(InvalidInputError, match=r"no model.*map\.smoke\.0\.fsvi.*remove.*map\.smoke\.0\.json"):
        run(ORDER, tmp_path, silent, progress=False)


def test_a_profile_that_the_task_does_not_have_is_refused():
    with pytest.raises(InvalidInputError, match=r"'desk'.*two-moons.*cifar10 and retina"):
        checked(replace(ORDER, profile="desk"))


def test_a_run_that_is_done_is_not_redone(tmp_path, monkeypatch):
    first = run(ORDER, tmp_path, silent, progress=False)
    replace_recipe(monkeypatch, lambda order: pytest.fail("it was run again"))
    said = []
    assert run(ORDER, tmp_path, said.append) == first
    assert "already" in said[0]


def test_an_interrupted_run_goes_on_to_the_same_bits(tmp_path, monkeypatch):
    whole = run(ORDER, tmp_path / "whole", silent, progress=False)
    monkeypatch.setattr(runs, "_CHECKPOINT_INTERVAL", 0.0)
    epoch = Run._epoch

    def interrupted(self):
        if self.history.epochs == 3:
            raise KeyboardInterrupt
        epoch(self)

    with monkeypatch.context() as patch:
        patch.setattr(Run, "_epoch", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(ORDER, tmp_path / "parts", silent, progress=False)
    assert not result_path(tmp_path / "parts", ORDER).exists()
    epochs = []
    monkeypatch.setattr(Run, "_epoch", lambda self: (epochs.append(1), epoch(self))[1])
    parts = run(ORDER, tmp_path / "parts", silent, progress=False)
    assert len(epochs) == 2
    assert replace(parts, seconds=whole.seconds) == whole


def test_two_processes_cannot_make_one_result(tmp_path):
    lock = tmp_path / ".unfinished" / "two-moons" / "fsvi.smoke.0.lock"
    lock.parent.mkdir(parents=True)
    with FileLock(lock), pytest.raises(FSVIError, match=r"fsvi\.smoke\.0\.json.*process"):
        run(ORDER, tmp_path, silent)
    assert not result_path(tmp_path, ORDER).exists()


def finish_first(monkeypatch, seeds):
    """Another process makes the results of `seeds` before it lets go of the lock."""
    alone = runs.alone

    @contextmanager
    def late(out, path):
        seed = int(path.stem.rpartition(".")[2])
        if seed in seeds:
            write_result(path, make_result(seed=seed))
        with alone(out, path):
            yield

    monkeypatch.setattr(runs, "alone", late)


def test_a_result_made_while_the_lock_was_waited_for_is_read(tmp_path, monkeypatch):
    finish_first(monkeypatch, [0])
    replace_recipe(monkeypatch, lambda order: pytest.fail("it was run again"))
    assert run(ORDER, tmp_path, silent) == make_result()


def test_so_are_those_of_seeds_that_are_trained_together(tmp_path, monkeypatch):
    finish_first(monkeypatch, [0, 2])
    together = []
    monkeypatch.setattr(runs, "_train_stacked", lambda orders: together.extend(orders) or [])
    monkeypatch.setattr(runs, "_read", lambda path, order: path.exists())
    found = run_stacked([replace(ORDER, seed=seed) for seed in range(3)], tmp_path, silent)
    assert [order.seed for order in together] == [1] and found == [True, False, True]


def test_seeds_trained_together_are_named_in_each_result(tmp_path):
    found = run_stacked([replace(ORDER, seed=seed) for seed in (1, 3)], tmp_path, silent)
    assert [result.notes for result in found] == [["seeds trained together: 1, 3"]] * 2


def test_the_commit_is_that_before_training(tmp_path, monkeypatch):
    commits = iter(["before", "after"])
    monkeypatch.setattr(runs, "commit", lambda: next(commits))
    recipe = TASKS["two-moons"].recipe
    replace_recipe(monkeypatch, lambda order: next(commits) == "after" and recipe(order))
    assert run(ORDER, tmp_path, silent, progress=False).commit == "before"


@pytest.mark.parametrize(
    ("order", "said"),
    [
        (Order("two-moon", "fsvi"), "did you mean 'two-moons'"),
        (Order("two-moons", "fsvy"), "did you mean 'fsvi'"),
        (Order("two-moons", "fsvi", "fast"), "profile='fast'"),
        (Order("two-moons", "fsvi", seed=-1), "seed=-1"),
        (Order("two-moons", "fsvi", seed=2**32), "seed=4294967296"),
        (Order("fashion-mnist", "fsvi", context=""), "context=''"),
        (Order("two-moons", "fsvi", context="kmnist"), "'two-moons'"),
        (Order("fashion-mnist", "map", context="kmnist"), "'map'"),
        (Order("fashion-mnist", "fsvi", context="kmnst"), "did you mean 'kmnist'"),
        (Order("fashion-mnist", "fsvi", context="../../../escaped/x"), "context='../../../escaped/x'"),
    ],
)
def test_a_wrong_order_is_one_sentence_and_writes_nothing(order, said, tmp_path):
    with pytest.raises(InvalidInputError, match=said):
        run(order, tmp_path / "a" / "b" / "c", silent)
    assert not list(tmp_path.iterdir())


def refuse_to_train(monkeypatch):
    def train(*_, **__):
        raise AssertionError("training began")

    monkeypatch.setattr(Experiment, "train", train)


def test_absent_test_data_are_missed_before_training(tmp_path, monkeypatch):
    recipe = TASKS["two-moons"].recipe
    replace_recipe(monkeypatch, lambda order: replace(recipe(order), tests=("mnist",)))
    asked = []

    def ensure(*split):
        asked.append(split)
        raise DataNotFoundError("mnist test is not here.")

    monkeypatch.setattr(data, "ensure", ensure)
    refuse_to_train(monkeypatch)
    with pytest.raises(DataNotFoundError, match="mnist test is not here"):
        run(ORDER, tmp_path / "out", silent)
    assert asked == [("mnist", "test")] and not list((tmp_path / "out").rglob("*.fsvi"))


@pytest.mark.parametrize("name", ["models", "two-moons"])
def test_a_file_where_a_folder_should_be_is_found_before_training(tmp_path, monkeypatch, name):
    (tmp_path / name).write_text("")
    refuse_to_train(monkeypatch)
    with pytest.raises(FSVIError, match=name):
        run(ORDER, tmp_path, silent)


def test_a_model_that_cannot_be_measured_is_not_kept(tmp_path, monkeypatch):
    def fail(_):
        raise FSVIError("no data.")

    recipe = TASKS["two-moons"].recipe
    replace_recipe(monkeypatch, lambda order: replace(recipe(order), evaluate=fail))
    with pytest.raises(FSVIError, match="no data"):
        run(ORDER, tmp_path, silent, progress=False)
    assert not list(tmp_path.rglob("fsvi.smoke.0.fsvi")) and not result_path(tmp_path, ORDER).exists()


def test_a_task_names_the_context_where_none_is_asked_for():
    assert checked(Order("fashion-mnist", "fsvi")).context == "kmnist"
    assert checked(Order("fashion-mnist", "ensemble:fsvi", context="monochrome")).context == "monochrome"
    assert checked(Order("fashion-mnist", "map")).context is None


def test_results_that_are_no_numbers_are_left_out(tmp_path, monkeypatch):
    recipe = TASKS["two-moons"].recipe

    def odd(order):
        experiment = recipe(order)

        def evaluate(method):
            outcome = experiment.evaluate(method)
            return replace(outcome, metrics={**outcome.metrics, "auroc": float("nan")})

        return replace(experiment, evaluate=evaluate)

    replace_recipe(monkeypatch, odd)
    assert "auroc" not in run(ORDER, tmp_path, silent, progress=False).metrics


def test_what_killed_processes_left_is_cleared_away(tmp_path):
    path = result_path(tmp_path, ORDER)
    debris = [file.parent / f".{file.name}.0123456789abcdef" for file in (path, model_path(tmp_path, path))]
    for file in debris:
        file.parent.mkdir(parents=True)
        file.write_bytes(b"half")
    run(ORDER, tmp_path, silent, progress=False)
    assert not any(file.exists() for file in debris)
    checkpoint = tmp_path / ".unfinished" / "two-moons" / "fsvi.smoke.0" / "checkpoint.fsvi"
    checkpoint.parent.mkdir()
    checkpoint.write_bytes(b"the last one")
    run(ORDER, tmp_path, silent, progress=False)
    assert not checkpoint.parent.exists()


def test_a_run_is_not_lost_to_its_diagnosis(tmp_path, monkeypatch):
    def fail(*_):
        raise InvalidInputError("nothing to look at.")

    monkeypatch.setattr(runs, "diagnose_trained", fail)
    with pytest.warns(UserWarning, match="nothing to look at"):
        run(ORDER, tmp_path, silent, progress=False)
    assert result_path(tmp_path, ORDER).exists()


def test_a_process_that_trains_along_leaves_the_result_to_the_first(tmp_path, monkeypatch):
    order = Order("two-moons", "map", "quick", 0)
    trained = []
    monkeypatch.setattr(Experiment, "train", lambda self, method, seed, **settings: trained.append(settings))
    runs.train_along(order, tmp_path)
    assert trained[0]["checkpoint"].is_relative_to(tmp_path)
    assert trained[0]["resume"]
    assert not list(tmp_path.rglob("*.json"))
    path = result_path(tmp_path, checked(order))
    path.parent.mkdir(parents=True)
    path.touch()
    runs.train_along(order, tmp_path)
    assert len(trained) == 1
