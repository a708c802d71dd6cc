"""The fixed-mean Gaussian process against its limits and exact regression."""

import pytest
import torch
from torch import nn

import fsvi
from fsvi.methods.fmgp import FMGP


@pytest.fixture
def method():
    torch.manual_seed(0)
    made = FMGP(nn.Sequential(nn.Linear(2, 3)).double(), fsvi.Gaussian(0.3), num_inducing=6)
    return made


def scaled(method, factor):
    with torch.no_grad():
        method.factor.copy_(factor * torch.eye(6, dtype=torch.float64).repeat(3, 1, 1))
    return method.variances(method.inducing[0].detach())[:, 0]


def test_a_large_matrix_leaves_no_variance_at_the_inducing_points(method):
    assert scaled(method, 1e3).max() < 1e-4


def test_a_small_matrix_leaves_the_priors_variance(method):
    torch.testing.assert_close(scaled(method, 1e-6), method.prior_variances(method.inducing[0]))
    assert method.divergence().abs() < 1e-6


def test_with_the_exact_posteriors_matrix_it_is_the_exact_process(method):
    x, noise = method.inducing[0].detach(), 0.3
    scaled(method, 1 / noise)
    new = torch.randn(5, 2, dtype=torch.float64)
    cross = method.kernel(new, x)
    gram = method.kernel(x, x) + noise**2 * torch.eye(6, dtype=torch.float64)
    exact = method.prior_variances(new) - (cross * torch.linalg.solve(gram, cross.T).T).sum(1)
    torch.testing.assert_close(method.variances(new)[:, 0], exact, rtol=1e-3, atol=1e-4)


def test_the_divergence_is_the_formula(method):
    low, gram = method.factor[1].tril(), method.kernel(method.inducing[1], method.inducing[1])
    h = torch.eye(6, dtype=torch.float64) + low.T @ gram @ low
    expected = 0.5 * torch.logdet(h) - 0.5 * torch.trace(gram @ low @ torch.linalg.inv(h) @ low.T)
    with torch.no_grad():
        method.inducing.copy_(method.inducing[1].clone().expand_as(method.inducing))
    torch.testing.assert_close(method.divergence(), 3 * expected, rtol=1e-3, atol=1e-4)


def test_training_leaves_the_mean_and_learns_the_variance():
    torch.manual_seed(0)
    x = torch.randn(200, 2)
    net = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 3))
    y = net(x).add(torch.randn(200, 3)).argmax(1)
    method = FMGP(nn.Sequential(*net[:-1], net[-1]), fsvi.Categorical(), num_inducing=4)
    before = method.factor.detach().clone()
    fsvi.fit(method, (x, y), epochs=2, batch_size=50, lr=0.01, progress=False)
    assert not torch.equal(method.factor, before)
    torch.testing.assert_close(method.net(x), net(x))
