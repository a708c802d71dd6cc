import math

import pytest
import torch
from torch import nn

from fsvi.networks import Network
from fsvi.posteriors.mean_field import MeanField, Stds, mean_field


@pytest.fixture
def net():
    """Convolutions, two equal-shaped dense layers."""
    return nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(12, 12), nn.Linear(12, 12), nn.Linear(12, 2))


@pytest.fixture
def q(net):
    return MeanField(net, {name: 0.1 * (i + 1) for i, (name, _) in enumerate(net.named_parameters())})


def test_the_means_are_the_networks_parameters_and_stds_start_as_given(net, q):
    assert list(q.means()) == list(q.stds()) == [name for name, _ in net.named_parameters()]
    assert all(q.means()[name] is p for name, p in net.named_parameters())
    assert list(q.parameters()) == [q.log_std], "no parameter exists twice"
    for i, (name, std) in enumerate(q.stds().items()):
        torch.testing.assert_close(std, torch.full_like(net.get_parameter(name), 0.1 * (i + 1)))
        torch.testing.assert_close(q.layout.views(q.log_std)[name].exp(), std)
    q.stds()["0.weight"].zero_()
    assert q.stds()["0.weight"].all(), "stds are copies"


def test_only_the_chosen_parameters_are_stochastic(net):
    net[2].bias.requires_grad_(False)
    network = Network(net)
    assert list(mean_field(network, Stds()).means()) == [n for n, _ in net.named_parameters() if n != "2.bias"]
    assert list(mean_field(network, Stds(), "last_layer").means()) == ["4.weight", "4.bias"]
    assert list(mean_field(network, Stds(), ["3"]).means()) == ["3.weight", "3.bias", "4.weight", "4.bias"]
    q = mean_field(network, Stds((0.2, 0.5)))
    assert {name: round(float(std.max()), 6) for name, std in q.stds().items()}["4.bias"] == 0.5
    assert q.log_std.numel() == sum(p.numel() for p in net.parameters() if p.requires_grad)
    draw = MeanField(net, {"4.weight": 1.0}).at(torch.ones(24))
    torch.testing.assert_close(draw.params, {"4.weight": net[4].weight + 1})


@torch.no_grad()
def test_a_draw_has_the_stated_moments(q):
    """Mean and standard deviation over draws, in units of their sampling errors."""
    q.log_std.normal_(-1, 0.5)
    num, mean = 4000, q.layout.join(q.means().values())
    draws = torch.stack([q.layout.join(q.draw().params.values()) for _ in range(num)])
    mean_error = (draws.mean(0) - mean) / (q.log_std.exp() / math.sqrt(num))
    std_error = (draws.std(0) / q.log_std.exp() - 1) * math.sqrt(2 * num)
    for error in (mean_error, std_error):
        assert error.abs().max() < 5
        assert error.square().mean() == pytest.approx(1, abs=5 * math.sqrt(2 / len(error)))
    torch.testing.assert_close(q.layout.join(q.means().values()), mean, msg="draws do not walk")


def test_the_gradient_of_a_draw_is_that_of_plain_operations(net, q):
    """Tensors that are used twice, as shift, or not at all, in channels-last order too."""
    noise = q.noise()
    weights = [torch.randn(3, 2, 3, 3), torch.randn(3, 2, 3, 3), torch.randn(12, 12)]

    def gradients(params, shift):
        value = (params["0.weight"] * weights[0]).sum() + (shift["0.weight"].sin() * weights[1]).sum()
        value = value + (params["2.weight"].square() * weights[2]).sum() + params["2.weight"].sum()
        wanted = [net[0].weight, net[2].weight, q.log_std]
        return torch.autograd.grad(value, wanted)

    shift = q.layout.views(q.log_std.exp() * noise)
    plain = gradients({name: mean + shift[name] for name, mean in q.means().items()}, shift)
    draw = q.at(noise)
    torch.testing.assert_close(gradients(draw.params, draw.shift), plain)
