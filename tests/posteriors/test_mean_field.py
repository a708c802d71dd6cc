import math

import pytest
import torch
from torch import nn

from fsvi.posteriors import MeanField


@pytest.fixture
def net():
    """Convolutions, two equal-shaped dense layers, a frozen one."""
    net = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(12, 12), nn.Linear(12, 12), nn.Linear(12, 2))
    net[2].bias.requires_grad_(False)
    return net


def names_of(net):
    return [name for name, _ in net.named_parameters()]


@pytest.fixture
def q(net):
    return MeanField(net, names_of(net))


def test_means_and_stds_are_keyed_like_named_parameters(net, q):
    """Means of all parameters in the network's order, frozen ones included; stds of the stochastic ones only."""
    means, stds = q.means(), q.stds()
    assert list(means) == names_of(net)
    assert list(stds) == [name for name, p in net.named_parameters() if p.requires_grad]
    assert all(torch.equal(means[name], p) for name, p in net.named_parameters())
    assert all(stds[name].shape == means[name].shape for name in stds)


def test_only_the_chosen_parameters_are_stochastic(net):
    q = MeanField(net, ["4.weight", "2.bias"])
    assert list(q.stds()) == ["4.weight"], "a frozen parameter stays a point even when it is chosen"
    assert q.mean.numel() == 24
    free = sum(p.numel() for p in net.parameters() if p.requires_grad)
    assert q.point.numel() == free - 24
    shift = torch.ones_like(q.mean)
    moved = q.params(shift)
    assert all(
        torch.equal(moved[name], p + (name == "4.weight")) for name, p in net.named_parameters() if name in moved
    )
    assert "2.bias" not in moved


def test_standard_deviations_are_set_by_name(net, q):
    stds = {name: 0.1 * (i + 1) for i, name in enumerate(q.layout.names)}
    q.set_stds(stds)
    for name, std in q.stds().items():
        torch.testing.assert_close(std, torch.full_like(std, stds[name]))
    for log_std, name in zip(q.log_stds(q.layout.names), stds, strict=True):
        torch.testing.assert_close(log_std.exp(), torch.full_like(log_std, stds[name]))


def test_means_and_stds_are_copies(q):
    q.means()["0.weight"].zero_()
    q.stds()["0.weight"].zero_()
    assert q.means()["0.weight"].any() and q.stds()["0.weight"].all()


@torch.no_grad()
def test_a_draw_has_the_stated_moments(q):
    """Mean and standard deviation over draws, in units of their sampling errors."""
    q.log_std.normal_(-1, 0.5)
    num = 4000
    draws = torch.stack([q.mean + q.shift(q.noise()) for _ in range(num)])
    mean_error = (draws.mean(0) - q.mean) / (q.log_std.exp() / math.sqrt(num))
    std_error = (draws.std(0) / q.log_std.exp() - 1) * math.sqrt(2 * num)
    for error in (mean_error, std_error):
        assert error.abs().max() < 5
        assert error.square().mean() == pytest.approx(1, abs=5 * math.sqrt(2 / len(error)))


def test_equal_shaped_layers_get_independent_noise(q):
    draws = [q.layout.views(q.noise()) for _ in range(200)]
    first, second = (torch.stack([draw[name] for draw in draws]) for name in ("2.weight", "3.weight"))
    pairs = {"layers": (first, second), "draws": (first[1:], first[:-1]), "rows": (first[:, 1:], first[:, :-1])}
    for between, (one, other) in pairs.items():
        assert (one * other).mean().abs() < 5 / math.sqrt(one.numel()), between


def test_draws_do_not_random_walk(q):
    before = q.means()
    for _ in range(3):
        q.params(q.shift(q.noise()))
    assert all(torch.equal(before[name], mean) for name, mean in q.means().items())


def test_a_generator_makes_the_noise_reproducible(q):
    noises = [q.noise(torch.Generator().manual_seed(seed)) for seed in (3, 3, 4)]
    assert torch.equal(noises[0], noises[1]) and not torch.equal(noises[0], noises[2])


def test_gradients_reach_mean_log_std_and_point(net):
    """∂/∂mean = g and ∂/∂log_std = g·(θ − mean) for a gradient g at θ."""
    q = MeanField(net, ["3.weight"])
    noise = q.noise()
    g = torch.randn(12, 12)
    params = q.params(q.shift(noise))
    ((params["3.weight"] * g).sum() + 2 * params["0.weight"].sum()).backward()
    torch.testing.assert_close(q.mean.grad, g.reshape(-1))
    torch.testing.assert_close(q.log_std.grad, g.reshape(-1) * q.shift(noise).detach())
    assert set(q.point_layout.views(q.point.grad)["0.weight"].reshape(-1).tolist()) == {2.0}
