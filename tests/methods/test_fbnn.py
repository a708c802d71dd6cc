import pytest
import torch
from torch import nn

import fsvi
import scenarios
from fsvi.functions.divergences import gaussian_kl
from fsvi.functions.gaussian import FunctionGaussian
from fsvi.functions.priors import GaussianProcess, Induced
from fsvi.methods import fbnn
from fsvi.methods.base import network_functions
from fsvi.networks.distance import median_distance
from fsvi_cases import begun, flat_mean

LINE = fsvi.contexts.Uniform(low=[-2.0], high=[2.0])
FAST = {"num_context": 5, "num_samples": 4}


def line(num=8, noise=0.3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.linspace(-1, 1, num)[:, None]
    return x, 1.5 * x - 0.5 + noise * torch.randn(num, 1, generator=generator)


def exact_score(samples, fraction):
    """The score of Gaussian samples (outputs, S, points), by their own moments."""
    centred = samples - samples.mean(1, keepdim=True)
    covariance = centred.mT @ centred / (samples.shape[1] - 1)
    return -torch.linalg.solve(covariance, centred.mT).mT


# The objective -------------------------------------------------------------------------------------------------------


def test_a_line_reaches_the_exact_posterior():
    """f = w x + b with a Gaussian prior on (w, b), inputs centred: the mean-field posterior is exact. The error of the
    spectral estimate shows in the standard deviations, by a few per cent."""
    torch.manual_seed(0)
    (x, y), noise = line(), 0.3
    net = nn.Sequential(nn.Linear(1, 1))
    settings = {"num_context": 8, "num_samples": 40, "stds": fsvi.posteriors.Stds(0.3), "injected_noise": 0.03}
    method = fsvi.FBNN(net, fsvi.Gaussian(noise), LINE, prior=Induced(variance=1.0), **settings)
    fsvi.fit(method, (x, y), epochs=150, lr=0.04)
    design = torch.cat([x, torch.ones_like(x)], dim=1)
    precision = torch.eye(2) + design.T @ design / noise**2
    mean = torch.linalg.solve(precision, flat_mean(method.prior.q) + design.T @ y[:, 0] / noise**2)
    torch.testing.assert_close(flat_mean(method.posterior), mean, atol=0.03, rtol=0)
    torch.testing.assert_close(method.posterior.log_std.detach().exp(), precision.diagonal() ** -0.5, atol=0, rtol=0.12)


def test_a_network_approaches_the_process_s_posterior():
    """Its mean everywhere, and a larger standard deviation in the gap than at the data, as the process has it."""
    torch.manual_seed(0)
    x = torch.tensor([[-1.5], [-1.2], [-0.9], [-0.6], [0.9], [1.2], [1.5]])
    y, grid = (2 * x).sin(), torch.linspace(-1.5, 1.5, 13)[:, None]
    net = nn.Sequential(nn.Linear(1, 20), nn.Tanh(), nn.Linear(20, 1))
    prior = GaussianProcess(fsvi.kernels.RBF(1.0))
    settings = {"num_context": 8, "num_samples": 20, "injected_noise": 0.03}
    method = fsvi.FBNN(net, fsvi.Gaussian(0.1), LINE, prior=prior, **settings)
    fsvi.fit(method, (x, y), epochs=200, lr=0.05)
    kernel = method.prior.gaussian(torch.cat([grid, x])).covariance[0].float()
    weights = torch.linalg.solve(kernel[13:, 13:] + 0.01 * torch.eye(7), kernel[13:, :13]).T
    p = method.predict(grid)
    assert float((p.mean - weights @ y).square().mean().sqrt()) < 0.1
    assert float((p.mean - weights @ y).abs().max()) < 0.2
    std = p.function_variance[:, 0].sqrt()
    exact = (kernel[:13, :13] - weights @ kernel[13:, :13]).diagonal().sqrt()
    gap, data = slice(6, 8), slice(1, 4)
    assert float(exact[gap].mean()) > 2 * float(exact[data].mean())
    assert float(std[gap].mean()) > 1.3 * float(std[data].mean())


def test_the_surrogate_has_the_gradient_of_the_kl(monkeypatch):
    """With the exact score in the place of the estimate, for q(w) = N(m, diag(s²)) and f = Φw + noise. The KL in closed
    form has the same gradient up to Monte-Carlo error, with 20,000 draws at most 0.02 of its size; without the injected
    noise it would be 0.2 off."""
    monkeypatch.setattr(fbnn, "spectral_score", exact_score)
    torch.manual_seed(0)
    method = fsvi.FBNN(
        nn.Sequential(nn.Linear(1, 1)), fsvi.Gaussian(), LINE, prior=GaussianProcess(), injected_noise=1.0
    )
    x = torch.tensor([[-1.0], [0.2], [1.0]], dtype=torch.float64)
    features = torch.cat([x, x**2 + 0.3], dim=1)
    mean = torch.tensor([0.7, -0.4], dtype=torch.float64, requires_grad=True)
    log_std = torch.tensor([-0.5, 0.3], dtype=torch.float64, requires_grad=True)
    weights = mean + log_std.exp() * torch.randn(20_000, 2, dtype=torch.float64)
    estimate = torch.autograd.grad(method.surrogate_kl(x, (weights @ features.T)[:, :, None]), [mean, log_std])
    q = FunctionGaussian((features @ mean)[:, None], features, (2 * log_std).exp()[None])
    p = method.prior.gaussian(x)
    exact = torch.autograd.grad(gaussian_kl(q, p, 1.0), [mean, log_std])
    torch.testing.assert_close(
        torch.cat(estimate), torch.cat(exact), rtol=0, atol=0.05 * float(torch.cat(exact).norm())
    )


def test_the_surrogate_s_value_is_the_cross_entropy():
    torch.manual_seed(0)
    method = fsvi.FBNN(scenarios.dense(), fsvi.Categorical(), scenarios.box(), injected_noise=1e-3)
    x, _ = scenarios.points(4)
    f = torch.randn(6, 4, 2)
    p = method.prior.gaussian(x).prepared(1e-6).covariance[0]
    normal = torch.distributions.MultivariateNormal(torch.zeros(4, dtype=torch.float64), p)
    expected = -normal.log_prob(f.double().permute(0, 2, 1)).sum(1).mean()
    assert float(method.surrogate_kl(x, f)) == pytest.approx(float(expected), rel=0.05)


def test_the_weight_of_the_kl():
    x, y = scenarios.points(10)
    terms = {}
    for weight in (None, 0.5, 0.0):
        torch.manual_seed(0)
        method = fsvi.FBNN(scenarios.dense(), fsvi.Categorical(), scenarios.box(), kl_weight=weight, **FAST)
        method.num_data = 40
        torch.manual_seed(1)
        terms[weight] = {name: float(term.detach()) for name, term in method(x, y).items()}
    assert terms[None]["nll"] == terms[0.5]["nll"] and terms[0.0]["kl"] == 0
    assert terms[None]["kl"] == pytest.approx(terms[0.5]["kl"] / 20, rel=1e-5)


def test_it_is_measured_at_the_batch_and_at_the_context(monkeypatch):
    seen = []
    monkeypatch.setattr(fsvi.FBNN, "surrogate_kl", lambda self, x, f: seen.append((x, f)) or f.sum())
    method = fsvi.FBNN(scenarios.dense(), fsvi.Categorical(), scenarios.box(), **FAST)
    x, y = scenarios.points(10)
    method(x, y)
    points, f = seen[0]
    assert f.shape == (4, 15, 2) and torch.equal(points[:10], x)
    assert points.shape == (15, 2) and float(points[10:].abs().max()) <= 3


# The prior -----------------------------------------------------------------------------------------------------------


def wavy():
    generator = torch.Generator().manual_seed(0)
    x = torch.linspace(-2, 2, 40)[:, None]
    return x, 2 * (3 * x).sin() + 0.2 * torch.randn(40, 1, generator=generator)


def regressor(likelihood, outputs=1, **settings):
    net = nn.Sequential(nn.Linear(1, 4), nn.Tanh(), nn.Linear(4, outputs))
    return fsvi.FBNN(net, likelihood, LINE, **FAST, **settings)


def test_the_process_is_fitted_first_and_a_learned_noise_stays_where_it_starts():
    method = regressor(fsvi.Gaussian(noise=1.0, learn_noise=True))
    x, y = wavy()
    begun(method, x, y)
    lengthscale, variance = method.prior.hyperparameters.tolist()
    assert 0.3 < lengthscale < 0.9 and variance > 1.5
    assert float(method.likelihood.noise) == pytest.approx(1.0)
    assert method.likelihood.log_noise.requires_grad


def test_a_given_prior_and_a_fixed_noise_are_kept():
    method = begun(regressor(fsvi.Gaussian(noise=0.25), prior=GaussianProcess(fsvi.kernels.RBF(0.7, 2.0))), *wavy())
    assert method.prior.hyperparameters.tolist() == pytest.approx([0.7, 2.0])
    assert float(method.likelihood.noise) == pytest.approx(0.25)


def test_classes_have_the_median_lengthscale_and_unit_variance():
    method = fsvi.FBNN(scenarios.dense(), fsvi.Categorical(), scenarios.box(), **FAST)
    x, y = scenarios.points()
    fsvi.fit(method, (x, y), epochs=1)
    assert method.prior.hyperparameters.tolist() == pytest.approx([*[median_distance(x)] * 2, 1.0])


def test_noise_from_the_network():
    method = regressor(fsvi.Gaussian(heteroscedastic=True), outputs=2)
    history = fsvi.fit(method, wavy(), epochs=2)
    assert len(history.loss) == 2 and method.predict(wavy()[0]).mean.shape == (40, 1)


# Draws ---------------------------------------------------------------------------------------------------------------


def test_draws_together_are_draws_one_by_one():
    net = nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.LayerNorm(5), nn.Linear(5, 5), nn.ReLU(), nn.Linear(5, 2))
    net[3].weight.requires_grad_(False)
    method = fsvi.FBNN(net, fsvi.Categorical(), scenarios.box(), **FAST)
    x, _ = scenarios.points(6)
    draws = [method.posterior.draw().params for _ in range(3)]
    one_by_one = torch.stack([torch.func.functional_call(net, params, (x,)) for params in draws])
    stacked = {name: torch.stack([draw[name] for draw in draws]) for name in draws[0]}
    torch.testing.assert_close(network_functions(method.network, stacked)(x), one_by_one)


def test_the_context_does_not_touch_batch_norm():
    """Running statistics after a step are those of the S likelihood passes alone."""
    x, y = scenarios.images(8)
    method = fsvi.FBNN(scenarios.normalised(), fsvi.Categorical(), fsvi.contexts.Monochrome(), **FAST)
    method.train()
    torch.manual_seed(3)
    method(x, y)
    stepped = {name: buffer.clone() for name, buffer in method.net.named_buffers()}
    other = fsvi.FBNN(scenarios.normalised(), fsvi.Categorical(), fsvi.contexts.Monochrome(), **FAST)
    torch.manual_seed(3)
    draws = [other.posterior.draw().params for _ in range(4)]
    other.train()
    for params in draws:
        other.network(x, params)
    assert scenarios.same_bits(stepped, dict(other.net.named_buffers()))
