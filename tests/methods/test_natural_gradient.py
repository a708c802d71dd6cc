"""What VOGN and IVON share: an optimizer with two rules, and a posterior whose variance follows from a curvature."""

import pytest
import torch
from torch.distributions import Normal, kl_divergence

import fsvi
import scenarios
from fsvi.training import Stepper
from fsvi_cases import flat_mean, stepped

METHODS = [fsvi.VOGN, fsvi.IVON]


def begun(cls, x):
    torch.manual_seed(0)
    method = cls(scenarios.dense(), fsvi.Categorical(), prior_variance=0.5)
    method.num_data = 40
    return method.train()


@pytest.mark.parametrize("cls", METHODS)
def test_the_kl_term_is_that_of_torch(cls):
    x, y = scenarios.points()
    method = begun(cls, x)
    Stepper(method, method.own_optimizer(0.01))([(x, y)])
    q = method.posterior
    expected = kl_divergence(Normal(flat_mean(q), q.log_std.exp()), Normal(0.0, 0.5**0.5)).sum() / 40
    for terms in (method(x, y), stepped(method, x, y)):
        torch.testing.assert_close(terms["kl"], expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("cls", METHODS)
def test_a_learned_noise_learns_too_and_a_second_fit_goes_on(cls):
    torch.manual_seed(0)
    x, y = scenarios.curve()
    method = cls(scenarios.dense(1), fsvi.Gaussian(0.3, learn_noise=True))
    fsvi.fit(method, (x, y), epochs=3, lr=0.05)
    assert float(method.likelihood.noise) != pytest.approx(0.3, rel=1e-2)
    method.scale_rate, before = 1e-9, method.scale.clone()
    fsvi.fit(method, (x, y), epochs=1)
    torch.testing.assert_close(method.scale, before, rtol=1e-5, atol=1e-6)
