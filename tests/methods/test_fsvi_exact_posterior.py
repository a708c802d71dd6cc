"""FSVI where its posterior is known: linear-Gaussian regression."""

import itertools

import pytest
import torch
from torch import nn
from torch.distributions import MultivariateNormal

import fsvi
from fsvi import contexts
from fsvi.functions.priors import Empirical
from fsvi_cases import fsvi_on, loss_of

NOISES, PRIOR_VARIANCE = [0.3, 0.7], 0.8


def regression(design):
    """A network linear in its trainable parameters, data, and [Φ, 1] at the data."""
    torch.manual_seed(2)
    if design == "features":
        net = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2)).double()
        net[0].requires_grad_(False)
        x = 2 * torch.randn(12, 2, dtype=torch.float64)
        features = torch.tanh(net[0](x))
    else:
        net = nn.Sequential(nn.Linear(3, 2)).double()
        cube = torch.tensor(list(itertools.product([-1.0, 1.0], repeat=3)), dtype=torch.float64)
        features = x = (
            cube * torch.tensor([0.5, 1, 2]) if design == "orthogonal" else torch.randn(9, 3).double().cumsum(1)
        )
    y = torch.randn(len(x), 2, dtype=torch.float64)
    return net, x, y, torch.cat([features, torch.ones_like(x[:, :1])], dim=1)


def exact_posterior(net, design, y):
    """Mean (F+1, Q), precision (Q, F+1, F+1) and log evidence of linear regression with `net` as the prior mean."""
    start = torch.cat([net[-1].weight.T, net[-1].bias[None]]).detach()
    noise = torch.tensor(NOISES, dtype=torch.float64).square()
    eye = torch.eye(len(start), dtype=torch.float64)
    precision = design.T @ design / noise[:, None, None] + eye / PRIOR_VARIANCE
    right = (design.T @ y / noise + start / PRIOR_VARIANCE).T
    mean = torch.linalg.solve(precision, right).T
    covariance = noise[:, None, None] * torch.eye(len(y)) + PRIOR_VARIANCE * design @ design.T
    evidence = MultivariateNormal((design @ start).T, covariance).log_prob(y.T).sum()
    return mean, precision, evidence


def last_layer(tensors):
    weight, bias = list(tensors.values())[-2:]
    return torch.cat([weight.T, bias[None]])


@pytest.mark.parametrize("design", ["orthogonal", "correlated", "features"])
@pytest.mark.parametrize("stochastic", ["all", "last_layer"])
def test_linear_gaussian_regression_reaches_the_exact_posterior(design, stochastic, monkeypatch):
    """The function KL at F+1 spanning points is the parameters', so the loss is −ELBO/N. The mean-field optimum has the
    exact mean and variances 1/Λᵢᵢ; with an orthogonal design these are the marginals, and the ELBO the log evidence.
    Draws one standard deviation above and below make the expectation of a quadratic exact."""
    net, x, y, features = regression(design)
    settings = dict(
        prior=Empirical(net, PRIOR_VARIANCE), stochastic=stochastic, divergence=fsvi.divergences.KL(nugget=0.0)
    )
    method = fsvi_on(
        net, x, fsvi.Gaussian(NOISES), context=contexts.Dataset(x[[0, 1, 2, 4]]), num_context=4, **settings
    )
    q = method.posterior
    method.num_samples = 2
    loss_of(method, x, y)
    signs = torch.tensor([1.0, -1.0], dtype=torch.float64)[:, None, None]
    monkeypatch.setattr(torch, "randn", lambda size, **_: signs.expand(size))
    optimizer = torch.optim.LBFGS(
        [q.mean, q.log_std], max_iter=200, line_search_fn="strong_wolfe", tolerance_change=1e-14
    )

    def closure():
        optimizer.zero_grad()
        loss = loss_of(method, x, y)
        loss.backward()
        return loss

    optimizer.step(closure)
    mean, precision, evidence = exact_posterior(net, features, y)
    torch.testing.assert_close(last_layer(q.means()), mean, rtol=1e-4, atol=1e-4)
    variances = 1 / precision.diagonal(dim1=1, dim2=2).T
    torch.testing.assert_close(last_layer(q.stds()).square(), variances, rtol=1e-3, atol=1e-6)
    elbo = -len(x) * closure().detach()
    if design == "orthogonal":
        torch.testing.assert_close(variances, precision.inverse().diagonal(dim1=1, dim2=2).T)
        torch.testing.assert_close(elbo, evidence, rtol=1e-5, atol=1e-5)
    else:
        assert elbo < evidence - 0.01


def test_fit_finds_the_exact_posterior_from_random_draws():
    """The same by `fit`, with the sampling noise of its last steps as the tolerance."""
    net, x, y, features = regression("orthogonal")
    settings = dict(
        num_context=8, num_samples=16, divergence=fsvi.divergences.KL(nugget=1e-6), stds=fsvi.posteriors.Stds(0.1, 1.0)
    )
    method = fsvi.FSVI(
        net, fsvi.Gaussian(NOISES), contexts.Dataset(x), prior=Empirical(net, PRIOR_VARIANCE), **settings
    )
    fsvi.fit(method, (x, y), epochs=150, lr=0.1, schedule=fsvi.training.cosine(0.001))
    mean, precision, _ = exact_posterior(net, features, y)
    stds = precision.diagonal(dim1=1, dim2=2).T.rsqrt()
    assert ((last_layer(dict(method.net.named_parameters())) - mean) / stds).abs().max() < 0.25
    torch.testing.assert_close(last_layer(method.posterior.stds()), stds, rtol=0.15, atol=0)
    p = method.predict(x, num_samples=4000)
    variance = torch.einsum("nf,qfg,ng->nq", features, precision.inverse(), features)
    assert ((p.mean - features @ mean) / variance.sqrt()).abs().max() < 0.25
    torch.testing.assert_close(p.function_variance, variance, rtol=0.3, atol=0)
