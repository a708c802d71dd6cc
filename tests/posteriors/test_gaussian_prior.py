import math

import pytest
import torch
from torch import nn
from torch.distributions import Normal, kl_divergence

from fsvi.posteriors.mean_field import negative_log_normal, normal_kl, prior_names


@pytest.mark.parametrize("variance", [0.01, 1.0, 10.0])
def test_the_kl_equals_that_of_torch_distributions(variance):
    mean, log_std = torch.randn(2, 7, dtype=torch.float64)
    reference = kl_divergence(Normal(mean, log_std.exp()), Normal(torch.zeros(7).double(), math.sqrt(variance))).sum()
    torch.testing.assert_close(normal_kl(mean.split([3, 4]), log_std, variance), reference)
    zero = normal_kl([torch.zeros(7)], torch.full((7,), 0.5 * math.log(variance)), variance)
    assert zero.item() == pytest.approx(0, abs=1e-5)


def test_the_density_is_the_normal_one_up_to_a_constant():
    def reference(tensors):
        return -sum(Normal(0.0, math.sqrt(0.3)).log_prob(tensor).sum() for tensor in tensors)

    first, second = ([torch.randn(2, 3).double(), torch.randn(4).double()] for _ in range(2))
    difference = negative_log_normal(first, 0.3) - negative_log_normal(second, 0.3)
    torch.testing.assert_close(difference, reference(first) - reference(second))


def test_the_gradient_of_the_density_is_the_normal_one_also_twice_and_for_many_at_once():
    def reference(tensor):
        return -Normal(0.0, math.sqrt(0.3), validate_args=False).log_prob(tensor).sum()

    points = torch.randn(5, 4, dtype=torch.float64)
    points[0] = 0.0  # torch's norm has no derivative here, its square has
    gradients = [torch.func.grad(density) for density in (lambda t: negative_log_normal([t], 0.3), reference)]
    torch.testing.assert_close(*(torch.vmap(gradient)(points) for gradient in gradients))
    weights = [torch.randn(2, 3, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    assert torch.autograd.gradcheck(lambda *t: negative_log_normal(t, 0.3), weights)
    assert torch.autograd.gradgradcheck(lambda *t: negative_log_normal(t, 0.3), weights)


def test_neither_frozen_nor_normalising_parameters_have_a_prior():
    net = nn.Sequential(nn.Conv1d(2, 3, 1), nn.BatchNorm1d(3), nn.Linear(4, 2))
    net[0].weight.requires_grad_(False)
    assert prior_names(net) == ["0.bias", "2.weight", "2.bias"]
