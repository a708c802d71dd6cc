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
def test_the_standard_deviation_follows_from_the_curvature(cls):
    x, y = scenarios.points()
    method = begun(cls, x)
    Stepper(method, method.own_optimizer(0.01))([(x, y)])
    torch.testing.assert_close((-2 * method.posterior.log_std).exp(), method.precision())
    assert (method.precision() > 0).all()


@pytest.mark.parametrize("cls", METHODS)
def test_the_kl_term_is_that_of_torch(cls):
    x, y = scenarios.points()
    method = begun(cls, x)
    Stepper(method, method.own_optimizer(0.01))([(x, y)])
    q = method.posterior
    expected = kl_divergence(Normal(flat_mean(q), q.log_std.exp()), Normal(0.0, 0.5**0.5)).sum() / 40
    for terms in (method(x, y), stepped(method, x, y)):
        torch.testing.assert_close(terms["kl"], expected, rtol=1e-4, atol=1e-6)
