"""The recipes, and their measures against predictions that are known in advance."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

import fsvi
from fsvi.experiments.tasks.toy import METHODS, RECIPES, make_fsvi
from fsvi.predictive import CategoricalPredictive, GaussianPredictive, Predictive


class Known:
    """Predicts what a function of the inputs says."""

    def __init__(self, predictive: Callable[[Tensor], Predictive]) -> None:
        self.predictive = predictive

    def predict(self, x: Tensor, num_samples: int, batch_size: int) -> Predictive:
        return self.predictive(x)


def logits(of_class_1: Tensor) -> Predictive:
    return CategoricalPredictive(torch.stack([torch.zeros_like(of_class_1), of_class_1], dim=-1))


def around_zero(std: Tensor, noise: float = 0.3) -> Predictive:
    return GaussianPredictive(torch.stack([std, -std]), torch.tensor([noise**2]))


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_trains_and_is_measured(name):
    recipe = RECIPES[name]().shortened(2)
    assert recipe.name == name
    evaluation = recipe.evaluate(recipe.train(make_fsvi))
    assert all(math.isfinite(value) for value in evaluation.metrics.values())


def test_two_moons_uses_the_librarys_defaults():
    recipe = RECIPES["two-moons"]()
    assert not recipe.fsvi_settings
    assert not recipe.fit_settings
    x, y = recipe.data
    assert x.shape == (200, 2)
    assert torch.equal(y.bincount(), torch.tensor([100, 100]))
    assert not torch.isin(recipe.test_set[0][:, 0], x[:, 0]).any()


def test_a_seed_decides_everything_and_leaves_no_trace():
    recipe = RECIPES["oat1d"]().shortened(2)
    before = torch.random.get_rng_state()
    first, again, other = (recipe.train(make_fsvi, seed).predict(recipe.data[0]).mean for seed in (3, 3, 4))
    assert torch.equal(before, torch.random.get_rng_state())
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_any_method_can_join():
    recipe = RECIPES["two-moons"]().shortened(2)
    method = recipe.train(lambda task: fsvi.MAP(task.make_net(), task.likelihood))
    assert isinstance(method, fsvi.MAP)
    assert recipe.evaluate(method).metrics.keys() == recipe.evaluate(recipe.train(METHODS["FSVI"])).metrics.keys()


def test_shortened_changes_the_epochs_alone():
    recipe = RECIPES["snelson"]()
    assert {**recipe.shortened(7).fit_settings, "epochs": recipe.fit_settings["epochs"]} == recipe.fit_settings


# Classification -----------------------------------------------------------------------------------------------------


def test_held_out_measures_of_known_probabilities():
    recipe = RECIPES["two-moons"]()
    metrics = recipe.evaluate(Known(lambda x: logits(torch.full((2, len(x)), math.log(3.0))))).metrics
    assert metrics["accuracy"] == pytest.approx(0.5)
    assert metrics["nll"] == pytest.approx(-0.5 * (math.log(0.75) + math.log(0.25)))


def test_entropy_is_told_apart_near_and_far():
    recipe = RECIPES["two-moons"]()

    def certain_within(radius: float) -> Known:
        return Known(lambda x: logits(50.0 * (torch.cdist(x, recipe.data[0]).amin(1) <= radius).float()[None]))

    metrics = recipe.evaluate(certain_within(1.0)).metrics
    assert metrics["near_entropy"] == pytest.approx(0.0, abs=1e-6)
    assert metrics["far_entropy"] == metrics["far_entropy_min"] == pytest.approx(1.0)
    metrics = recipe.evaluate(certain_within(3.05)).metrics
    assert metrics["far_entropy_min"] == pytest.approx(0.0, abs=1e-6)
    assert 0.5 < metrics["far_entropy"] < 1.0


def test_the_surfaces_rows_are_the_second_input():
    picture = RECIPES["two-moons"]().evaluate(Known(lambda x: logits((x[:, 0] + 100 * x[:, 1])[None]))).picture
    assert picture.mean.shape == picture.variance.shape == (len(picture.axis),) * 2
    middle = len(picture.axis) // 2
    np.testing.assert_allclose(picture.mean[middle], 1 / (1 + np.exp(-picture.axis)), atol=1e-5)
    assert picture.mean[0].max() < 1e-6 and picture.mean[-1].min() > 1 - 1e-6


# Regression ---------------------------------------------------------------------------------------------------------


def test_standard_deviations_are_compared_with_those_on_the_data():
    recipe = RECIPES["snelson"]()
    toy = recipe.toy

    def std(x: Tensor) -> Tensor:
        raw = toy.features.inverse(x)
        in_gap, left, right = (raw > 1.5) & (raw < 3.0), raw < 0.0, raw > 6.0
        return 0.2 * torch.where(in_gap, 5.0, 1.0) * torch.where(left, -raw, 1.0) * torch.where(right, raw, 1.0)

    metrics = recipe.evaluate(Known(lambda x: around_zero(std(x)))).metrics
    low, high = float(toy.x_raw.min()), float(toy.x_raw.max())
    assert metrics["data_std"] == pytest.approx(0.2)
    assert metrics["gap_std_ratio"] == pytest.approx(5.0)
    assert metrics["left_std_ratio"] == pytest.approx(4.0 - low, rel=1e-4)
    assert metrics["right_std_ratio"] == pytest.approx(high + 4.0, rel=1e-4)
    assert metrics["noise"] == pytest.approx(0.3)
    assert metrics["rmse"] == pytest.approx(float(toy.y.square().mean().sqrt()))


def test_the_smallest_gap_counts():
    recipe = RECIPES["subspace"]()
    metrics = recipe.evaluate(Known(lambda x: around_zero(torch.where((x[:, :1] - 1.5).abs() < 0.5, 2.0, 1.0)))).metrics
    assert metrics["gap_std_ratio"] == pytest.approx(1.0)


def test_bands_are_in_raw_units():
    recipe = RECIPES["snelson"]()
    toy = recipe.toy
    picture = recipe.evaluate(Known(lambda x: around_zero(torch.full((len(x), 1), 0.4)))).picture
    for band, limits in ((picture.zoomed, toy.zoomed), (picture.wide, toy.wide)):
        np.testing.assert_allclose(band.x[[0, -1]], limits, rtol=1e-5)
        np.testing.assert_allclose(band.mean, toy.targets.mean, rtol=1e-5)
        np.testing.assert_allclose(band.function_std, 0.4 * toy.targets.std, rtol=1e-5)
        np.testing.assert_allclose(band.target_std, 0.5 * toy.targets.std, rtol=1e-5)
    np.testing.assert_array_equal(picture.y, toy.y_raw[:, 0])


@pytest.mark.parametrize("name", ["snelson", "oat1d", "subspace"])
def test_half_of_the_context_lies_between_the_outermost_data_and_the_rest_reaches_the_figures_edge(name):
    recipe = RECIPES[name]()
    x, toy = recipe.data[0], recipe.toy
    points = recipe.context.sample(4000, x)[:, 0]
    inside = ((points >= x[:, 0].min()) & (points <= x[:, 0].max())).float().mean()
    share = float(toy.x_raw.max() - toy.x_raw.min()) / (toy.wide[1] - toy.wide[0])
    assert float(inside) == pytest.approx(0.5 + 0.5 * share, abs=0.03)
    edges = toy.features(torch.tensor(toy.wide)[:, None])[:, 0]
    assert torch.allclose(torch.stack([points.min(), points.max()]), edges, atol=0.1)
