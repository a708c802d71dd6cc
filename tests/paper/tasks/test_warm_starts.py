"""Methods that start from the trained network of MAP."""

from dataclasses import replace

import pytest
import torch

import fsvi
from paper.experiment import Order
from paper.records import result_path
from paper.runs import model_path, run
from paper.tasks import cifar10 as recipe
from paper.tasks import images
from paper.tasks.registry import TASKS
from paper.tuning import tune
from paper.whitened_cnn import whitened_cnn
from pictures import pretend

DESK = Order("cifar10", "map", "desk")


@pytest.fixture
def small(monkeypatch):
    """The profile `desk` with a tiny network on 48 made-up images."""
    pretend(monkeypatch)
    effort = replace(
        recipe._EFFORTS["desk"],
        epochs=1,
        batch_size=24,
        network=lambda x: whitened_cnn(x, widths=(4,)),
        kinds=("fog",),
        corrupted_images=4,
    )
    monkeypatch.setitem(recipe._EFFORTS, "desk", effort)


def starts(method, seed=0, context=None):
    order = replace(DESK, method=method, seed=seed, context=context)
    experiment = TASKS["cifar10"].experiment(order)
    return [(each.method, each.seed, each.context) for each in experiment.starts], experiment.trains


def test_what_each_method_starts_from(small):
    assert starts("map") == ([], True)
    assert starts("fsvi", 2, "monochrome") == ([("map", 2, None)], True)
    assert starts("laplace", 1) == ([("map", 1, None)], False)
    assert starts("ensemble:map", 1) == ([("map", 3, None), ("map", 4, None), ("map", 5, None)], False)
    quick = TASKS["cifar10"].experiment(Order("cifar10", "fsvi", "smoke", context="monochrome"))
    assert quick.starts == ()
    assert starts("fsvi-fixed-mean", 1, "corrupted") == ([("map", 1, None)], True)
    assert starts("fsvi-refined", 1, "corrupted") == ([("fsvi", 1, "corrupted")], True)


@pytest.mark.parametrize("context", ["monochrome", "corrupted"])
def test_fsvi_starts_from_the_trained_network_with_a_random_last_layer(small, context):
    trained = TASKS["cifar10"].experiment(DESK).build(7)
    experiment = TASKS["cifar10"].experiment(replace(DESK, method="fsvi", context=context))
    method = experiment.build(0, [trained])
    x = experiment.data[0][:3]
    means = method.posterior.means()
    torch.testing.assert_close(method.eval().network(x, means), trained.eval().network(x))
    assert set(method.posterior.layout.shapes) == set(method.network.head_names)
    assert experiment.fit_settings["epochs"] == recipe._FINE_TUNING["fsvi"]["epochs"]


def test_an_ensemble_joins_three_runs_as_they_are(small, tmp_path):
    order = replace(DESK, method="ensemble:map")
    result = run(order, tmp_path, lambda _: None, progress=False)
    members = [replace(DESK, seed=seed) for seed in range(3)]
    models = [fsvi.load(model_path(tmp_path, result_path(tmp_path, each))) for each in members]
    joined = fsvi.load(model_path(tmp_path, result_path(tmp_path, order)))
    x = torch.randn(5, 3, 32, 32)
    mean = torch.stack([model.predict(x).mean for model in models]).mean(0)
    torch.testing.assert_close(joined.predict(x).mean, mean)
    assert "start" in result.seconds and result.history == {}
    assert any("ensemble" in note for note in result.notes)


@pytest.mark.parametrize(("start", "method"), [("map", "fsvi-fixed-mean"), ("fsvi", "fsvi-refined")])
@pytest.mark.parametrize(("task", "context"), [("rotated-mnist", "kmnist"), ("reviews", "excerpts")])
def test_a_fixed_mean_keeps_the_trained_function_and_learns_from_rows_it_has_not_seen(
    monkeypatch, task, context, start, method
):
    asked = pretend(monkeypatch)
    trained = TASKS[task].experiment(Order(task, start, "smoke", context=None if start == "map" else context)).build(7)
    experiment = TASKS[task].experiment(Order(task, method, "smoke", context=context))
    method = experiment.build(0, [trained])
    x = experiment.data[0][:4]
    experiment.train(method, 0, progress=False)
    torch.testing.assert_close(method.moments(x)[0], trained.eval().network(x))
    assert len(method.context.data) == images._POINTS
    seen, _ = experiment.dataset(*experiment.data)
    if task == "reviews":
        assert ("imdb", "validation") in asked and ("imdb", "test") not in asked
    else:
        assert len(seen) == images._ROWS and not torch.equal(seen[0], x[0])
        torch.testing.assert_close(seen, experiment.dataset(*experiment.data)[0])


@pytest.mark.parametrize("method", ["fsvi-fixed-mean", "fsvi-refined"])
def test_the_model_of_a_run_with_a_fixed_mean_can_be_loaded(monkeypatch, tmp_path, method):
    pretend(monkeypatch)
    order = Order("fashion-mnist", method, "smoke", context="kmnist")
    result = run(order, tmp_path, lambda _: None, progress=False)
    assert ("dropout 0.5" if method == "fsvi-fixed-mean" else "dropout 0.25") in result.notes[1]
    network = TASKS["fashion-mnist"].experiment(order).build(0).net
    assert fsvi.load(model_path(tmp_path, result_path(tmp_path, order)), network).center.any()


def test_laplace_is_around_the_trained_network(small, tmp_path):
    run(replace(DESK, method="laplace"), tmp_path, lambda _: None, progress=False)
    point, around = (
        fsvi.load(model_path(tmp_path, result_path(tmp_path, replace(DESK, method=name))))
        for name in ("map", "laplace")
    )
    x = torch.randn(3, 3, 32, 32)
    torch.testing.assert_close(around.network(x), point.network(x), atol=1e-5, rtol=1e-4)
    assert around.prior_variance == point.prior_variance


def test_a_warm_start_cannot_be_tuned_on_data_that_the_network_has_seen(small, tmp_path):
    with pytest.raises(fsvi.errors.InvalidInputError, match="seen"):
        tune(replace(DESK, method="fsvi", context="monochrome"), tmp_path, 1)
