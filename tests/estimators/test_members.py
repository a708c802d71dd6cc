import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import nn

import fsvi
from fsvi.estimators import FSVIRegressor
from fsvi.estimators.base import reestimate_noise
from fsvi.estimators.members import Members, deal_out, noise_of_rows
from fsvi.networks import TabularFeatures


def members(is_classes=False, outputs=2):
    torch.manual_seed(0)
    features = TabularFeatures(3, 3, (8, 5), members=4)
    return Members(features, outputs, is_classes).eval()


def test_one_network_is_the_average_of_its_members():
    parts, x = members(), torch.randn(20, 3)
    nn.init.normal_(parts.last_bias)
    torch.testing.assert_close(parts.joined()(x), parts(x).mean(0))


def test_every_row_is_held_out_once():
    rows, counts = deal_out(torch.ones(100), 8)
    assert rows.shape == (8, 13) and sorted(rows[counts > 0].tolist()) == list(range(100))
    assert deal_out(torch.ones(7), 8) is None


def test_a_row_that_counts_often_is_held_out_in_parts():
    weights = torch.tensor([800.0, 3.0, 0.5])
    rows, counts = deal_out(weights, 8)
    totals = torch.zeros(8, 3).scatter_add(1, rows, counts)
    torch.testing.assert_close(totals.sum(0), weights)
    assert totals[:, 0].max() < 400 and totals[:, 1].max() <= 2


def test_losses_are_the_likelihoods():
    parts, f, y = members(), torch.randn(4, 10, 2), torch.randn(10, 1)
    exact = -torch.distributions.Normal(f[..., :1], (0.5 * f[..., 1:]).exp()).log_prob(y).sum(-1)
    torch.testing.assert_close(parts.losses(f, y) + 0.5 * math.log(2 * math.pi), exact)
    torch.testing.assert_close(parts.losses(f, y, 0.5), parts.losses(f, y) * (0.5 * f[..., 1]).exp())
    labels = torch.randint(3, (10,))
    logits = torch.randn(4, 10, 3)
    exact = -logits.log_softmax(-1)[:, torch.arange(10), labels]
    torch.testing.assert_close(members(True, 3).losses(logits, labels), exact)


def test_the_noise_follows_the_row_where_held_out_rows_say_so():
    torch.manual_seed(0)
    logs, weights = torch.randn(20_000), torch.ones(20_000)
    power, offset = noise_of_rows((0.3 + logs).exp() * torch.randn(20_000).square(), logs, weights)
    assert power == 1.0 and offset == pytest.approx(0.3, abs=0.05)
    power, offset = noise_of_rows(0.25 * torch.randn(20_000).square(), logs, weights)
    assert power == 0.0 and offset == pytest.approx(math.log(0.25), abs=0.05)


def test_the_temperature_is_the_best_for_held_out_rows():
    parts = members(True, 3)
    x, y = torch.randn(400, 3), torch.randint(3, (400,))
    with torch.no_grad():
        parts.last_weight.copy_(3 * torch.randn_like(parts.last_weight))
        rows, counts = deal_out(torch.ones(400), 4)
        f, targets = parts(x, rows).double().flatten(0, 1), y[rows].flatten()
        before = parts.last_weight.clone()
        parts.calibrate(x, y, rows, counts)
    loss = lambda t: float(nn.functional.cross_entropy(f * math.exp(t[0]), targets))  # noqa: E731
    best = math.exp(minimize(loss, [0.0], bounds=[(-1.5, 1.0)]).x[0])
    assert float((parts.last_weight / before).mean()) == pytest.approx(best, rel=0.06)


def test_a_row_with_more_noise_has_a_larger_standard_deviation():
    generator = np.random.default_rng(0)
    x = generator.uniform(-1, 1, (1500, 2))
    y = x[:, 1] + np.where(x[:, 0] > 0, 1.0, 0.1) * generator.normal(size=1500)
    model = FSVIRegressor(random_state=0).fit(x, y)
    std = model.predict(np.array([[-0.5, 0.0], [0.5, 0.0]]), return_std=True)[1]
    assert 0.05 < std[0] < 0.25 and 0.75 < std[1] < 1.3


def test_prices_have_no_negative_intervals():
    generator = np.random.default_rng(0)
    x = generator.normal(size=(200, 1))
    y = np.exp(x[:, 0] + generator.normal(size=200))
    model = FSVIRegressor(random_state=0, epochs=20).fit(x, y)
    assert model.is_positive_ and model.predict_interval(x)[0].min() == 0.0
    assert not FSVIRegressor(random_state=0, epochs=2).fit(x, y - 5).is_positive_


def test_a_learned_noise_is_that_of_held_out_rows():
    method = fsvi.MAP(nn.Linear(1, 1).double(), fsvi.Gaussian(0.1, learn_noise=True))
    x = torch.randn(50, 1).double()
    y = method.net(x).detach() + 0.5 * torch.randn(50, 1).double()
    reestimate_noise(method, x, y, torch.ones(50))
    expected = (y - method.net(x).detach()).square().mean().sqrt() * math.sqrt(1.1 * 52 / 50)
    assert float(method.likelihood.noise) == pytest.approx(float(expected), rel=1e-6)
