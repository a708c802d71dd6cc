"""What VOGN and IVON share: an optimizer with two rules, and a posterior whose variance follows from a curvature."""

import pytest
import torch
from torch import nn
from torch.distributions import Normal, kl_divergence

import fsvi
import scenarios
from fsvi.methods.natural_gradient import NaturalGradient
from fsvi.training import Stepper

METHODS = [fsvi.VOGN, fsvi.IVON]


class Halving(NaturalGradient):
    """Halves the means, and adds the curvature to the scale."""

    def update(self, mean, scale, state, group):
        mean.mul_(0.5)
        scale.add_(scale.grad)


def test_the_first_group_has_its_own_rule_and_the_others_have_adams():
    mean, scale, point = (nn.Parameter(torch.tensor([value, -value])) for value in (4.0, 1.0, 3.0))
    other = nn.Parameter(point.detach().clone())
    ours = Halving([{"params": [mean, scale], "lr": 0.1}, {"params": [point], "lr": 0.1}])
    adam = torch.optim.Adam([other], lr=0.1)
    for step in range(3):
        mean.grad, scale.grad = torch.ones(2), torch.full((2,), 2.0)
        point.grad = other.grad = torch.tensor([1.0, 0.5]) * (step + 1)
        ours.step()
        adam.step()
    assert mean.tolist() == [0.5, -0.5] and scale.tolist() == [7.0, 5.0]
    assert torch.equal(point, other) and mean.grad is None and scale.grad is None


def begun(cls, x):
    torch.manual_seed(0)
    method = cls(scenarios.dense(), fsvi.Categorical(), prior_variance=0.5)
    method.begin(x, 40)
    return method.train()


@pytest.mark.parametrize("cls", METHODS)
def test_the_standard_deviation_follows_from_the_curvature(cls):
    x, y = scenarios.points()
    method = begun(cls, x)
    Stepper(method, method.own_optimizer(0.01))([(x, y)])
    torch.testing.assert_close((-2 * method.posterior.log_std).exp(), method.precision())
    assert (method.precision() > 0).all() and not method.posterior.log_std.requires_grad


@pytest.mark.parametrize("cls", METHODS)
def test_the_kl_term_is_that_of_torch(cls):
    x, y = scenarios.points()
    method = begun(cls, x)
    Stepper(method, method.own_optimizer(0.01))([(x, y)])
    q = method.posterior
    expected = kl_divergence(Normal(q.mean, q.log_std.exp()), Normal(0.0, 0.5**0.5)).sum() / 40
    for terms in (method(x, y), method.backward(x, y)):
        torch.testing.assert_close(terms["kl"], expected, rtol=1e-4, atol=1e-6)
