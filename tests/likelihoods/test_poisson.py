import pytest
import scipy.stats
import torch
from torch import distributions as D
from torch import nn

import fsvi
from likelihood_cases import N, Q, expected_curvature, outputs


@pytest.mark.parametrize("draws", [(), (4,)], ids=["one", "draws"])
def test_the_nll_is_that_of_torch_and_scipy(draws):
    f, y = outputs(*draws), torch.randint(8, (N, Q)).double()
    nll = fsvi.Poisson().nll(f, y)
    torch.testing.assert_close(nll, -D.Poisson(f.exp()).log_prob(y).sum(-1).mean())
    expected = -scipy.stats.poisson.logpmf(y.numpy(), f.exp().numpy()).sum(-1).mean()
    assert float(nll) == pytest.approx(expected, rel=1e-10)


def test_the_root_of_the_fisher_information():
    """The Hessian of −log p(y|f) does not depend on y."""
    f, likelihood = outputs(), fsvi.Poisson()
    root = likelihood.fisher_root(f)
    for given, rates in zip(root @ root.mT, f, strict=True):
        torch.testing.assert_close(given, expected_curvature(likelihood, rates, torch.ones(1, Q).double(), [1.0]))


def test_the_rate_of_generated_counts_is_found():
    """log E[y] = 0.5 + 0.8 x: within four standard errors of the maximum-likelihood estimate."""
    torch.manual_seed(0)
    x = torch.randn(2000, 1)
    y = torch.poisson((0.5 + 0.8 * x).exp())
    method = fsvi.MAP(nn.Linear(1, 1), fsvi.Poisson(), prior_variance=None)
    fsvi.fit(method, (x, y), epochs=60, batch_size=500, lr=0.05)
    rates = (0.5 + 0.8 * x).exp()
    information = torch.cat([torch.ones_like(x), x], 1).T @ (rates * torch.cat([torch.ones_like(x), x], 1))
    errors = torch.linalg.inv(information).diagonal().sqrt()
    found = torch.cat([method.net.bias, method.net.weight[0]]).detach()
    assert bool(((found - torch.tensor([0.5, 0.8])).abs() < 4 * errors).all())
