"""The toy regressions: their context, and their metrics against predictions that are known in advance."""

import numpy as np
import pytest
import torch
from torch import Tensor

from known_predictions import Known, around_zero
from paper.data.toys import oat1d, snelson, subspace
from paper.experiment import Order
from paper.tasks.registry import TASKS

TOYS = {"snelson": snelson, "oat1d": oat1d, "subspace": subspace}


def experiment(name: str, profile: str = "paper", method: str = "fsvi"):
    return TASKS[name].experiment(Order(name, method, profile))


def test_standard_deviations_are_compared_with_those_on_the_data():
    toy = snelson()

    def std(x: Tensor) -> Tensor:
        raw = toy.features.inverse(x)
        in_gap, left, right = (raw > 1.5) & (raw < 3.0), raw < 0.0, raw > 6.0
        return 0.2 * torch.where(in_gap, 5.0, 1.0) * torch.where(left, -raw, 1.0) * torch.where(right, raw, 1.0)

    metrics = experiment("snelson").evaluate(Known(lambda x: around_zero(std(x)))).metrics
    low, high = float(toy.x_raw.min()), float(toy.x_raw.max())
    assert metrics["data_std"] == pytest.approx(0.2)
    assert metrics["gap_std_ratio"] == pytest.approx(5.0)
    assert metrics["left_std_ratio"] == pytest.approx(4.0 - low, rel=1e-4)
    assert metrics["right_std_ratio"] == pytest.approx(high + 4.0, rel=1e-4)
    assert metrics["noise"] == pytest.approx(0.3)
    assert metrics["rmse"] == pytest.approx(float(toy.y.square().mean().sqrt()))


def test_the_smallest_gap_counts():
    known = Known(lambda x: around_zero(torch.where((x[:, :1] - 1.5).abs() < 0.5, 2.0, 1.0)))
    assert experiment("subspace").evaluate(known).metrics["gap_std_ratio"] == pytest.approx(1.0)


def test_bands_are_in_raw_units():
    toy = snelson()
    outcome = experiment("snelson").evaluate(Known(lambda x: around_zero(torch.full((len(x), 1), 0.4))))
    picture = outcome.curves["picture"]
    for band, limits in ((picture["zoomed"], toy.zoomed), (picture["wide"], toy.wide)):
        np.testing.assert_allclose([band["x"][0], band["x"][-1]], limits, rtol=1e-4)
        np.testing.assert_allclose(band["mean"], toy.targets.mean, atol=1e-4)
        np.testing.assert_allclose(band["function_std"], 0.4 * toy.targets.std, atol=1e-4)
        np.testing.assert_allclose(band["target_std"], 0.5 * toy.targets.std, atol=1e-4)
    np.testing.assert_allclose(picture["y"], toy.y_raw[:, 0], atol=1e-4)


@pytest.mark.parametrize("name", TOYS)
def test_half_of_the_context_lies_between_the_outermost_data_and_the_rest_reaches_the_edge_of_the_figure(name):
    toy, made = TOYS[name](), experiment(name)
    x = made.data[0]
    points = made.build(0).context.sample(4000, x)[:, 0]
    inside = ((points >= x[:, 0].min()) & (points <= x[:, 0].max())).float().mean()
    share = float(toy.x_raw.max() - toy.x_raw.min()) / (toy.wide[1] - toy.wide[0])
    assert float(inside) == pytest.approx(0.5 + 0.5 * share, abs=0.03)
    edges = toy.features(torch.tensor(toy.wide)[:, None])[:, 0]
    assert torch.allclose(torch.stack([points.min(), points.max()]), edges, atol=0.1)
