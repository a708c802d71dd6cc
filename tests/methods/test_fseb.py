"""Function-space empirical Bayes against the explicit density."""

import math

import pytest
import torch
from torch.distributions import MultivariateNormal

import fsvi
import scenarios
from fsvi.networks.parameters import initialize
from fsvi_cases import loss_of

LABELS = torch.tensor([0, 1, 1, 0])


def frozen_features(net, x, seed=0):
    """Features of a copy of the net that is initialized again."""
    torch.manual_seed(seed)
    initialize(net)
    return net[:-1](x).detach()


def log_density(values, features, variance, nugget):
    """Σ_k log N(f_k; 0, s (Φ₀Φ₀ᵀ + 11ᵀ) + nugget·I), written out."""
    num = len(values)
    covariance = variance * (features @ features.T + torch.ones(num, num, dtype=torch.float64))
    covariance = covariance + nugget * torch.eye(num, dtype=torch.float64)
    quadratic = (values * torch.linalg.solve(covariance, values)).sum()
    logs = values.shape[1] * (torch.linalg.slogdet(covariance)[1] + num * math.log(2 * math.pi))
    return -0.5 * (quadratic + logs)


@pytest.mark.parametrize("num", [4, 9])  # fewer and more points than features
def test_the_log_density_is_the_papers(make, num):
    net, x = make("mlp", num)
    method = fsvi.FSEB(net, fsvi.Categorical(), prior=fsvi.priors.Induced(0.7), nugget=0.3)
    features = frozen_features(make("mlp", num)[0], x)
    expected = log_density(net(x), features, 0.7, 0.3)
    torch.testing.assert_close(method._log_prob(x), expected)
    covariance = 0.7 * (features @ features.T + 1) + 0.3 * torch.eye(num, dtype=torch.float64)
    oracle = MultivariateNormal(torch.zeros(num, dtype=torch.float64), covariance).log_prob(net(x).T).sum()
    torch.testing.assert_close(expected, oracle)


def test_features_of_a_trained_network_make_a_prior_of_zero_mean(make):
    net, x = make("mlp", 5)
    trained = make("mlp", 5, seed=3)[0]
    method = fsvi.FSEB(net, fsvi.Categorical(), prior=fsvi.priors.Empirical(trained, variance=0.6), nugget=0.1)
    expected = log_density(net(x), trained[:-1](x), 0.6, 0.1)
    torch.testing.assert_close(method._log_prob(x), expected)


def test_the_loss_is_that_of_map_and_the_weighted_density(make):
    net, x = make("mlp")
    points = torch.randn(3, 3, dtype=torch.float64)
    method = fsvi.FSEB(
        net, fsvi.Categorical(), fsvi.contexts.Dataset(points), prior_variance=0.4, num_context=3, kl_weight=0.2
    )
    plain = fsvi.MAP(net, fsvi.Categorical(), prior_variance=0.4)
    expected = loss_of(plain, x, LABELS) - 0.2 * method._log_prob(points)
    torch.testing.assert_close(loss_of(method, x, LABELS), expected)


def test_the_default_weight_is_one_over_the_number_of_examples(make):
    net, x = make("mlp")
    points = torch.randn(3, 3, dtype=torch.float64)
    method = fsvi.FSEB(net, fsvi.Categorical(), fsvi.contexts.Dataset(points), num_context=3)
    method.num_data = 50
    term = method(x, LABELS)["function_prior"]
    torch.testing.assert_close(term, -method._log_prob(points) / 50)


def test_the_gradient_of_the_density_is_exact(make):
    net, x = make("mlp", 5)
    method = fsvi.FSEB(net, fsvi.Categorical(), nugget=0.1)
    features = frozen_features(make("mlp", 5)[0], x)
    log_density(net(x), features, 1.0, 0.1).backward()
    method._log_prob(x).backward()
    for own, other in zip(method.net.parameters(), net.parameters(), strict=True):
        torch.testing.assert_close(own.grad, other.grad)


def test_where_the_context_is_the_function_returns_to_zero():
    """Against MAP, outputs at the context points are smaller, while the data are learned as well."""
    x, y = scenarios.points(40)
    far = x + 6
    methods = [
        fsvi.FSEB(scenarios.dense(), fsvi.Categorical(), fsvi.contexts.Dataset(far), kl_weight=1.0, nugget=0.1),
        fsvi.MAP(scenarios.dense(), fsvi.Categorical()),
    ]
    for method in methods:
        fsvi.fit(method, (x, y), epochs=100, lr=0.02)
        assert float((method.predict(x).mean.argmax(1) == y).float().mean()) > 0.9
    ours, theirs = (float(method.predict(far).mean.max(1).values.mean()) for method in methods)
    assert ours < 0.8 < theirs
