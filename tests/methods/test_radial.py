import math

import pytest
import torch
from scipy import integrate, stats
from torch import nn
from torch.distributions import Normal, kl_divergence

import fsvi
from fsvi.methods.radial import Radial, noise_entropy
from fsvi_cases import flat_mean

NUM = 4000


@pytest.fixture
def q():
    """Tensors of 12, 3, 6 and 2 parameters, in float64."""
    net = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)).double()
    q = Radial(net, {name: 0.1 for name, _ in net.named_parameters()})
    with torch.no_grad():
        q.log_std.normal_(-1, 0.5)
    return q


@pytest.fixture
def moves(q):
    """(θ − mean)/exp(log_std) of many draws, by tensor."""
    with torch.no_grad():
        moved = torch.stack([q.log_std.exp() * q.noise() for _ in range(NUM)]) / q.log_std.exp()
    return {name: view.reshape(NUM, -1) for name, view in q.layout.views(moved).items()}


def test_the_distance_from_the_mean_is_half_normal_in_every_dimension(moves):
    for values in moves.values():
        assert stats.kstest(values.norm(dim=1).numpy(), stats.halfnorm.cdf).pvalue > 1e-3


def test_the_direction_is_uniform(moves):
    """Directions u have mean 0 and covariance I/D; an entry of u times √D has the variance 1."""
    for values in moves.values():
        dimension = values.shape[1]
        directions = values / values.norm(dim=1, keepdim=True) * math.sqrt(dimension)
        assert directions.mean(0).abs().max() < 5 / math.sqrt(NUM)
        covariance = directions.T @ directions / NUM
        assert (covariance - torch.eye(dimension)).abs().max() < 5 * math.sqrt(2 / NUM)


def test_tensors_are_independent(moves):
    radii = torch.stack([values.norm(dim=1) for values in moves.values()])
    entries = torch.stack([values[:, 0] for values in moves.values()])
    for sample in (radii, entries):
        assert (sample.corrcoef() - torch.eye(len(sample))).abs().max() < 5 / math.sqrt(NUM)


@pytest.mark.parametrize("dimension, area", [(2, 2 * math.pi), (3, 4 * math.pi), (4, 2 * math.pi**2)])
def test_the_entropy_is_the_integral_of_the_density(dimension, area):
    def integrand(radius):
        along = stats.halfnorm.pdf(radius)
        return -along * math.log(along / (area * radius ** (dimension - 1)))

    assert noise_entropy(dimension) == pytest.approx(integrate.quad(integrand, 0, 12)[0], abs=1e-6)


def test_the_entropy_of_q_follows_its_scale(q):
    """H[q] = Σ log_std + constant: moving every log_std by δ adds δ a parameter, and the gradient is one."""
    entropy = q.entropy()
    (gradient,) = torch.autograd.grad(entropy, q.log_std)
    assert torch.equal(gradient, torch.ones_like(gradient))
    expected = q.log_std.sum() + noise_entropy(12) + noise_entropy(3) + noise_entropy(6) + noise_entropy(2)
    torch.testing.assert_close(entropy, expected)


# The method ---------------------------------------------------------------------------------------------------------


def radial(net, **settings):
    method = fsvi.RadialMFVI(net.double(), fsvi.Gaussian(), **settings)
    with torch.no_grad():
        method.posterior.log_std.normal_(0, 0.3)
    return method


def kl(method, draws):
    """The estimate of the KL from these draws: the loss's term with weight one."""
    method.kl_weight, method.num_samples = 1.0, len(draws)
    queue = iter(draws)
    method.posterior.draw = lambda generator=None: next(queue)
    x = torch.zeros(1, method.net.in_features, dtype=torch.float64)
    found = method(x, torch.zeros(1, method.net.out_features, dtype=torch.float64))["kl"]
    del method.posterior.draw
    return found


def draws(method, num):
    q = method.posterior
    return [q.draw() for _ in range(num)]


@torch.no_grad()
def test_with_tensors_of_one_parameter_the_kl_is_the_normal_one():
    """There (ε/‖ε‖)·r ~ N(0, 1); the estimate, in units of its sampling error."""
    method = radial(nn.Linear(1, 1), prior_variance=0.5)
    q = method.posterior
    reference = kl_divergence(Normal(flat_mean(q), q.log_std.exp()), Normal(0.0, math.sqrt(0.5))).sum()
    estimates = torch.stack([kl(method, [draw]) for draw in draws(method, 1000)])
    assert (estimates.mean() - reference).abs() < 5 * estimates.std() / math.sqrt(1000)


@torch.no_grad()
def test_the_cross_entropy_is_estimated_without_bias():
    """E[−log N(θ; 0, v)] = ½ Σᵢ [(meanᵢ² + stdᵢ²)/v + log 2πv], a parameter's variance being exp(log_std)²/D."""
    method = radial(nn.Linear(4, 3), prior_variance=0.5)
    q = method.posterior
    seconds = sum(
        (dict(method.net.named_parameters())[name].square() + std.square()).sum() for name, std in q.stds().items()
    )
    reference = 0.5 * (seconds / 0.5 + flat_mean(q).numel() * math.log(2 * math.pi * 0.5))
    estimates = torch.stack([kl(method, [draw]) for draw in draws(method, 1000)]) + q.entropy()
    assert (estimates.mean() - reference).abs() < 5 * estimates.std() / math.sqrt(1000)
    together = kl(method, draws(method, 1000)) + q.entropy()
    assert (together - reference).abs() < 5 * estimates.std() / math.sqrt(1000)


def test_the_gradient_by_log_std_is_that_of_the_draw_less_one():
    """∂KL/∂log_std = θ (θ − mean)/v − 1: the cross-entropy's at the draw, less the entropy's."""
    method = radial(nn.Linear(4, 3), prior_variance=0.5)
    q = method.posterior
    (draw,) = draws(method, 1)
    shift = q.layout.flatten(draw.shift).detach()
    (gradient,) = torch.autograd.grad(kl(method, [draw]), q.log_std)
    expected = (flat_mean(q) + shift) * shift / 0.5 - 1
    torch.testing.assert_close(gradient, expected)


@pytest.mark.parametrize("width", [10, 1000])
@torch.no_grad()
def test_however_wide_a_layer_its_weights_stay_near_the_mean(width):
    """The typical distance from the mean, in units of exp(log_std), is that of one Gaussian, not √D."""
    method = fsvi.RadialMFVI(nn.Linear(width, 2), fsvi.Gaussian())
    q = method.posterior
    distances = torch.stack([q.layout.views(q.noise())["weight"].norm() for _ in range(400)])
    assert distances.mean() == pytest.approx(math.sqrt(2 / math.pi), abs=5 * 0.603 / math.sqrt(400))
