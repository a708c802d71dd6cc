"""Two moons: its settings, and its metrics against predictions that are known in advance."""

import math

import numpy as np
import pytest
import torch

from known_predictions import Known, logits
from paper.experiment import Order
from paper.tasks.toys import two_moons_recipe


@pytest.fixture(scope="module")
def experiment():
    return two_moons_recipe(Order("two-moons", "fsvi"))


def test_held_out_metrics_of_known_probabilities(experiment):
    metrics = experiment.evaluate(Known(lambda x: logits(torch.full((2, len(x)), math.log(3.0))))).metrics
    assert metrics["accuracy"] == pytest.approx(0.5)
    assert metrics["nll"] == pytest.approx(-0.5 * (math.log(0.75) + math.log(0.25)))


def test_entropy_is_told_apart_near_and_far(experiment):
    def certain_within(radius: float) -> Known:
        return Known(lambda x: logits(50.0 * (torch.cdist(x, experiment.data[0]).amin(1) <= radius).float()[None]))

    metrics = experiment.evaluate(certain_within(1.0)).metrics
    assert metrics["near_entropy"] == pytest.approx(0.0, abs=1e-6)
    assert metrics["far_entropy"] == metrics["far_entropy_min"] == pytest.approx(1.0)
    metrics = experiment.evaluate(certain_within(3.05)).metrics
    assert metrics["far_entropy_min"] == pytest.approx(0.0, abs=1e-6)
    assert 0.5 < metrics["far_entropy"] < 1.0


def test_the_rows_of_the_surface_are_the_second_input(experiment):
    outcome = experiment.evaluate(Known(lambda x: logits((x[:, 0] + 100 * x[:, 1])[None])))
    axis, mean, variance = (np.array(outcome.curves["picture"][name]) for name in ("axis", "mean", "variance"))
    assert mean.shape == variance.shape == (len(axis),) * 2
    np.testing.assert_allclose(mean[len(axis) // 2], 1 / (1 + np.exp(-axis)), atol=1e-4)
    assert mean[0].max() < 1e-6 and mean[-1].min() > 1 - 1e-6
