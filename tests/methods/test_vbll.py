"""Variational Bayesian last layers against exact Bayesian linear regression, quadrature and explicit formulas."""

import math

import pytest
import torch
from torch import nn
from torch.distributions import MultivariateNormal, kl_divergence

import fsvi
import scenarios
from fsvi.likelihoods import weighted
from fsvi.methods.vbll import expected_nll
from fsvi_cases import loss_of

NOISE, VARIANCE, NUM = 0.4, 1.7, 12


def regression(outputs=1):
    """A linear model: inputs are the features."""
    torch.manual_seed(1)
    x = torch.randn(NUM, 2, dtype=torch.float64)
    y = x @ torch.randn(2, outputs, dtype=torch.float64) + 0.3 + NOISE * torch.randn(NUM, outputs, dtype=torch.float64)
    method = fsvi.VBLL(nn.Sequential(nn.Linear(2, outputs)).double(), fsvi.Gaussian(NOISE), prior_variance=VARIANCE)
    return method, x, y


def exact(x, y):
    """Mean (inputs, outputs) and covariance of the posterior of Bayesian linear regression."""
    design = torch.cat([x, torch.ones_like(x[:, :1])], dim=1)
    covariance = torch.linalg.inv(design.T @ design / NOISE**2 + torch.eye(3, dtype=torch.float64) / VARIANCE)
    return covariance @ design.T @ y / NOISE**2, covariance


def set_posterior(method, mean, covariance):
    factor = torch.linalg.cholesky(covariance)
    std = factor.diagonal()
    with torch.no_grad():
        method.network.linear.weight.copy_(mean[:-1].T)
        method.network.linear.bias.copy_(mean[-1])
        method.last_layer.log_std.copy_(std.log().expand_as(method.last_layer.log_std))
        method.last_layer.mixing.copy_((factor / std[:, None]).expand_as(method.last_layer.mixing))


def test_at_the_exact_posterior_the_loss_is_minus_the_log_evidence_per_example():
    method, x, y = regression()
    set_posterior(method, *exact(x, y))
    design = torch.cat([x, torch.ones_like(x[:, :1])], dim=1)
    covariance = VARIANCE * design @ design.T + NOISE**2 * torch.eye(NUM, dtype=torch.float64)
    evidence = MultivariateNormal(torch.zeros(NUM, dtype=torch.float64), covariance).log_prob(y[:, 0])
    torch.testing.assert_close(loss_of(method, x, y), -evidence / NUM)


def test_training_reaches_bayesian_linear_regression():
    method, x, y = regression(outputs=2)
    fsvi.fit(method, (x, y), epochs=600, lr=0.1)
    mean, covariance = exact(x, y)
    factors = method.last_layer.factors().detach()
    torch.testing.assert_close(method.means().detach(), mean.T, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(factors @ factors.mT, covariance.expand(2, 3, 3), rtol=1e-3, atol=1e-5)


def test_draws_have_the_posterior_s_moments():
    method, x, y = regression()
    mean, covariance = exact(x, y)
    set_posterior(method, mean, covariance)
    design = torch.cat([x, torch.ones_like(x[:, :1])], dim=1)
    draws = method.predict(x, 20_000).samples[:, :, 0]
    torch.testing.assert_close(draws.mean(0), (design @ mean)[:, 0], rtol=0, atol=0.01)
    torch.testing.assert_close(draws.T.cov(), design @ covariance @ design.T, rtol=0.05, atol=2e-3)


@pytest.mark.parametrize("bias", [True, False])
def test_the_kl_is_that_of_torch(bias):
    method = fsvi.VBLL(nn.Sequential(nn.Linear(3, 2, bias=bias)).double(), fsvi.Categorical())
    layer = method.last_layer
    with torch.no_grad():
        layer.log_std.normal_()
        layer.mixing.normal_()
    size = 3 + bias
    prior = MultivariateNormal(torch.zeros(size, dtype=torch.float64), 0.6 * torch.eye(size, dtype=torch.float64))
    expected = kl_divergence(MultivariateNormal(method.means(), scale_tril=layer.factors()), prior).sum()
    torch.testing.assert_close(layer.kl(method.means(), 0.6), expected)


def test_the_bound_for_classes_is_the_papers_and_lies_above_the_expected_negative_log_likelihood():
    mean, variance = torch.randn(5, 3, dtype=torch.float64), torch.rand(5, 3, dtype=torch.float64)
    y = torch.tensor([0, 2, 1, 1, 0])
    bound = expected_nll(fsvi.Categorical(), mean, variance, y)
    explicit = (mean + 0.5 * variance).exp().sum(1).log() - mean[torch.arange(5), y]
    torch.testing.assert_close(bound, explicit.mean())
    draws = mean + variance.sqrt() * torch.randn(20_000, 5, 3, dtype=torch.float64)
    assert 0 < float(bound - fsvi.Categorical().nll(draws, y)) < 0.5
    torch.testing.assert_close(expected_nll(fsvi.Categorical(), mean, 0 * variance, y), fsvi.Categorical().nll(mean, y))


def test_probabilities_as_targets_and_weights_of_examples_count():
    mean, variance = torch.randn(3, 2, dtype=torch.float64), torch.rand(3, 2, dtype=torch.float64)
    likelihood, y = fsvi.Categorical(), torch.tensor([[0.3, 0.7], [1.0, 0.0], [0.5, 0.5]], dtype=torch.float64)
    each = (mean + 0.5 * variance).exp().sum(1).log() - (y * mean).sum(1)
    torch.testing.assert_close(expected_nll(likelihood, mean, variance, y), each.mean())
    weights = torch.tensor([0.2, 1.0, 1.8], dtype=torch.float64)
    with weighted(likelihood, weights):
        torch.testing.assert_close(expected_nll(likelihood, mean, variance, y), (weights * each).mean())


def test_the_bound_for_real_targets_is_exact():
    mean, variance = torch.randn(5, 2, dtype=torch.float64), torch.rand(5, 2, dtype=torch.float64)
    y = torch.randn(5, 2, dtype=torch.float64)
    likelihood = fsvi.Gaussian([0.3, 0.8])
    likelihood.bind(2)
    noise = torch.tensor([0.3, 0.8], dtype=torch.float64)
    squares = ((y - mean).square() + variance) / noise.square()
    explicit = 0.5 * (squares + 2 * noise.log() + math.log(2 * math.pi)).sum(1).mean()
    torch.testing.assert_close(expected_nll(likelihood, mean, variance, y), explicit)


def test_the_variance_of_outputs_is_that_of_the_features_through_the_last_layer(make):
    net, x = make("mlp")
    method = fsvi.VBLL(net, fsvi.Categorical())
    with torch.no_grad():
        method.last_layer.mixing.normal_()
    features = torch.cat([net[:2](x), torch.ones(len(x), 1, dtype=torch.float64)], dim=1)
    factors = method.last_layer.factors()
    expected = torch.einsum("nr,krc,nc->nk", features, factors @ factors.mT, features)
    torch.testing.assert_close(method.variances(features[:, :-1]), expected)


def test_feature_layers_have_a_prior_and_the_last_layer_has_not_a_second_one(make):
    net, x = make("mlp")
    y = torch.tensor([0, 1, 1, 0])
    with_prior, without = (fsvi.VBLL(net, fsvi.Categorical(), feature_variance=v) for v in (0.5, None))
    squares = net[0].weight.square().sum() + net[0].bias.square().sum()
    torch.testing.assert_close(loss_of(with_prior, x, y) - loss_of(without, x, y), squares / (2 * 0.5 * len(x)))


def test_a_network_without_feature_layers_trains():
    x, y = scenarios.points()
    history = fsvi.fit(fsvi.VBLL(nn.Sequential(nn.Linear(2, 2)), fsvi.Categorical()), (x, y), epochs=30, lr=0.05)
    assert history.loss[-1] < history.loss[0]


@pytest.mark.parametrize("name", ["tied_head", "frozen"])
def test_a_last_layer_that_is_not_free_is_refused(make, name):
    net, x = make("mlp" if name == "frozen" else name)
    if name == "frozen":
        net[2].requires_grad_(False)
    with pytest.raises(fsvi.errors.HeadError, match="last layer"):
        fsvi.VBLL(net, fsvi.Categorical())(x, torch.tensor([0, 1, 1, 0]))


def test_options_of_classes_without_a_bound_are_refused():
    with pytest.raises(fsvi.errors.InvalidInputError, match="label_smoothing"):
        fsvi.VBLL(nn.Linear(2, 2), fsvi.Categorical(label_smoothing=0.1))
