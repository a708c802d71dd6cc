"""Dropout with fast masks: its distribution, and where it replaces PyTorch's."""

import copy
import math

import torch
from torch import nn

import fsvi
from fsvi.networks import Network
from fsvi.networks.dropout import drop, fast_dropout


def test_dropping_is_that_of_torch_in_distribution():
    num, rate = 200_000, 0.3
    h = torch.rand(num, dtype=torch.float64) + 1
    dropped = drop(h, rate)
    is_kept = dropped != 0
    torch.testing.assert_close(dropped[is_kept], h[is_kept] / (1 - rate), rtol=2**-15, atol=0)
    assert abs(is_kept.double().mean() - (1 - rate)) < 5 * math.sqrt(rate * (1 - rate) / num)
    for lag in (1, 2, 3, 4, 5):  # four entries share one random word
        both = (is_kept[lag:] & is_kept[:-lag]).double().mean()
        assert abs(both - (1 - rate) ** 2) < 5 * math.sqrt(0.25 / num)


def test_dropping_keeps_memory_layout_and_the_gradient_is_the_mask():
    h = torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last).requires_grad_()
    dropped = drop(h, 0.5)
    assert dropped.stride() == h.stride()
    dropped.sum().backward()
    torch.testing.assert_close(h.grad * h, dropped)
    assert h[:, :, ::2].shape == drop(h[:, :, ::2], 0.5).shape
    assert not drop(h, 1.0).any() and torch.equal(drop(h, 0.0), h)


# Layers --------------------------------------------------------------------------------------------------------------


class Own(nn.Dropout):
    """A layer of the user's own."""

    def forward(self, x):
        return super().forward(x) + 1


def network(rate: float = 0.3) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 50), nn.Dropout(rate), nn.Dropout1d(rate), Own(rate), nn.Linear(50, 2))


def test_plain_dropout_layers_in_training_mode_call_drop_and_are_restored():
    net = network()
    h = torch.ones(3, 50)
    with fast_dropout(net):
        torch.manual_seed(0)
        dropped = net[1](h)
        others = [type(net[i]).forward is net[i].forward.__func__ for i in (2, 3)]
    torch.manual_seed(0)
    assert torch.equal(dropped, drop(h, 0.3)) and 0 < dropped.eq(0).sum() < dropped.numel()
    assert all(others) and not any("forward" in vars(layer) for layer in net)
    with fast_dropout(net.eval()):
        assert torch.equal(net[1](h), h)


def test_layers_are_restored_after_an_error_and_a_forward_of_the_users_own_stays():
    net = network()
    net[1].forward = own = lambda h: h
    try:
        with fast_dropout(net):
            assert net[1].forward is own
            raise KeyError
    except KeyError:
        assert net[1].forward is own
    del net[1].forward
    try:
        with fast_dropout(net), fast_dropout(net):
            raise KeyError
    except KeyError:
        assert "forward" not in vars(net[1])


def test_a_pass_in_training_mode_uses_it_and_one_in_eval_mode_draws_nothing():
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(4, 50), nn.ReLU(), nn.Dropout(0.3), nn.Linear(50, 2))
    x, wrapped = torch.randn(5, 4), Network(copy.deepcopy(net))
    wrapped.train()
    torch.manual_seed(0)
    outputs, parameters = wrapped(x), dict(wrapped.module.named_parameters())
    torch.manual_seed(0)
    assert torch.equal(outputs, wrapped(x, parameters))
    torch.manual_seed(0)
    torch.testing.assert_close(outputs, net[3](drop(net[1](net[0](x)), 0.3)))
    wrapped.module.eval()
    before = torch.get_rng_state()
    wrapped(x)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_expected_loss_of_a_network_with_dropout_is_that_of_torch():
    """Means over masks agree within five standard errors."""
    net = nn.Sequential(nn.Linear(4, 20), nn.Tanh(), nn.Dropout(0.4), nn.Linear(20, 2))
    method = fsvi.MAP(net, fsvi.Categorical(), prior_variance=None)
    x, y = torch.randn(64, 4), torch.arange(64) % 2
    method.train()
    torch.manual_seed(0)
    fast = torch.stack([method.loss(x, y).detach() for _ in range(400)])
    plain = torch.stack([nn.functional.cross_entropy(method.net(x), y).detach() for _ in range(400)])
    error = ((fast.var() + plain.var()) / 400).sqrt()
    assert error > 0 and abs(fast.mean() - plain.mean()) < 5 * error
    assert 0.7 < fast.std() / plain.std() < 1.4
