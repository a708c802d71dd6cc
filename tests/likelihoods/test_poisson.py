import torch
from torch import nn

import fsvi
from likelihood_cases import Q, expected_curvature, outputs


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
