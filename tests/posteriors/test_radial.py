import math

import pytest
import torch
from scipy import integrate, stats
from torch import nn

from fsvi.posteriors.radial import Radial, noise_entropy

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
def draws(q):
    """(θ − mean)/exp(log_std) of many draws, by tensor."""
    with torch.no_grad():
        moved = torch.stack([q.log_std.exp() * q.noise() for _ in range(NUM)]) / q.log_std.exp()
    return {name: view.reshape(NUM, -1) for name, view in q.layout.views(moved).items()}


def test_the_distance_from_the_mean_is_half_normal_in_every_dimension(draws):
    for values in draws.values():
        assert stats.kstest(values.norm(dim=1).numpy(), stats.halfnorm.cdf).pvalue > 1e-3


def test_the_direction_is_uniform(draws):
    """Directions u have mean 0 and covariance I/D; an entry of u times √D has the variance 1."""
    for values in draws.values():
        dimension = values.shape[1]
        directions = values / values.norm(dim=1, keepdim=True) * math.sqrt(dimension)
        assert directions.mean(0).abs().max() < 5 / math.sqrt(NUM)
        covariance = directions.T @ directions / NUM
        assert (covariance - torch.eye(dimension)).abs().max() < 5 * math.sqrt(2 / NUM)


def test_tensors_are_independent(draws):
    radii = torch.stack([values.norm(dim=1) for values in draws.values()])
    entries = torch.stack([values[:, 0] for values in draws.values()])
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
