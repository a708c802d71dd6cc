"""Dropout with fast masks: its distribution, and where it replaces PyTorch's."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import fsvi
from fsvi.networks import dropout
from fsvi.networks.dropout import drop, fast_dropout, plain_dropouts


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
    both = (is_kept & (drop(h, rate) != 0)).double().mean()  # the next mask is another one
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


def layers() -> nn.ModuleList:
    return nn.ModuleList([nn.Dropout(0.3), nn.Dropout1d(0.3), Own(0.3), nn.Dropout(0.3, inplace=True), nn.Dropout(0)])


def test_only_plain_dropout_layers_are_chosen():
    found = layers()
    assert plain_dropouts(found) == [found[0]]


def test_layers_call_drop_with_their_mode_and_rate_and_are_restored():
    layer, h = nn.Dropout(0.3), torch.ones(3, 50)
    calls = []
    layer.register_forward_hook(lambda _, args, out: calls.append(out))
    with fast_dropout([layer]):
        torch.manual_seed(0)
        dropped = layer(input=h)
        layer.p = 0.5
        changed = layer(h)
        assert torch.equal(layer.eval()(h), h)
    torch.manual_seed(0)
    assert torch.equal(dropped, drop(h, 0.3)) and torch.equal(changed, drop(h, 0.5))
    assert 0 < dropped.eq(0).sum() < dropped.numel() and len(calls) == 3
    assert "forward" not in vars(layer)


def test_layers_are_restored_after_an_error_and_a_forward_of_the_users_own_stays():
    own, other = nn.Dropout(0.3), nn.Dropout(0.3)
    own.forward = forward = lambda h: h
    with pytest.raises(KeyError), fast_dropout([own, other]), fast_dropout([own, other]):
        assert own.forward is forward and "forward" in vars(other)
        raise KeyError
    assert own.forward is forward and "forward" not in vars(other)


# Training ------------------------------------------------------------------------------------------------------------


class Checkpointed(nn.Module):
    """A network whose dropout is computed again in the backward pass."""

    def __init__(self, is_used: bool) -> None:
        super().__init__()
        self.first, self.drop, self.head, self.is_used = nn.Linear(4, 30), nn.Dropout(0.5), nn.Linear(30, 2), is_used

    def block(self, x):
        return self.drop(self.first(x).tanh())

    def forward(self, x):
        return self.head(checkpoint(self.block, x, use_reentrant=False) if self.is_used else self.block(x))


def steps(net: nn.Module, num: int = 3) -> fsvi.MAP:
    """MAP after a few steps on random data."""
    torch.manual_seed(0)
    x, y = torch.randn(32, 4), torch.arange(32) % 2
    method = fsvi.MAP(net, fsvi.Categorical())
    method.begin(x, 32)
    method.train()
    optimizer = torch.optim.SGD(method.parameters(), lr=0.1)
    for _ in range(num):
        fsvi.take_step(method, optimizer, x, y)
    return method


def test_a_step_draws_its_masks_with_drop_and_leaves_the_network_as_it_was(monkeypatch):
    rates = []
    monkeypatch.setattr(dropout, "drop", lambda h, rate: rates.append(rate) or drop(h, rate))
    method = steps(Checkpointed(False))
    assert rates == [0.5] * 3
    assert "forward" not in vars(method.net.drop)
    method.predict(torch.randn(2, 4))
    assert rates == [0.5] * 3


def test_checkpointed_layers_get_the_same_masks_again():
    torch.manual_seed(1)
    plain, checkpointed = Checkpointed(False), Checkpointed(True)
    checkpointed.load_state_dict(plain.state_dict())
    found, expected = (steps(net).net.state_dict() for net in (checkpointed, plain))
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value)


def test_the_expected_loss_of_a_network_with_dropout_is_that_of_torch():
    """Means over masks agree within five standard errors."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 20), nn.Tanh(), nn.Dropout(0.4), nn.Linear(20, 2))
    x, y = torch.randn(64, 4), torch.arange(64) % 2

    def losses() -> Tensor:
        return torch.stack([nn.functional.cross_entropy(net(x), y).detach() for _ in range(400)])

    plain = losses()
    with fast_dropout(plain_dropouts(net)):
        fast = losses()
    error = ((fast.var() + plain.var()) / 400).sqrt()
    assert abs(fast.mean() - plain.mean()) < 5 * error
    assert 0.7 < fast.std() / plain.std() < 1.4
