"""The closed form is the optimum of FSVI's objective, and the variance knows the distance from the data."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_diabetes
from torch import nn

import fsvi
from fsvi.estimators import FSVIRegressor
from fsvi.estimators.distance import distance_aware, with_distance
from fsvi.networks import Network
from fsvi.networks.tabular import DistanceFeatures, TabularFeatures


def small(outputs=1):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, outputs)).double()


def made(x, likelihood=None, outputs=1, **settings):
    point = fsvi.MAP(small(outputs), fsvi.Gaussian(0.3) if likelihood is None else likelihood)
    point.check_inputs(x[:2])
    return distance_aware(point, x, torch.ones(len(x)).double(), {"num_features": 40, **settings})


@pytest.fixture(scope="module")
def x():
    return torch.randn(80, 2, generator=torch.Generator().manual_seed(1)).double()


def test_the_mean_is_the_trained_network(x):
    method = made(x)
    torch.testing.assert_close(method.net(x), small()(x))


def test_the_variance_is_that_of_bayesian_linear_regression(x):
    method = made(x, prior_variance=1.5)
    phi = method.network.features(x)[:, 6:].detach()
    covariance = torch.linalg.inv(phi.T @ phi / 0.3**2 + torch.eye(41).double() / 1.5)
    new = torch.cat([x[:5], x[:5] + 1])
    phi = method.network.features(new)[:, 6:].detach()
    exact = (phi @ covariance * phi).sum(1)
    found = method.predict(new, 20_000).samples.var(0)[:, 0]
    torch.testing.assert_close(found, exact, rtol=0.05, atol=1e-6)


def test_the_closed_form_is_the_optimum_of_the_objective(x):
    """The gradient of N E[nll] + KL(q(f) ‖ p(f)) in the log standard deviations of the random features is zero."""
    method = made(x, prior_variance=1.5)
    phi = method.network.features(x)[:, 6:].detach()
    log_std = method.posterior.layout.views(method.posterior.log_std.detach())["1.weight"][0, 6:].requires_grad_()
    context = method.network.features(torch.randn(400, 2).double() * 3)[:, 6:].detach()  # spans all functions
    covariance = context @ torch.diag((2 * log_std).exp()) @ context.T
    prior = 1.5 * context @ context.T
    basis = torch.linalg.svd(context, full_matrices=False)[0]
    q, p = basis.T @ covariance @ basis, basis.T @ prior @ basis
    kl = 0.5 * (torch.linalg.solve(p, q).trace() - torch.logdet(q) + torch.logdet(p) - 41)
    nll = 0.5 * (phi.square() @ (2 * log_std).exp()).sum() / 0.3**2
    (gradient,) = torch.autograd.grad(nll + kl, log_std)
    assert gradient.abs().max() < 1e-3
    (gradient,) = torch.autograd.grad(0.5 * (phi.square() @ (2 * log_std).exp()).sum() / 0.3**2, log_std)
    assert gradient.abs().max() > 0.5


def test_classes_have_the_curvature_of_the_likelihood(x):
    method = made(x, fsvi.Categorical(), 3, prior_variance=2.0)
    p = method.net(x).softmax(-1).detach()
    phi = method.network.features(x)[:, 6:].detach()
    std = method.posterior.stds()["1.weight"][:, 6:]
    torch.testing.assert_close(std, ((p * (1 - p)).T @ phi.square() + 0.5).rsqrt())


def test_heteroscedastic_noise_and_log_variances_that_stay(x):
    method = made(x, fsvi.Gaussian(heteroscedastic=True), 2)
    precision = (-method.net(x)[:, 1]).exp().detach()
    phi = method.network.features(x)[:, 6:].detach()
    std = method.posterior.stds()["1.weight"]
    torch.testing.assert_close(std[0, 6:], (precision @ phi.square() + 1).rsqrt())
    assert std[1].max() < 1e-5 and std[0, :6].max() < 1e-5


def test_variance_grows_in_gaps_and_beyond():
    x = torch.cat([torch.linspace(-2, -1, 60), torch.linspace(1, 2, 60)])[:, None].double()
    net = nn.Sequential(nn.Linear(1, 20), nn.Tanh(), nn.Linear(20, 1)).double()
    point = fsvi.MAP(net, fsvi.Gaussian(0.1))
    point.check_inputs(x[:2])
    method = distance_aware(point, x, torch.ones(120).double(), {})
    on, gap, beyond, far = (
        float(method.predict(torch.tensor([[at]]).double(), 4000).samples.std(0)) for at in (1.5, 0.0, 5.0, 20.0)
    )
    assert gap > 2 * on and beyond > 5 * on and far > 2
    assert float(method.net(torch.tensor([[1e4]]).double())) == pytest.approx(float(net[2].bias), abs=0.01)


def test_a_rare_flag_is_inside_and_an_unknown_value_is_not():
    x = torch.randn(1000, 2).double()
    x[:, 1] = 0.0
    x[3, 1] = 1.0
    x[:, 1] /= x[:, 1].std()
    features = with_distance(Network(small()).examined(x[:2]), 2, 20)[0]
    features.see(x, small())
    assert features.outside(x).abs().max() == 0.0
    assert features.outside(torch.tensor([[0.0, -30.0]]).double()).abs().max() > 5


@pytest.mark.parametrize("module", [None, nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 1))])
def test_one_column_out_of_range_doubles_the_standard_deviation(module):
    x, y = load_diabetes(return_X_y=True)
    model = FSVIRegressor(module=module, random_state=0, epochs=20).fit(x, y)
    on = model.predict(x, return_std=True)[1].mean()
    for column in (0, 1, 8):
        moved = x + 8 * x.std(0) * (np.arange(10) == column)
        assert model.predict(moved, return_std=True)[1].mean() > 2 * on


def test_a_value_in_a_constant_column_makes_the_variance_larger_and_leaves_the_network_alone(x):
    flagged = torch.cat([x, torch.zeros(len(x), 1, dtype=x.dtype)], 1)
    moved = flagged.clone()
    moved[:, -1] = 1.0
    trunk = TabularFeatures.for_rows(flagged).to(x)
    torch.testing.assert_close(trunk(moved), trunk(flagged), rtol=0, atol=0)
    features = DistanceFeatures(nn.Identity(), flagged.shape[1], flagged.shape[1]).to(x)
    features.see(flagged, lambda rows: rows[:, :1])
    inside, outside = (features(rows)[:, : flagged.shape[1]] for rows in (flagged, moved))
    assert not outside[:, -1].any() and bool((outside[:, :-1].abs() > 0.9 * inside[:, :-1].abs()).all())
    assert bool((features(moved)[:, -1] > features(flagged)[:, -1]).all())
