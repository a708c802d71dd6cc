import math

import pytest
import torch
from torch import nn
from torch.distributions import Normal, kl_divergence

import fsvi


def radial(net, **settings):
    method = fsvi.RadialMFVI(net.double(), fsvi.Gaussian(), **settings)
    with torch.no_grad():
        method.posterior.log_std.normal_(0, 0.3)
    return method


def draws(method, num):
    q = method.posterior
    return [q.shift(q.noise()) for _ in range(num)]


@torch.no_grad()
def test_with_tensors_of_one_parameter_the_kl_is_the_normal_one():
    """There (ε/‖ε‖)·r ~ N(0, 1); the estimate, in units of its sampling error."""
    method = radial(nn.Linear(1, 1), prior_variance=0.5)
    q = method.posterior
    reference = kl_divergence(Normal(q.mean, q.log_std.exp()), Normal(0.0, math.sqrt(0.5))).sum()
    estimates = torch.stack([method.kl([shift]) for shift in draws(method, 4000)])
    assert (estimates.mean() - reference).abs() < 5 * estimates.std() / math.sqrt(4000)


@torch.no_grad()
def test_the_cross_entropy_is_estimated_without_bias():
    """E[−log N(θ; 0, v)] = ½ Σᵢ [(meanᵢ² + stdᵢ²)/v + log 2πv], a parameter's variance being exp(log_std)²/D."""
    method = radial(nn.Linear(4, 3), prior_variance=0.5)
    q = method.posterior
    seconds = sum(
        (dict(method.net.named_parameters())[name].square() + std.square()).sum() for name, std in q.stds().items()
    )
    reference = 0.5 * (seconds / 0.5 + q.mean.numel() * math.log(2 * math.pi * 0.5))
    estimates = torch.stack([method.kl([shift]) for shift in draws(method, 4000)]) + q.entropy()
    assert (estimates.mean() - reference).abs() < 5 * estimates.std() / math.sqrt(4000)
    together = method.kl(draws(method, 4000)) + q.entropy()
    assert (together - reference).abs() < 5 * estimates.std() / math.sqrt(4000)


def test_the_gradient_by_log_std_is_that_of_the_draw_less_one():
    """∂KL/∂log_std = θ (θ − mean)/v − 1: the cross-entropy's at the draw, less the entropy's."""
    method = radial(nn.Linear(4, 3), prior_variance=0.5)
    q = method.posterior
    (shift,) = draws(method, 1)
    (gradient,) = torch.autograd.grad(method.kl([shift]), q.log_std)
    expected = (q.mean + shift) * shift / 0.5 - 1
    torch.testing.assert_close(gradient, expected)


@pytest.mark.parametrize("width", [10, 1000])
@torch.no_grad()
def test_however_wide_a_layer_its_weights_stay_near_the_mean(width):
    """The typical distance from the mean, in units of exp(log_std), is that of one Gaussian, not √D."""
    method = fsvi.RadialMFVI(nn.Linear(width, 2), fsvi.Gaussian())
    q = method.posterior
    distances = torch.stack([q.layout.views(q.noise())["weight"].norm() for _ in range(400)])
    assert distances.mean() == pytest.approx(math.sqrt(2 / math.pi), abs=5 * 0.603 / math.sqrt(400))
