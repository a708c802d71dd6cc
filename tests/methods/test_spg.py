import copy

import pytest
import torch
from torch import nn
from torch.distributions import MultivariateNormal, kl_divergence

import fsvi
import scenarios
from fsvi.functions.divergences import gaussian_kl
from fsvi.functions.gaussian import FunctionGaussian
from fsvi.functions.kernels import RBF
from fsvi.functions.priors import Constant, GaussianProcess

LINE = fsvi.contexts.Uniform(low=[-2.0], high=[2.0])
FAST = {"num_context": 4, "num_latents": 3, "num_prior_steps": 3, "num_samples": 2}


def spg(outputs=2, num_latents=3, **settings):
    """On one real input, in float64, with a latent that is not at the prior."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(1, 6), nn.Tanh(), nn.Linear(6, outputs)).double()
    likelihood = fsvi.Gaussian(0.3)
    method = fsvi.SPG(net, likelihood, LINE, **{"num_context": 5, "num_latents": num_latents, **settings})
    with torch.no_grad():
        method.latent_mean.normal_()
        method.latent.log_std.normal_(-0.5, 0.5)
        method.latent.mixing.normal_()
    return method


def moved(method):
    """The posterior's generator away from the prior's."""
    with torch.no_grad():
        for p in (*method.net.parameters(), method.generator.basis):
            p.add_(0.1 * torch.randn_like(p))
    return method


def points(num):
    return torch.linspace(-2, 2, num, dtype=torch.float64)[:, None]


@torch.no_grad()
def exact_kl(method, x):
    """KL(q(f(x)) ‖ p(f(x))) of the two processes, each Gaussian, output by output."""
    noise = method.prior_generator.log_noise.exp() ** 2
    (mean, functions), (prior_mean, prior_functions) = method.generator(x), method.prior_generator(x)
    total = 0.0
    for k, factor in enumerate(method.latent.factors()):
        q_mean = mean[:, k] + functions @ method.latent_mean[k]
        q = FunctionGaussian(q_mean[:, None], functions @ factor, torch.ones(1, 3).double(), noise)
        p = FunctionGaussian(prior_mean[:, k : k + 1], prior_functions, torch.ones(1, 3).double(), noise)
        total += float(gaussian_kl(q, p, 0.0))
    return total


# The grid functional KL ----------------------------------------------------------------------------------------------


def test_the_latent_s_kl_is_a_gaussian_s():
    method = spg()
    q = MultivariateNormal(method.latent_mean, scale_tril=method.latent.factors())
    p = MultivariateNormal(torch.zeros(3, dtype=torch.float64), torch.eye(3, dtype=torch.float64))
    torch.testing.assert_close(method.latent.kl(method.latent_mean), kl_divergence(q, p).sum())


def test_at_the_prior_there_is_no_divergence():
    method = fsvi.SPG(scenarios.dense(), fsvi.Categorical(), scenarios.box())
    assert float(method.function_kl(scenarios.points()[0]).detach()) == 0


def test_the_functions_part_is_the_expected_square():
    """E ‖h_q + ψ_q·z − h_p − ψ_p·z‖²/(2δ²) by 40,000 draws of z; its standard error is below 1%."""
    method = moved(spg())
    with torch.no_grad():
        method.prior_generator.log_noise.fill_(-0.7)
        x = points(7)
        (mean, functions), (prior_mean, prior_functions) = method.generator(x), method.prior_generator(x)
        latent = MultivariateNormal(method.latent_mean, scale_tril=method.latent.factors()).sample((40_000,))
        change = (mean - prior_mean)[None] + (functions - prior_functions) @ latent.mT
        expected = change.square().sum((1, 2)).mean() / (2 * torch.tensor(-0.7).exp() ** 2)
        assert float(method.function_kl(x) - method.latent.kl(method.latent_mean)) == pytest.approx(
            float(expected), rel=0.03
        )


@pytest.mark.parametrize("num", [2, 3, 8])
@pytest.mark.parametrize("change", [lambda method: method, moved])
def test_it_bounds_the_exact_divergence(num, change):
    method = change(spg())
    method.prior_generator.log_noise.data.fill_(-1.0)
    exact = exact_kl(method, points(num))
    assert 0 < exact < float(method.function_kl(points(num)))


def test_the_bound_is_attained_where_the_functions_tell_the_latent():
    """One generator, as many points as latents, no noise: f(x) and z are the same thing."""
    method = spg()
    method.prior_generator.log_noise.data.fill_(-9.0)
    assert exact_kl(method, points(6)) == pytest.approx(float(method.function_kl(points(6))), rel=1e-4)


# The generator -------------------------------------------------------------------------------------------------------


def test_the_basis_functions_are_linear_in_the_features_with_a_constant():
    method = spg()
    x = points(5)
    features = method.net[:2](x)
    mean, functions = method.generator(x)
    torch.testing.assert_close(mean, method.net(x))
    torch.testing.assert_close(functions, torch.cat([features, torch.ones(5, 1)], dim=1) @ method.generator.basis)


def test_the_fit_s_objective_is_the_divergence_of_the_prior_from_the_generator():
    method = spg(prior=GaussianProcess(RBF(0.5, 2.0)))
    x = points(4)
    mean, functions = method.generator(x)
    kernel = RBF(0.5, 2.0)(x)
    noise = torch.exp(2 * method.generator.log_noise)
    p = MultivariateNormal(mean.T, functions @ functions.T + noise * torch.eye(4))
    prior = MultivariateNormal(torch.zeros(2, 4).double(), kernel)
    torch.testing.assert_close(method.prior_kl(x), kl_divergence(prior, p).sum(), rtol=1e-4, atol=0)


def test_functions_of_the_fitted_generator_have_the_prior_s_moments():
    """4,000 draws at the prior's latent: a covariance has the standard error √((k_ii k_jj + k_ij²)/4000) ≤ 0.023 with
    unit variances, to which the generator's own error of at most 0.05 is added."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(1, 30), nn.Tanh(), nn.Linear(30, 1))
    prior = GaussianProcess(RBF(1.0))
    method = fsvi.SPG(net, fsvi.Gaussian(), LINE, prior=prior, num_latents=10, num_prior_steps=500)
    x = torch.linspace(-2, 2, 9)[:, None]
    before = float(method.prior_kl(x).detach())
    method.begin(x, x)
    assert float(method.prior_kl(x).detach()) < 0.7 * before
    kernel = RBF(1.0)(x)
    fitted = method.generator.gaussian(x)
    assert float((fitted.covariance[0] - kernel).abs().max()) < 0.05
    f = method.predict(x, 4000).samples[:, :, 0].double()
    noise = torch.exp(2 * method.generator.log_noise.detach().double()) * torch.eye(9)
    assert float(f.mean(0).abs().max()) < 4 / 4000**0.5 + 0.05
    assert float((torch.cov(f.T) + noise - kernel).abs().max()) < 4 * 0.023 + 0.05


def test_white_functions_are_all_noise():
    """No smooth function is in the prior: the generator's δ takes over its variance, and the basis goes to zero."""
    method = spg(outputs=1, num_latents=2, prior=Constant(4.0), num_context=10, prior_lr=0.05, num_prior_steps=200)
    method.begin(points(30), points(30))
    x = points(12)
    assert float(method.generator.log_noise.detach().exp() ** 2) == pytest.approx(4.0, rel=0.15)
    assert float(method.generator(x)[1].detach().square().sum(1).mean()) < 0.4


def test_the_posterior_starts_from_the_generator():
    method = spg(num_prior_steps=2)
    method.begin(points(9), points(9))
    assert scenarios.same_bits(method.net.state_dict(), method.prior_net.state_dict())
    assert scenarios.same_bits(method.generator.state_dict(), method.prior_generator.state_dict())
    assert all(p.grad is None for p in method.parameters())


def test_the_generator_is_fitted_once():
    x, y = scenarios.points()
    method = fsvi.SPG(scenarios.dense(), fsvi.Categorical(), scenarios.box(), **FAST)
    fsvi.fit(method, (x, y), epochs=2)
    prior = copy.deepcopy(method.prior_generator.state_dict() | method.prior_net.state_dict())
    fsvi.fit(method, (x, y), epochs=2)
    assert scenarios.same_bits(prior, method.prior_generator.state_dict() | method.prior_net.state_dict())
    assert not torch.equal(method.generator.basis, method.prior_generator.basis)


# Inference -----------------------------------------------------------------------------------------------------------


def test_around_a_fixed_generator_it_reaches_the_exact_posterior():
    """Given the generator, f is linear in the latent: Λ = I + ΨᵀΨ/σ², mean Λ⁻¹Ψᵀ(y − h)/σ²."""
    noise = 0.3
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1)).double()
    settings = {"num_latents": 3, "num_prior_steps": 50, "num_samples": 16, "stds": fsvi.posteriors.Stds(1.0, 1.0)}
    method = fsvi.SPG(net, fsvi.Gaussian(noise), LINE, prior=GaussianProcess(RBF(1.0)), **settings)
    x = points(10)
    y = (2 * x).sin()
    method.begin(x, y)
    method.net.requires_grad_(False)
    method.generator.requires_grad_(False)
    fsvi.fit(method, (x, y), epochs=400, lr=0.03)
    with torch.no_grad():
        mean, functions = method.generator(x)
        precision = torch.eye(3) + functions.T @ functions / noise**2
        expected = torch.linalg.solve(precision, functions.T @ (y - mean) / noise**2)[:, 0]
        covariance = method.latent.factors()[0] @ method.latent.factors()[0].T
    torch.testing.assert_close(method.latent_mean[0].detach(), expected, atol=0.03, rtol=0.02)
    torch.testing.assert_close(covariance, torch.linalg.inv(precision), atol=0.02, rtol=0.1)


def test_the_prior_s_network_and_the_statistics_it_has_stay_in_training():
    x, y = scenarios.images(8)
    method = fsvi.SPG(scenarios.normalised(), fsvi.Categorical(), fsvi.contexts.Monochrome(), **FAST)
    method.begin(x, y)
    assert float(method.prior_net[1].running_mean.abs().sum()) > 0
    before = copy.deepcopy(method.prior_net.state_dict())
    method.train()
    sum(method(x, y).values()).backward()
    assert scenarios.same_bits(before, method.prior_net.state_dict())
    assert not torch.equal(method.net[1].running_mean, method.prior_net[1].running_mean)


def test_predictions_are_draws_of_the_latent():
    """At a point: mean h + ψ·mean, variance ψ L Lᵀ ψᵀ; 20,000 draws, so 4 standard errors are 3% and 4%."""
    method = moved(spg())
    x = points(3)
    p = method.predict(x, 20_000)
    with torch.no_grad():
        mean, functions = method.generator(x)
        expected = mean + functions @ method.latent_mean.T
        variance = (functions @ method.latent.factors()).square().sum(-1).T
    assert bool(((p.mean - expected).abs() < 4 * (variance / 20_000).sqrt()).all())
    torch.testing.assert_close(p.function_variance, variance, rtol=0.04, atol=0)


def test_only_what_is_inferred_is_trained():
    method = fsvi.SPG(scenarios.dense(), fsvi.Gaussian(learn_noise=True), scenarios.box(), **FAST)
    points, stds = method.parameter_groups(0.1)
    trained = {id(p) for p in points["params"]}
    assert [id(p) for p in stds["params"]] == [id(method.latent.log_std)] and stds["lr"] == pytest.approx(0.3)
    assert id(method.latent_mean) in trained and id(method.likelihood.log_noise) in trained
    assert {id(method.generator.basis), id(method.net[0].weight)} <= trained
    assert id(method.generator.log_noise) not in trained
    assert not trained & {id(p) for p in method.prior_net.parameters()}
